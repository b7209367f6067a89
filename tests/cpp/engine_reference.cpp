#include "engine_reference.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace reference {

using namespace neuron::engines;

namespace {

// `x` in a binary format with `bits` explicit bits of mantissa, whose normal numbers begin at 2^least and end before
// 2^(greatest + 1). Ties go to even, as std::nearbyint does.
double in_format(double x, int bits, int least, int greatest) {
  if (!std::isfinite(x) || x == 0) return x;
  const double quantum = std::ldexp(1.0, std::max(std::ilogb(x), least) - bits);
  const double rounded = std::nearbyint(x / quantum) * quantum;
  if (std::fabs(rounded) >= std::ldexp(1.0, greatest + 1)) return std::copysign(INFINITY, x);
  return std::copysign(rounded, x);
}

double rounded(Dtype dtype, double x) {
  return dtype == Dtype::kBF16 ? in_format(x, 7, -126, 127) : in_format(x, 10, -14, 15);
}

std::int64_t wrapped(Dtype dtype, std::int64_t x) {
  const int bits = static_cast<int>(8 * size_of(dtype));
  if (bits == 64) return x;
  const std::int64_t low = x & ((std::int64_t{1} << bits) - 1);
  const bool negative = dtype != Dtype::kU8 && ((low >> (bits - 1)) & 1);
  return negative ? low - (std::int64_t{1} << bits) : low;
}

std::int64_t truncated(double x, int bits) {
  const double bound = std::ldexp(1.0, bits - 1);
  if (!(x >= -bound && x < bound)) return bits == 64 ? INT64_MIN : INT32_MIN;
  return static_cast<std::int64_t>(x);
}

template <class T>
T element(const void* memory, std::int64_t index) {
  T x;
  std::memcpy(&x, static_cast<const char*>(memory) + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return x;
}

template <class T>
void put(void* memory, std::int64_t index, T x) {
  std::memcpy(static_cast<char*>(memory) + index * static_cast<std::int64_t>(sizeof(T)), &x, sizeof(T));
}

double half_value(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  double x;
  if (exponent == 31)
    x = mantissa ? NAN : INFINITY;
  else if (exponent == 0)
    x = std::ldexp(mantissa, -24);
  else
    x = std::ldexp(1024 + mantissa, exponent - 25);
  return bits & 0x8000 ? -x : x;
}

std::uint16_t half_bits(double x) {  // of a value that is one
  const std::uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  if (std::isnan(x)) return sign | 0x7e00;
  if (std::isinf(x)) return sign | 0x7c00;
  x = std::fabs(x);
  const int exponent = x == 0 ? -15 : std::max(std::ilogb(x), -15);
  if (exponent < -14) return sign | static_cast<std::uint16_t>(std::ldexp(x, 24));
  return static_cast<std::uint16_t>(sign | ((exponent + 15) << 10) |
                                    (static_cast<int>(std::ldexp(x, 10 - exponent)) & 1023));
}

template <class T>
T minimum(T a, T b) {
  if (a != a || b != b) return static_cast<T>(a + b);
  return a < b ? a : b;
}
template <class T>
T maximum(T a, T b) {
  if (a != a || b != b) return static_cast<T>(a + b);
  return a > b ? a : b;
}

template <class T>
T arithmetic(Op op, T a, T b, T c) {
  switch (op) {
    case Op::kAdd:
      return a + b;
    case Op::kSub:
      return a - b;
    case Op::kMul:
      return a * b;
    case Op::kDiv:
      return a / b;
    case Op::kFma:
      return std::fma(a, b, c);
    case Op::kMin:
      return minimum(a, b);
    case Op::kMax:
      return maximum(a, b);
    case Op::kNeg:
      return -a;
    case Op::kAbs:
      return std::fabs(a);
    case Op::kSqrt:
      return std::sqrt(a);
    case Op::kFloor:
      return std::floor(a);
    case Op::kCeil:
      return std::ceil(a);
    case Op::kTrunc:
      return std::trunc(a);
    default:
      return std::nearbyint(a);
  }
}

std::int64_t arithmetic(Op op, std::int64_t a, std::int64_t b, std::int64_t c) {
  const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b), z = static_cast<std::uint64_t>(c);
  switch (op) {
    case Op::kAdd:
      return static_cast<std::int64_t>(x + y);
    case Op::kSub:
      return static_cast<std::int64_t>(x - y);
    case Op::kMul:
      return static_cast<std::int64_t>(x * y);
    case Op::kFma:
      return static_cast<std::int64_t>(x * y + z);
    case Op::kMin:
      return a < b ? a : b;
    case Op::kMax:
      return a > b ? a : b;
    case Op::kNeg:
      return static_cast<std::int64_t>(0 - x);
    case Op::kAbs:
      return a < 0 ? static_cast<std::int64_t>(0 - x) : a;
    case Op::kAnd:
      return a & b;
    case Op::kOr:
      return a | b;
    case Op::kXor:
      return a ^ b;
    default:
      return ~a;
  }
}

template <class T>
bool compare(Op op, T a, T b) {
  switch (op) {
    case Op::kEq:
      return a == b;
    case Op::kNe:
      return a != b;
    case Op::kLt:
      return a < b;
    default:
      return a <= b;
  }
}

Scalar cast(Lane from, Lane to, bool through_i32, Scalar x) {
  Scalar out{};
  const double value = from == Lane::kF32 ? x.f32 : from == Lane::kF64 ? x.f64 : 0;
  const bool is_float = from == Lane::kF32 || from == Lane::kF64;
  const std::int64_t integer = from == Lane::kI64 ? x.i64 : x.b8;
  switch (to) {
    case Lane::kF32:
      out.f32 = is_float ? static_cast<float>(value) : static_cast<float>(integer);
      break;
    case Lane::kF64:
      out.f64 = is_float ? value : static_cast<double>(integer);
      break;
    case Lane::kI64:
      out.i64 = is_float ? truncated(value, through_i32 ? 32 : 64) : integer;
      break;
    default:
      out.b8 = is_float ? value != 0 : integer != 0;
  }
  return out;
}

}  // namespace

Scalar load(Dtype dtype, const void* memory, std::int64_t index) {
  Scalar s{};
  switch (dtype) {
    case Dtype::kF32:
      s.f32 = element<float>(memory, index);
      break;
    case Dtype::kF64:
      s.f64 = element<double>(memory, index);
      break;
    case Dtype::kBF16:
      s.f32 = std::bit_cast<float>(static_cast<std::uint32_t>(element<std::uint16_t>(memory, index)) << 16);
      break;
    case Dtype::kF16:
      s.f32 = static_cast<float>(half_value(element<std::uint16_t>(memory, index)));
      break;
    case Dtype::kI64:
      s.i64 = element<std::int64_t>(memory, index);
      break;
    case Dtype::kI32:
      s.i64 = element<std::int32_t>(memory, index);
      break;
    case Dtype::kI16:
      s.i64 = element<std::int16_t>(memory, index);
      break;
    case Dtype::kI8:
      s.i64 = element<std::int8_t>(memory, index);
      break;
    case Dtype::kU8:
      s.i64 = element<std::uint8_t>(memory, index);
      break;
    default:
      s.b8 = element<std::uint8_t>(memory, index);
  }
  return s;
}

void store(Dtype dtype, void* memory, std::int64_t index, Scalar value) {
  switch (dtype) {
    case Dtype::kF32:
      return put(memory, index, value.f32);
    case Dtype::kF64:
      return put(memory, index, value.f64);
    case Dtype::kBF16: {
      const auto r = static_cast<float>(rounded(dtype, value.f32));
      return put(memory, index, static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(r) >> 16));
    }
    case Dtype::kF16:
      return put(memory, index, half_bits(rounded(dtype, value.f32)));
    case Dtype::kI64:
      return put(memory, index, value.i64);
    case Dtype::kI32:
      return put(memory, index, static_cast<std::uint32_t>(value.i64));
    case Dtype::kI16:
      return put(memory, index, static_cast<std::uint16_t>(value.i64));
    case Dtype::kBool:
      return put(memory, index, value.b8);
    default:
      return put(memory, index, static_cast<std::uint8_t>(value.i64));
  }
}

Scalar apply(Op op, Lane lane, Lane to, Dtype dtype, const Scalar* in) {
  Scalar out{};
  switch (op) {
    case Op::kEq:
    case Op::kNe:
    case Op::kLt:
    case Op::kLe:
      out.b8 = lane == Lane::kF32   ? compare(op, in[0].f32, in[1].f32)
               : lane == Lane::kF64 ? compare(op, in[0].f64, in[1].f64)
               : lane == Lane::kI64 ? compare(op, in[0].i64, in[1].i64)
                                    : compare(op, in[0].b8, in[1].b8);
      return out;
    case Op::kSelect:
      return in[0].b8 ? in[1] : in[2];
    case Op::kCast:
      return cast(lane, to, dtype == Dtype::kI32, in[0]);
    case Op::kRound:
      if (dtype == Dtype::kBF16 || dtype == Dtype::kF16) {
        out.f32 = static_cast<float>(rounded(dtype, in[0].f32));
        return out;
      }
      if (lane == Lane::kI64) {
        out.i64 = wrapped(dtype, in[0].i64);
        return out;
      }
      return in[0];
    default:
      break;
  }
  switch (lane) {
    case Lane::kF32:
      out.f32 = arithmetic<float>(op, in[0].f32, in[1].f32, in[2].f32);
      break;
    case Lane::kF64:
      out.f64 = arithmetic<double>(op, in[0].f64, in[1].f64, in[2].f64);
      break;
    case Lane::kI64:
      out.i64 = arithmetic(op, in[0].i64, in[1].i64, in[2].i64);
      break;
    default:
      out.b8 = op == Op::kNot ? !in[0].b8 : static_cast<std::uint8_t>(arithmetic(op, in[0].b8, in[1].b8, 0));
  }
  return out;
}

bool same(Lane lane, Scalar a, Scalar b) {
  switch (lane) {
    case Lane::kF32:
      return (a.f32 != a.f32 && b.f32 != b.f32) ||
             std::bit_cast<std::uint32_t>(a.f32) == std::bit_cast<std::uint32_t>(b.f32);
    case Lane::kF64:
      return (a.f64 != a.f64 && b.f64 != b.f64) ||
             std::bit_cast<std::uint64_t>(a.f64) == std::bit_cast<std::uint64_t>(b.f64);
    case Lane::kI64:
      return a.i64 == b.i64;
    default:
      return a.b8 == b.b8;
  }
}

bool same_memory(Dtype dtype, const void* a, const void* b, std::int64_t index) {
  return same(lane_of(dtype), load(dtype, a, index), load(dtype, b, index));
}

const std::vector<double>& edges() {
  static const std::vector<double> values = [] {
    std::vector<double> v;
    const double magnitudes[] = {0,
                                 1,
                                 0.5,
                                 1.5,
                                 2.5,
                                 3.999,
                                 127,
                                 128,
                                 255.5,
                                 256,
                                 2048.5,
                                 65504,
                                 65519.99,
                                 65520,
                                 1e9,
                                 2147483647,
                                 2147483648.0,
                                 4294967296.0,
                                 9.2233720368547748e18,
                                 9.3e18,
                                 3.3895314e38,
                                 3.4028235e38,
                                 1e39,
                                 1e300,
                                 1e-3,
                                 6.1035156e-05,
                                 6.0e-05,
                                 5.9604645e-08,
                                 2.9802322e-08,
                                 2.98e-08,
                                 1.1754944e-38,
                                 1e-40,
                                 1.4e-45,
                                 1e-310,
                                 1.00390625,
                                 1.01171875,
                                 std::numeric_limits<double>::infinity()};
    for (const double m : magnitudes) {
      v.push_back(m);
      v.push_back(-m);
    }
    v.push_back(std::numeric_limits<double>::quiet_NaN());
    return v;
  }();
  return values;
}

Scalar random_number(Lane lane, std::mt19937& random) {
  const bool edge = random() % 4 == 0;
  const double tame = (static_cast<double>(random()) / 4294967296.0 - 0.5) * (random() % 3 ? 4 : 2000);
  const double value = edge ? edges()[random() % edges().size()] : tame;
  Scalar s{};
  switch (lane) {
    case Lane::kF32:
      s.f32 = static_cast<float>(value);
      break;
    case Lane::kF64:
      s.f64 = value;
      break;
    case Lane::kI64:
      s.i64 = edge ? truncated(value, 64) : static_cast<std::int64_t>(tame);
      break;
    default:
      s.b8 = random() & 1;
  }
  return s;
}

}  // namespace reference
