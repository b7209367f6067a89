#include "eager/fusion/scalars.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstring>

namespace neuron::eager::fusion {

namespace {

using c10::ScalarType;
using engines::Lane;
using engines::Scalar;

template <class T>
T read_as(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

// A number before it takes the format of its lane: exact, as an integer or as a double.
struct Exact {
  bool integer;
  std::int64_t i;
  double d;
  double as_double() const { return integer ? static_cast<double>(i) : d; }
  std::int64_t as_integer() const { return integer ? i : static_cast<std::int64_t>(d); }
};

Exact exact(const NumberSource& source, OpPayload& payload) {
  if (source.kind == NumberSource::Kind::kLiteral) return {false, 0, source.literal};
  if (source.kind == NumberSource::Kind::kNumber) {
    const Number& number = payload.numbers()[source.index];
    if (number.type == Number::Type::kDouble) return {false, 0, number.real[0]};
    return {true, number.type == Number::Type::kBool ? number.integer != 0 : number.integer, 0};
  }
  const std::byte* p = payload.tensors()[source.index].value;
  switch (source.type) {
    case ScalarType::Double:
      return {false, 0, read_as<double>(p)};
    case ScalarType::Float:
      return {false, 0, read_as<float>(p)};
    case ScalarType::BFloat16:
      return {false, 0, static_cast<float>(read_as<c10::BFloat16>(p))};
    case ScalarType::Half:
      return {false, 0, static_cast<float>(read_as<c10::Half>(p))};
    case ScalarType::Long:
      return {true, read_as<std::int64_t>(p), 0};
    case ScalarType::Int:
      return {true, read_as<std::int32_t>(p), 0};
    case ScalarType::Short:
      return {true, read_as<std::int16_t>(p), 0};
    case ScalarType::Char:
      return {true, read_as<std::int8_t>(p), 0};
    case ScalarType::Byte:
      return {true, read_as<std::uint8_t>(p), 0};
    default:
      return {true, read_as<bool>(p), 0};
  }
}

float to_float(Exact value, const NumberSource& source) {
  if (source.negated && value.integer) value.i = -value.i;  // there is no negative integer zero
  float f = value.integer ? static_cast<float>(value.i) : static_cast<float>(value.d);
  if (source.round_to == ScalarType::BFloat16) f = c10::BFloat16(f);
  if (source.round_to == ScalarType::Half) f = c10::Half(f);
  if (source.negated && !value.integer) f = -f;
  return source.offset == 0 ? f : f + static_cast<float>(source.offset);  // -0 stays -0
}

std::int64_t to_integer(const Exact& value, const NumberSource& source) {
  std::int64_t i = value.as_integer();
  if (source.round_to == ScalarType::Int) i = static_cast<std::int32_t>(i);
  if (source.round_to == ScalarType::Short) i = static_cast<std::int16_t>(i);
  if (source.round_to == ScalarType::Char) i = static_cast<std::int8_t>(i);
  if (source.round_to == ScalarType::Byte) i = static_cast<std::uint8_t>(i);
  return source.negated ? -i : i;
}

}  // namespace

Scalar scalar(const NumberSource& source, OpPayload& payload) {
  const Exact value = exact(source, payload);
  Scalar s{};
  switch (source.lane) {
    case Lane::kF32:
      s.f32 = to_float(value, source);
      break;
    case Lane::kF64:
      s.f64 = value.as_double();
      if (source.negated) s.f64 = value.integer ? static_cast<double>(-value.i) : -s.f64;
      if (source.offset != 0) s.f64 += source.offset;
      break;
    case Lane::kI64:
      s.i64 = to_integer(value, source);
      break;
    case Lane::kB8:
      s.b8 = value.integer ? value.i != 0 : value.d != 0;
      break;
  }
  return s;
}

}  // namespace neuron::eager::fusion
