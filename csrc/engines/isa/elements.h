#pragma once
// Single elements and rows of elements of any type, as fp32 or integers.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "engines/isa/row_kernels.h"
#include "engines/isa/types.h"

namespace neuron::engines::isa {

inline float float_at(Type type, const std::byte* at) {
  float value;
  if (type == Type::kFloat32 || type == Type::kTFloat32)
    std::memcpy(&value, at, sizeof value);
  else
    row_kernels().widen[static_cast<std::size_t>(type)](at, &value, 1);
  return value;
}

// Floats are rounded to the nearest integer, ties to even.
std::int64_t integer_at(Type type, const std::byte* at);

// Elements `stride` bytes apart, to fp32 and back.
void widen_row(Type type, const std::byte* from, std::int64_t stride, float* to, std::int64_t n);
void narrow_row(Type type, const float* from, std::byte* to, std::int64_t stride, std::int64_t n);

// The bytes of `n` elements of `bytes` bytes.
void copy_row(const std::byte* from, std::int64_t from_stride, std::byte* to, std::int64_t to_stride, std::int64_t n,
              std::int64_t bytes);

}  // namespace neuron::engines::isa
