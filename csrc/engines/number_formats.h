#pragma once
// The number formats of a NeuronCore's engines and their conversions to and from fp32, which all engines compute in.
#include <cstddef>
#include <cstdint>

namespace neuron::engines {

enum class Format : std::uint8_t {
  kFloat32,
  kBFloat16,
  kFloat16,
  kFloat8E4M3,  // OCP E4M3: no infinities, largest value 448; torch.float8_e4m3fn
  kFloat8E5M2,  // OCP E5M2: infinities as in IEEE 754; torch.float8_e5m2
};

constexpr std::size_t bytes_of(Format format) {
  switch (format) {
    case Format::kFloat32:
      return 4;
    case Format::kBFloat16:
    case Format::kFloat16:
      return 2;
    default:
      return 1;
  }
}

// `count` elements that follow each other, to fp32. Exact.
void widen(Format format, const void* from, float* to, std::size_t count);

// The same for elements that lie `stride` elements apart; any stride, 0 and negative ones too.
void widen_strided(Format format, const void* from, std::ptrdiff_t stride, float* to, std::size_t count);

// From fp32, rounded to nearest, ties to even. NaN stays NaN. What is too large becomes infinity; in E4M3, which has
// none, it becomes the largest number, infinities too, as in torch since 2.13.
void narrow(Format format, const float* from, void* to, std::size_t count);
void narrow_strided(Format format, const float* from, void* to, std::ptrdiff_t stride, std::size_t count);

}  // namespace neuron::engines
