// Pointwise ops: what ATen's CPU kernels compute, rounding by rounding (tests/test_adaptive_programs.py holds each
// against them bit for bit). Not here, and so never fused by eager:
//  - maximum and minimum of floating-point tensors, hardtanh_backward: ATen's vector code and the scalar code for what
//  is
//    left over disagree about signed zeros and NaN;
//  - add and sub with an alpha other than 1 in bf16 and fp16, or with a broadcast `other`: likewise, about rounding;
//  - remainder, floor_divide, fmod: integers may raise; atan2, hypot and other functions that models hardly use.
#include <cmath>

#include "eager/fusion/recipe_parts.h"

namespace neuron::eager::fusion {

namespace {

using c10::ScalarType;
using engines::Function;
using engines::Op;

// -- a + alpha * b and its kin --

bool broadcasts(const Builder& b, int tensor) { return b.repeats(tensor); }

Typed add_scaled(Builder& b, ScalarType type, int self, int other, int alpha, bool subtract) {
  const bool bools = b.type(self) == ScalarType::Bool || b.type(other) == ScalarType::Bool;
  if (type == ScalarType::Bool || (subtract && bools)) throw Builder::Unfusable{};
  if (!is_floating(type) && !b.is_integer(alpha)) throw Builder::Unfusable{};
  const Typed x = operand(b, self, type, true), y = operand(b, other, type, true);
  if (b.number_value(alpha) == 1) return b.op(subtract ? Op::kSub : Op::kAdd, x, y);
  if (is_reduced(type) || broadcasts(b, other) || b.meta(other).on_cpu) throw Builder::Unfusable{};
  const Typed a = b.number(alpha, type);
  if (!is_floating(type)) return b.op(subtract ? Op::kSub : Op::kAdd, x, b.round(b.op(Op::kMul, y, a)));
  return b.op(Op::kFma, y, subtract ? b.negated(a) : a, x);
}

template <bool subtract>
void add(Builder& b) {
  Target target(b);
  const int self = b.tensor(0), other = b.tensor(1);
  target.store(add_scaled(b, b.result_type({self, other}), self, other, 2, subtract));
}

void rsub(Builder& b) {
  Target target(b);
  const int self = b.tensor(0);
  const auto type = b.result_type({self}, {1});
  const bool bools = b.type(self) == ScalarType::Bool || b.is_bool(1);
  if (bools || (!is_floating(type) && !b.is_integer(2)) || b.number_value(2) != 1) throw Builder::Unfusable{};
  target.store(b.op(Op::kSub, b.number_rounded(1, type), b.load_as(self, type)));
}

// Which alpha: a variant for 1, one for the rest.
int is_alpha_one(const Number* numbers) {
  const auto& alpha = numbers[0];
  return alpha.type == Number::Type::kDouble ? alpha.real[0] != 1.0 : alpha.integer != 1;
}
int is_second_one(const Number* numbers) { return is_alpha_one(numbers + 1); }

void mul(Builder& b) {
  Target target(b);
  const int self = b.tensor(0), other = b.tensor(1);
  const auto type = b.result_type({self, other});
  const Typed x = operand(b, self, type, true), y = operand(b, other, type, false);
  target.store(b.op(type == ScalarType::Bool ? Op::kAnd : Op::kMul, x, y));
}

void div(Builder& b) {
  Target target(b);
  const int self = b.tensor(0), other = b.tensor(1);
  auto type = b.result_type({self, other});
  if (!is_floating(type)) type = b.default_type();
  target.store(b.op(Op::kDiv, operand(b, self, type, true), operand(b, other, type, false)));
}

void addcmul(Builder& b) {
  Target target(b);
  const int self = b.tensor(0), t1 = b.tensor(1), t2 = b.tensor(2);
  const auto type = b.result_type({self, t1, t2});
  if (!is_floating(type)) throw Builder::Unfusable{};
  const Typed scaled = b.op(Op::kMul, b.number(3, type), b.load_as(t1, type));
  target.store(b.op(Op::kFma, scaled, b.load_as(t2, type), b.load_as(self, type)));
}

void addcdiv(Builder& b) {
  Target target(b);
  const int self = b.tensor(0), t1 = b.tensor(1), t2 = b.tensor(2);
  const auto type = b.result_type({self, t1, t2});
  const bool divides_integers = !is_floating(b.type(t1)) && !is_floating(b.type(t2));
  if (!is_floating(type) || divides_integers) throw Builder::Unfusable{};
  const Typed scaled = b.op(Op::kMul, b.number(3, type), b.load_as(t1, type));
  target.store(b.op(Op::kAdd, b.load_as(self, type), b.op(Op::kDiv, scaled, b.load_as(t2, type))));
}

Typed lerp_by(Builder& b, Typed x, Typed y, Typed weight, bool small) {
  const Typed difference = b.op(Op::kSub, y, x);
  if (small) return b.op(Op::kFma, weight, difference, x);
  return b.op(Op::kFma, b.plus(weight, -1), difference, y);
}

bool is_small(double weight, ScalarType type) {
  return type == ScalarType::Double ? std::abs(weight) < 0.5 : std::abs(static_cast<float>(weight)) < 0.5f;
}
int is_weight_large(const Number* numbers) {
  const double weight =
      numbers[0].type == Number::Type::kDouble ? numbers[0].real[0] : static_cast<double>(numbers[0].integer);
  // 2: too near to the border for one answer in all types.
  if (is_small(weight, ScalarType::Double) != is_small(weight, ScalarType::Float)) return -1;
  return !is_small(weight, ScalarType::Double);
}

void lerp_scalar(Builder& b) {
  Target target(b);
  const int self = b.tensor(0), end = b.tensor(1);
  const auto type = b.type(self);
  if (!is_floating(type) || b.type(end) != type || b.meta(end).on_cpu) throw Builder::Unfusable{};
  target.store(
      lerp_by(b, b.load_as(self, type), b.load_as(end, type), b.number(2, type), is_small(b.number_value(2), type)));
}

// -- Powers and roots --

Typed square_root(Builder& b, Typed x) { return is_reduced(x.type) ? b.op(Op::kSqrt, x) : b.call(Function::kSqrt, x); }

Typed reciprocal_root(Builder& b, Typed x) {
  if (is_reduced(x.type)) return b.call(Function::kRsqrt, x);
  return b.op(Op::kDiv, b.literal(1, x.type), b.op(Op::kSqrt, x));
}

int which_power(const Number* numbers) {
  const double e =
      numbers[0].type == Number::Type::kDouble ? numbers[0].real[0] : static_cast<double>(numbers[0].integer);
  const bool integer = numbers[0].type != Number::Type::kDouble;
  for (int i = 0; const double known : {2.0, 3.0, 0.5, -0.5, -1.0, -2.0})
    if (++i; e == known) return 2 * i + integer;
  return -1;
}

void pow_scalar(Builder& b) {
  Target target(b);
  const int self = b.tensor(0);
  const auto type = b.result_type({self}, {1});
  if (type != b.type(self)) throw Builder::Unfusable{};
  const double e = b.number_value(1);
  const Typed x = b.load(self);
  const bool bf16 = type == ScalarType::BFloat16, half = type == ScalarType::Half;
  const auto square = [&] {
    const Typed product = b.op(Op::kMul, x, x);
    return bf16 || !is_floating(type) ? b.round(product) : product;
  };
  const auto inverse = [&](Typed y) { return b.op(Op::kDiv, b.literal(1, type), y); };
  if (!is_floating(type) && (e < 0 || e != std::floor(e))) throw Builder::Unfusable{};
  if (type == ScalarType::Bool) throw Builder::Unfusable{};
  if (e == 2)
    target.store(b.op(Op::kMul, x, x));
  else if (e == 3)
    target.store(b.op(Op::kMul, square(), x));
  else if (e == -1)
    target.store(inverse(x));
  else if (e == -2)
    target.store(inverse(square()));
  else if (half)
    throw Builder::Unfusable{};
  else if (e == 0.5)
    target.store(square_root(b, x));
  else
    target.store(reciprocal_root(b, x));
}

// -- One operand --

// The kernel's type: the tensor's, or the default one for integers.
Typed floating(Builder& b) {
  const int self = b.tensor(0);
  const auto type = b.type(self);
  return is_floating(type) ? b.load(self) : b.load_as(self, b.default_type());
}

template <Function function>
void function_of(Builder& b) {
  Target target(b);
  target.store(b.call(function, floating(b)));
}

void silu(Builder& b) {  // of floating-point tensors only
  Target target(b);
  target.store(b.call(Function::kSilu, b.load(b.tensor(0))));
}

void gelu(Builder& b) {
  Target target(b);
  const bool tanh = b.constant(1).toStringRef() == "tanh";
  target.store(b.call(tanh ? Function::kGeluTanh : Function::kGelu, b.load(b.tensor(0))));
}

void sqrt(Builder& b) {
  Target target(b);
  target.store(square_root(b, floating(b)));
}
void rsqrt(Builder& b) {
  Target target(b);
  target.store(reciprocal_root(b, floating(b)));
}
void reciprocal(Builder& b) {
  Target target(b);
  const Typed x = floating(b);
  target.store(b.op(Op::kDiv, b.literal(1, x.type), x));
}
template <Op op>
void exact(Builder& b) {
  Target target(b);
  const Typed x = b.load(b.tensor(0));
  if (x.type == ScalarType::Bool) throw Builder::Unfusable{};
  const bool rounds_integers = op == Op::kFloor || op == Op::kCeil || op == Op::kTrunc || op == Op::kNearest;
  if (rounds_integers && !is_floating(x.type)) throw Builder::Unfusable{};
  target.store(b.op(op, x));
}

void relu(Builder& b) {
  Target target(b);
  const Typed x = b.load(b.tensor(0));
  if (x.type == ScalarType::Bool) throw Builder::Unfusable{};
  target.store(b.op(Op::kMax, b.literal(0, x.type), x));
}

void logical_not(Builder& b) {
  Target target(b);
  const Typed x = b.load(b.tensor(0));
  target.store(x.type == ScalarType::Bool ? b.op(Op::kNot, x) : b.compare(Op::kEq, x, b.literal(0, x.type)));
}

void bitwise_not(Builder& b) {
  Target target(b);
  const Typed x = b.load(b.tensor(0));
  if (is_floating(x.type)) throw Builder::Unfusable{};
  target.store(b.op(Op::kNot, x));
}

// -- Copies and fills --

// ATen converts out-of-range floating-point numbers to int32 and narrower by way of int32.
void refuse_narrowing(ScalarType from, ScalarType to) {
  if (is_floating(from) && !is_floating(to) && to != ScalarType::Long && to != ScalarType::Bool)
    throw Builder::Unfusable{};
}

void copy_(Builder& b) {
  const int self = b.tensor(0), source = b.tensor(1);
  b.begin(self);
  if (b.meta(source).on_cpu) throw Builder::Unfusable{};
  refuse_narrowing(b.type(source), b.type(self));
  Typed value = b.load(source);
  if (is_reduced(b.type(self)) && value.type == ScalarType::Double) value = b.convert(value, ScalarType::Float);
  b.store(self, value);
}

void clone(Builder& b) {
  b.begin_out();
  b.store_out(b.load(b.tensor(0)));
}

void fill_(Builder& b) {
  Target target(b);
  target.store(b.number_rounded(1, target.type));
}
void zero_(Builder& b) {
  Target target(b);
  target.store(b.literal(0, target.type));
}

const bool g_registered = [] {
  register_fusable({"add.Tensor", "add_.Tensor"}, {&add<false>, &is_alpha_one, Prediction::kCommon});
  register_fusable({"sub.Tensor", "sub_.Tensor"}, {&add<true>, &is_alpha_one, Prediction::kCommon});
  register_fusable({"rsub.Scalar"}, {&rsub, &is_second_one, Prediction::kWithNumber});
  register_fusable({"mul.Tensor", "mul_.Tensor"}, {&mul, nullptr, Prediction::kCommon});
  register_fusable({"div.Tensor", "div_.Tensor"}, {&div, nullptr, Prediction::kFloating});
  register_fusable({"addcmul", "addcmul_"}, {&addcmul, nullptr, Prediction::kCommon});
  register_fusable({"addcdiv", "addcdiv_"}, {&addcdiv, nullptr, Prediction::kCommon});
  register_fusable({"lerp.Scalar", "lerp_.Scalar"}, {&lerp_scalar, &is_weight_large, Prediction::kFirst});
  register_fusable({"pow.Tensor_Scalar", "pow_.Scalar"}, {&pow_scalar, &which_power, Prediction::kWithNumber});

  register_fusable({"exp", "exp_"}, {&function_of<Function::kExp>, nullptr, Prediction::kFloating});
  register_fusable({"exp2", "exp2_"}, {&function_of<Function::kExp2>, nullptr, Prediction::kFloating});
  register_fusable({"expm1", "expm1_"}, {&function_of<Function::kExpm1>, nullptr, Prediction::kFloating});
  register_fusable({"log", "log_"}, {&function_of<Function::kLog>, nullptr, Prediction::kFloating});
  register_fusable({"log2", "log2_"}, {&function_of<Function::kLog2>, nullptr, Prediction::kFloating});
  register_fusable({"log10", "log10_"}, {&function_of<Function::kLog10>, nullptr, Prediction::kFloating});
  register_fusable({"log1p", "log1p_"}, {&function_of<Function::kLog1p>, nullptr, Prediction::kFloating});
  register_fusable({"sin", "sin_"}, {&function_of<Function::kSin>, nullptr, Prediction::kFloating});
  register_fusable({"cos", "cos_"}, {&function_of<Function::kCos>, nullptr, Prediction::kFloating});
  register_fusable({"tan", "tan_"}, {&function_of<Function::kTan>, nullptr, Prediction::kFloating});
  register_fusable({"tanh", "tanh_"}, {&function_of<Function::kTanh>, nullptr, Prediction::kFloating});
  register_fusable({"atan", "atan_"}, {&function_of<Function::kAtan>, nullptr, Prediction::kFloating});
  register_fusable({"erf", "erf_"}, {&function_of<Function::kErf>, nullptr, Prediction::kFloating});
  register_fusable({"erfc", "erfc_"}, {&function_of<Function::kErfc>, nullptr, Prediction::kFloating});
  register_fusable({"sigmoid", "sigmoid_"}, {&function_of<Function::kSigmoid>, nullptr, Prediction::kFloating});
  register_fusable({"silu", "silu_"}, {&silu, nullptr, Prediction::kFirst});
  register_fusable({"gelu", "gelu_"}, {&gelu, nullptr, Prediction::kFirst});
  register_fusable({"sqrt", "sqrt_"}, {&sqrt, nullptr, Prediction::kFloating});
  register_fusable({"rsqrt", "rsqrt_"}, {&rsqrt, nullptr, Prediction::kFloating});
  register_fusable({"reciprocal", "reciprocal_"}, {&reciprocal, nullptr, Prediction::kFloating});
  register_fusable({"neg", "neg_"}, {&exact<Op::kNeg>, nullptr, Prediction::kFirst});
  register_fusable({"abs", "abs_"}, {&exact<Op::kAbs>, nullptr, Prediction::kFirst});
  register_fusable({"floor", "floor_"}, {&exact<Op::kFloor>, nullptr, Prediction::kFirst});
  register_fusable({"ceil", "ceil_"}, {&exact<Op::kCeil>, nullptr, Prediction::kFirst});
  register_fusable({"trunc", "trunc_"}, {&exact<Op::kTrunc>, nullptr, Prediction::kFirst});
  register_fusable({"round", "round_"}, {&exact<Op::kNearest>, nullptr, Prediction::kFirst});
  register_fusable({"relu", "relu_"}, {&relu, nullptr, Prediction::kFirst});
  register_fusable({"logical_not", "logical_not_"}, {&logical_not, nullptr, Prediction::kBool});
  register_fusable({"bitwise_not", "bitwise_not_"}, {&bitwise_not});

  register_fusable({"copy_"}, {&copy_});
  register_fusable({"clone"}, {&clone});
  register_fusable({"fill_.Scalar"}, {&fill_});
  register_fusable({"zero_"}, {&zero_});
  return true;
}();

}  // namespace

}  // namespace neuron::eager::fusion
