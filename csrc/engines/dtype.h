#pragma once
// Element types: as memory holds them, and as registers of the engines do.
#include <cstddef>
#include <cstdint>

namespace neuron::engines {

enum class Dtype : std::uint8_t { kF32, kF64, kBF16, kF16, kI64, kI32, kI16, kI8, kU8, kBool };

// What the elements of a register are. Narrower types are widened when they are loaded; Op::kRound gives a value the
// precision (or the range) of its type back, so that every op rounds where one kernel per op would have rounded.
enum class Lane : std::uint8_t { kF32, kF64, kI64, kB8 };

constexpr std::size_t size_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF64:
    case Dtype::kI64:
      return 8;
    case Dtype::kF32:
    case Dtype::kI32:
      return 4;
    case Dtype::kBF16:
    case Dtype::kF16:
    case Dtype::kI16:
      return 2;
    default:
      return 1;
  }
}

constexpr std::size_t size_of(Lane lane) {
  switch (lane) {
    case Lane::kF32:
      return 4;
    case Lane::kB8:
      return 1;
    default:
      return 8;
  }
}

constexpr Lane lane_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
    case Dtype::kBF16:
    case Dtype::kF16:
      return Lane::kF32;
    case Dtype::kF64:
      return Lane::kF64;
    case Dtype::kBool:
      return Lane::kB8;
    default:
      return Lane::kI64;
  }
}

// Memory of this type can be used as a register without conversion.
constexpr bool is_lane(Dtype dtype) {
  return dtype == Dtype::kF32 || dtype == Dtype::kF64 || dtype == Dtype::kI64 || dtype == Dtype::kBool;
}

}  // namespace neuron::engines
