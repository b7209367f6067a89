#pragma once
// Element types of tiles. The order is that of src/nki/element_types.py.
#include <cstddef>
#include <cstdint>

namespace neuron::engines::isa {

enum class Type : std::uint8_t {
  kFloat32,
  kBFloat16,
  kFloat16,
  kTFloat32,
  kFloat8E4M3,    // IEEE-like: infinities, largest value 240
  kFloat8E4M3FN,  // OCP: no infinities, largest value 448
  kFloat8E5M2,
  kFloat8E8M0FNU,  // a power of two
  kInt8,
  kUInt8,
  kInt16,
  kUInt16,
  kInt32,
  kUInt32,
  kBool,
  kInt64,
  kUInt64,
  kFloat8E4M3FNx4,  // containers of four MX elements: 32 bits
  kFloat8E5M2x4,
  kFloat4E2M1FNx4,  // 16 bits
  kCount
};

constexpr std::size_t bytes_of(Type type) {
  switch (type) {
    case Type::kInt64:
    case Type::kUInt64:
      return 8;
    case Type::kFloat32:
    case Type::kTFloat32:
    case Type::kInt32:
    case Type::kUInt32:
    case Type::kFloat8E4M3FNx4:
    case Type::kFloat8E5M2x4:
      return 4;
    case Type::kBFloat16:
    case Type::kFloat16:
    case Type::kInt16:
    case Type::kUInt16:
    case Type::kFloat4E2M1FNx4:
      return 2;
    default:
      return 1;
  }
}

constexpr bool is_float(Type type) { return type <= Type::kFloat8E8M0FNU; }
constexpr bool is_integer(Type type) { return type >= Type::kInt8 && type <= Type::kUInt64; }

}  // namespace neuron::engines::isa
