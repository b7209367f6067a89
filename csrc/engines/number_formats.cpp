#include "engines/number_formats.h"

#include <bit>
#include <cstring>

#include "engines/cpu_features.h"

namespace neuron::engines {

namespace {

// Both ways of a format as straight-line code on one element, without branches, so that loops over it vectorise.
// Multiplying or adding rather than shifting subnormals keeps them right, whatever the compiler makes of the selects.

NEURON_INLINE std::uint32_t select(bool condition, std::uint32_t yes, std::uint32_t no) { return condition ? yes : no; }

constexpr std::uint32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000, kQuietNan = 0x7fc00000;
constexpr std::uint32_t kBias = 127, kMantissaBits = 23;

constexpr std::uint32_t power_of_two(int exponent) {
  return (kBias + static_cast<std::uint32_t>(exponent)) << kMantissaBits;
}

struct BFloat16 {
  using Storage = std::uint16_t;
  NEURON_INLINE static float widen(Storage x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16); }
  NEURON_INLINE static Storage narrow(float x) {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return static_cast<Storage>(select((bits & kMagnitude) > kInfinity, kQuietNan >> 16, rounded));
  }
};

// A format with sign, `E` bits of exponent biased as in IEEE 754 and `M` bits of mantissa.
template <class StorageType, int E, int M, bool HasInfinity>
struct Small {
  using Storage = StorageType;
  static constexpr int kShift = 23 - M;
  static constexpr int kSmallBias = (1 << (E - 1)) - 1;
  static constexpr int kMinExponent = 1 - kSmallBias;  // of normal numbers
  static constexpr std::uint32_t kSignBit = 1u << (E + M);
  static constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - kSmallBias) << kMantissaBits;
  static constexpr std::uint32_t kExponentOnes = ((1u << E) - 1) << M;
  static constexpr std::uint32_t kNan = HasInfinity ? kExponentOnes | (1u << (M - 1)) : kSignBit - 1;

  NEURON_INLINE static float widen(Storage x) {
    const std::uint32_t magnitude = x & (kSignBit - 1);
    const std::uint32_t sign = static_cast<std::uint32_t>(x & kSignBit) << (31 - E - M);
    const std::uint32_t normal = (magnitude << kShift) + kRebias;
    constexpr float kSpacing = std::bit_cast<float>(power_of_two(kMinExponent - M));
    const auto subnormal = std::bit_cast<std::uint32_t>(static_cast<float>(static_cast<int>(magnitude)) * kSpacing);
    std::uint32_t bits = select(magnitude < (1u << M), subnormal, normal);
    if constexpr (HasInfinity) {
      bits = select(magnitude == kExponentOnes, kInfinity, bits);
      bits = select(magnitude > kExponentOnes, kQuietNan, bits);
    } else {
      bits = select(magnitude == kNan, kQuietNan, bits);
    }
    return std::bit_cast<float>(bits | sign);
  }

  NEURON_INLINE static Storage narrow(float x) {
    const auto all = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t bits = all & kMagnitude;
    const std::uint32_t sign = (all & ~kMagnitude) >> (31 - E - M);
    // A carry out of the mantissa moves to the next exponent, which is right, and at the top gives infinity.
    const std::uint32_t normal = (bits + (1u << (kShift - 1)) - 1 + ((bits >> kShift) & 1) - kRebias) >> kShift;
    // Adding a number whose last bit is worth one subnormal step makes the addition do the rounding.
    constexpr std::uint32_t kMagic = power_of_two(kMinExponent - M + 23);
    const auto sum = std::bit_cast<float>(bits) + std::bit_cast<float>(kMagic);
    const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(sum) - kMagic;
    std::uint32_t magnitude = select(bits < power_of_two(kMinExponent), subnormal, normal);
    if constexpr (HasInfinity) {
      magnitude = select(bits >= power_of_two(kSmallBias + 1), kExponentOnes, magnitude);
    } else {  // the largest number has the topmost exponent and all but the last bit of the mantissa
      constexpr std::uint32_t kLargest = power_of_two(kSmallBias + 1) + (((1u << M) - 2) << kShift);
      magnitude = select(bits > kLargest, kNan - 1, magnitude);
    }
    magnitude = select(bits > kInfinity, kNan, magnitude);
    return static_cast<Storage>(magnitude | sign);
  }
};

using Float16 = Small<std::uint16_t, 5, 10, true>;
using Float8E4M3 = Small<std::uint8_t, 4, 3, false>;
using Float8E5M2 = Small<std::uint8_t, 5, 2, true>;

template <class F>
NEURON_INLINE void widen_loop(const void* from, float* to, std::size_t count) {
  const auto* source = static_cast<const typename F::Storage*>(from);
  for (std::size_t i = 0; i < count; ++i) to[i] = F::widen(source[i]);
}

template <class F>
NEURON_INLINE void narrow_loop(const float* from, void* to, std::size_t count) {
  auto* target = static_cast<typename F::Storage*>(to);
  for (std::size_t i = 0; i < count; ++i) target[i] = F::narrow(from[i]);
}

template <class F>
void widen_portable(const void* from, float* to, std::size_t count) {
  widen_loop<F>(from, to, count);
}
template <class F>
void narrow_portable(const float* from, void* to, std::size_t count) {
  narrow_loop<F>(from, to, count);
}

#if NEURON_HAS_AVX2_CODE
template <class F>
NEURON_AVX2 void widen_avx2(const void* from, float* to, std::size_t count) {
  widen_loop<F>(from, to, count);
}
template <class F>
NEURON_AVX2 void narrow_avx2(const float* from, void* to, std::size_t count) {
  narrow_loop<F>(from, to, count);
}

template <>
NEURON_AVX2 void widen_avx2<Float16>(const void* from, float* to, std::size_t count) {
  const auto* source = static_cast<const std::uint16_t*>(from);
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i))));
  widen_loop<Float16>(source + i, to + i, count - i);
}
template <>
NEURON_AVX2 void narrow_avx2<Float16>(const float* from, void* to, std::size_t count) {
  auto* target = static_cast<std::uint16_t*>(to);
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
  narrow_loop<Float16>(from + i, target + i, count - i);
}
#endif

template <class F>
void widen_best(const void* from, float* to, std::size_t count) {
#if NEURON_HAS_AVX2_CODE
  if (cpu_has_avx2()) return widen_avx2<F>(from, to, count);
#endif
  widen_portable<F>(from, to, count);
}

template <class F>
void narrow_best(const float* from, void* to, std::size_t count) {
#if NEURON_HAS_AVX2_CODE
  if (cpu_has_avx2()) return narrow_avx2<F>(from, to, count);
#endif
  narrow_portable<F>(from, to, count);
}

template <class F>
void widen_apart(const void* from, std::ptrdiff_t stride, float* to, std::size_t count) {
  const auto* source = static_cast<const typename F::Storage*>(from);
  for (std::size_t i = 0; i < count; ++i) to[i] = F::widen(source[static_cast<std::ptrdiff_t>(i) * stride]);
}

template <class F>
void narrow_apart(const float* from, void* to, std::ptrdiff_t stride, std::size_t count) {
  auto* target = static_cast<typename F::Storage*>(to);
  for (std::size_t i = 0; i < count; ++i) target[static_cast<std::ptrdiff_t>(i) * stride] = F::narrow(from[i]);
}

struct Float32 {
  using Storage = float;
  static float widen(float x) { return x; }
  static float narrow(float x) { return x; }
};

}  // namespace

void widen(Format format, const void* from, float* to, std::size_t count) {
  switch (format) {
    case Format::kFloat32:
      std::memcpy(to, from, count * sizeof(float));
      return;
    case Format::kBFloat16:
      return widen_best<BFloat16>(from, to, count);
    case Format::kFloat16:
      return widen_best<Float16>(from, to, count);
    case Format::kFloat8E4M3:
      return widen_best<Float8E4M3>(from, to, count);
    case Format::kFloat8E5M2:
      return widen_best<Float8E5M2>(from, to, count);
  }
}

void widen_strided(Format format, const void* from, std::ptrdiff_t stride, float* to, std::size_t count) {
  if (stride == 1) return widen(format, from, to, count);
  switch (format) {
    case Format::kFloat32:
      return widen_apart<Float32>(from, stride, to, count);
    case Format::kBFloat16:
      return widen_apart<BFloat16>(from, stride, to, count);
    case Format::kFloat16:
      return widen_apart<Float16>(from, stride, to, count);
    case Format::kFloat8E4M3:
      return widen_apart<Float8E4M3>(from, stride, to, count);
    case Format::kFloat8E5M2:
      return widen_apart<Float8E5M2>(from, stride, to, count);
  }
}

void narrow(Format format, const float* from, void* to, std::size_t count) {
  switch (format) {
    case Format::kFloat32:
      std::memcpy(to, from, count * sizeof(float));
      return;
    case Format::kBFloat16:
      return narrow_best<BFloat16>(from, to, count);
    case Format::kFloat16:
      return narrow_best<Float16>(from, to, count);
    case Format::kFloat8E4M3:
      return narrow_best<Float8E4M3>(from, to, count);
    case Format::kFloat8E5M2:
      return narrow_best<Float8E5M2>(from, to, count);
  }
}

void narrow_strided(Format format, const float* from, void* to, std::ptrdiff_t stride, std::size_t count) {
  if (stride == 1) return narrow(format, from, to, count);
  switch (format) {
    case Format::kFloat32:
      return narrow_apart<Float32>(from, to, stride, count);
    case Format::kBFloat16:
      return narrow_apart<BFloat16>(from, to, stride, count);
    case Format::kFloat16:
      return narrow_apart<Float16>(from, to, stride, count);
    case Format::kFloat8E4M3:
      return narrow_apart<Float8E4M3>(from, to, stride, count);
    case Format::kFloat8E5M2:
      return narrow_apart<Float8E5M2>(from, to, stride, count);
  }
}

}  // namespace neuron::engines
