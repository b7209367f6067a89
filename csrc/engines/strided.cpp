#include "engines/strided.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>

#include "engines/cpu_features.h"

namespace neuron::engines {
namespace {

// That of PyTorch's iterators.
constexpr std::size_t kMaxDims = 64;

// Calls run(offset, count, stride) for pieces with one stride each, in order.
template <class Run>
void for_each_run(const Geometry::Strides& where, std::int64_t first, std::int64_t count, Run&& run) {
  const std::size_t dims = where.sizes.size();
  if (dims > kMaxDims) throw std::invalid_argument("tile program: an access of too many dimensions");
  if (dims == 0) return run(0, count, 0);
  std::array<std::int64_t, kMaxDims> index;
  std::int64_t offset = 0;
  for (std::size_t d = dims; d-- > 0;) {
    index[d] = first % where.sizes[d];
    first /= where.sizes[d];
    offset += index[d] * where.strides[d];
  }
  const std::size_t inner = dims - 1;
  while (count > 0) {
    const std::int64_t step = std::min(where.sizes[inner] - index[inner], count);
    run(offset, step, where.strides[inner]);
    count -= step;
    index[inner] += step;
    offset += step * where.strides[inner];
    for (std::size_t d = inner; d > 0 && index[d] == where.sizes[d]; --d) {
      offset += where.strides[d - 1] - index[d] * where.strides[d];
      index[d] = 0;
      ++index[d - 1];
    }
  }
}

template <class T>
void gather_as(void* packed, const void* memory, const Geometry::Strides& where, std::int64_t first,
               std::int64_t count) {
  T* to = static_cast<T*>(packed);
  for_each_run(where, first, count, [&](std::int64_t offset, std::int64_t n, std::int64_t stride) {
    const T* from = static_cast<const T*>(memory) + offset;
    if (stride == 1) {
      std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(T));
    } else if (stride == 0) {
      std::fill_n(to, n, *from);
    } else {
      for (std::int64_t i = 0; i < n; ++i) to[i] = from[i * stride];
    }
    to += n;
  });
}

template <class T>
void scatter_as(void* memory, const void* packed, const Geometry::Strides& where, std::int64_t first,
                std::int64_t count) {
  const T* from = static_cast<const T*>(packed);
  for_each_run(where, first, count, [&](std::int64_t offset, std::int64_t n, std::int64_t stride) {
    T* to = static_cast<T*>(memory) + offset;
    if (stride == 1) {
      std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(T));
    } else {
      for (std::int64_t i = 0; i < n; ++i) to[i * stride] = from[i];
    }
    from += n;
  });
}

}  // namespace

void gather(void* packed, const void* memory, const Geometry::Strides& where, std::int64_t first, std::int64_t count,
            std::size_t element) {
  switch (element) {
    case 1:
      return gather_as<std::uint8_t>(packed, memory, where, first, count);
    case 2:
      return gather_as<std::uint16_t>(packed, memory, where, first, count);
    case 4:
      return gather_as<std::uint32_t>(packed, memory, where, first, count);
    default:
      return gather_as<std::uint64_t>(packed, memory, where, first, count);
  }
}

const void* packed_in_place(const void* memory, const Geometry::Strides& where, std::int64_t first, std::int64_t count,
                            std::size_t element) {
  const std::size_t dims = where.sizes.size();
  if (dims == 0 || where.strides[dims - 1] != 1 || first % where.sizes[dims - 1] + count > where.sizes[dims - 1])
    return nullptr;
  std::int64_t offset = 0;
  for (std::size_t d = dims; d-- > 0;) {
    offset += first % where.sizes[d] * where.strides[d];
    first /= where.sizes[d];
  }
  return static_cast<const std::byte*>(memory) + offset * static_cast<std::int64_t>(element);
}

#if NEURON_HAS_AVX2_CODE
namespace {
NEURON_AVX2 void stream(std::byte* to, const std::byte* from, std::size_t bytes) {
  constexpr std::size_t kVector = 32;
  for (std::size_t i = 0; i < bytes; i += kVector)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i),
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)));
}
}  // namespace

void store_past_caches(void* to, const void* from, std::size_t bytes) {
  constexpr std::size_t kVector = 32;
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  const std::size_t head = std::min(bytes, (kVector - reinterpret_cast<std::uintptr_t>(to) % kVector) % kVector);
  if (!cpu_has_avx2() || bytes - head < kVector) {
    std::memcpy(target, source, bytes);
    return;
  }
  std::memcpy(target, source, head);
  const std::size_t body = (bytes - head) / kVector * kVector;
  stream(target + head, source + head, body);
  std::memcpy(target + head + body, source + head + body, bytes - head - body);
}

void finish_stores_past_caches() { _mm_sfence(); }
#else
void store_past_caches(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
void finish_stores_past_caches() {}
#endif

void scatter(void* memory, const void* packed, const Geometry::Strides& where, std::int64_t first, std::int64_t count,
             std::size_t element) {
  switch (element) {
    case 1:
      return scatter_as<std::uint8_t>(memory, packed, where, first, count);
    case 2:
      return scatter_as<std::uint16_t>(memory, packed, where, first, count);
    case 4:
      return scatter_as<std::uint32_t>(memory, packed, where, first, count);
    default:
      return scatter_as<std::uint64_t>(memory, packed, where, first, count);
  }
}

}  // namespace neuron::engines
