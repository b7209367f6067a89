#include "engines/isa/elements.h"

#include <algorithm>
#include <cmath>

namespace neuron::engines::isa {

using std::int64_t;

namespace {

constexpr int64_t kChunk = 256;

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <class T>
void copy_elements(const std::byte* from, int64_t from_stride, std::byte* to, int64_t to_stride, int64_t n) {
  for (int64_t i = 0; i < n; ++i) std::memcpy(to + i * to_stride, from + i * from_stride, sizeof(T));
}

}  // namespace

int64_t integer_at(Type type, const std::byte* at) {
  switch (type) {
    case Type::kInt8:
      return load<std::int8_t>(at);
    case Type::kUInt8:
    case Type::kBool:
      return load<std::uint8_t>(at);
    case Type::kInt16:
      return load<std::int16_t>(at);
    case Type::kUInt16:
    case Type::kFloat4E2M1FNx4:
      return load<std::uint16_t>(at);
    case Type::kInt32:
      return load<std::int32_t>(at);
    case Type::kUInt32:
    case Type::kFloat8E4M3FNx4:
    case Type::kFloat8E5M2x4:
      return load<std::uint32_t>(at);
    case Type::kInt64:
    case Type::kUInt64:
      return load<int64_t>(at);
    default: {
      const float value = float_at(type, at);
      constexpr float kLimit = 9.0e18f;
      return value == value ? std::llrint(std::clamp(value, -kLimit, kLimit)) : 0;
    }
  }
}

void widen_row(Type type, const std::byte* from, int64_t stride, float* to, int64_t n) {
  const auto bytes = static_cast<int64_t>(bytes_of(type));
  const auto widen = row_kernels().widen[static_cast<std::size_t>(type)];
  if (stride == bytes) return widen(from, to, n);
  if (type == Type::kFloat32)
    return copy_elements<float>(from, stride, reinterpret_cast<std::byte*>(to), sizeof(float), n);
  alignas(64) std::byte packed[kChunk * 8];
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t part = std::min(kChunk, n - i);
    copy_row(from + i * stride, stride, packed, bytes, part, bytes);
    widen(packed, to + i, part);
  }
}

void narrow_row(Type type, const float* from, std::byte* to, int64_t stride, int64_t n) {
  const auto bytes = static_cast<int64_t>(bytes_of(type));
  const auto narrow = row_kernels().narrow[static_cast<std::size_t>(type)];
  if (stride == bytes) return narrow(from, to, n);
  alignas(64) std::byte packed[kChunk * 8];
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t part = std::min(kChunk, n - i);
    narrow(from + i, packed, part);
    copy_row(packed, bytes, to + i * stride, stride, part, bytes);
  }
}

void copy_row(const std::byte* from, int64_t from_stride, std::byte* to, int64_t to_stride, int64_t n, int64_t bytes) {
  if (from_stride == bytes && to_stride == bytes) {
    std::memcpy(to, from, static_cast<std::size_t>(n * bytes));
    return;
  }
  switch (bytes) {
    case 1:
      return copy_elements<std::uint8_t>(from, from_stride, to, to_stride, n);
    case 2:
      return copy_elements<std::uint16_t>(from, from_stride, to, to_stride, n);
    case 4:
      return copy_elements<std::uint32_t>(from, from_stride, to, to_stride, n);
    default:
      return copy_elements<std::uint64_t>(from, from_stride, to, to_stride, n);
  }
}

}  // namespace neuron::engines::isa
