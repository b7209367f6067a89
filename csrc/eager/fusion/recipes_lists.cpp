// `_foreach_` ops: a piece for each element of the list, which does what the op on that element alone would do.
#include <cmath>

#include "eager/fusion/recipe_parts.h"

namespace neuron::eager::fusion {

namespace {

using c10::ScalarType;
using engines::Function;
using engines::Op;

ScalarType floating_type(const Builder& b, int tensor) {
  const auto type = b.type(tensor);
  if (!c10::isFloatingType(type)) throw Builder::Unfusable{};
  return type;
}

// Lists whose elements differ in type are left to ATen.
void require_type(const Builder& b, int tensor, ScalarType type) {
  if (b.type(tensor) != type) throw Builder::Unfusable{};
}

template <class F>
void for_each(Builder& b, F&& f) {
  for (int i = 0; i < b.list_size(0); ++i) {
    const int self = b.tensor(0, i);
    b.in_place() ? b.begin(self) : b.begin_out(i);
    const Typed value = f(i, self, floating_type(b, self));
    b.in_place() ? b.store(self, value) : b.store_out(value, i);
  }
}

// Do kernels of reduced types round a scalar to their type first? The in-place product does, other than that of one
// tensor and a scalar.
template <Op op>
bool rounds_scalar(const Builder& b) {
  return op == Op::kAdd || op == Op::kSub || (op == Op::kMul && b.in_place());
}

template <Op op>
void with_scalar(Builder& b) {
  const bool rounds = rounds_scalar<op>(b);
  for_each(b, [&](int, int self, ScalarType type) {
    return b.op(op, b.load(self), rounds ? b.number_rounded(1, type) : b.number(1, type));
  });
}

template <Op op>
void with_scalars(Builder& b) {
  const bool rounds = rounds_scalar<op>(b);
  for_each(b, [&](int i, int self, ScalarType type) {
    return b.op(op, b.load(self), rounds ? b.number_rounded(1, type, i) : b.number(1, type, i));
  });
}

template <Op op>
void with_list(Builder& b) {
  for_each(b, [&](int i, int self, ScalarType type) {
    require_type(b, b.tensor(1, i), type);
    return b.op(op, b.load(self), b.load(b.tensor(1, i)));
  });
}

template <bool subtract>
void add_list(Builder& b) {
  for_each(b, [&](int i, int self, ScalarType type) {
    const int other = b.tensor(1, i);
    require_type(b, other, type);
    if (b.number_value(2) == 1) return b.op(subtract ? Op::kSub : Op::kAdd, b.load(self), b.load(other));
    if (is_reduced(type) || b.repeats(other)) throw Builder::Unfusable{};
    const Typed alpha = b.number(2, type);
    return b.op(Op::kFma, b.load(other), subtract ? b.negated(alpha) : alpha, b.load(self));
  });
}

int is_alpha_one(const Number* numbers) {
  return numbers[0].type == Number::Type::kDouble ? numbers[0].real[0] != 1.0 : numbers[0].integer != 1;
}

template <bool divides, bool list_of_values>
void addc(Builder& b) {
  for_each(b, [&](int i, int self, ScalarType type) {
    const int t1 = b.tensor(1, i), t2 = b.tensor(2, i);
    require_type(b, t1, type);
    require_type(b, t2, type);
    const Typed scaled = b.op(Op::kMul, b.number(3, type, list_of_values ? i : 0), b.load(t1));
    if constexpr (divides) return b.op(Op::kAdd, b.load(self), b.op(Op::kDiv, scaled, b.load(t2)));
    return b.op(Op::kFma, scaled, b.load(t2), b.load(self));
  });
}

int is_weight_large(const Number* numbers) {
  if (numbers[0].type != Number::Type::kDouble) return -1;
  const double weight = std::abs(numbers[0].real[0]);
  if ((weight < 0.5) != (static_cast<float>(weight) < 0.5f)) return -1;
  return weight >= 0.5 || std::isnan(weight);
}

void lerp(Builder& b) {
  for_each(b, [&](int i, int self, ScalarType type) {
    const int end = b.tensor(1, i);
    require_type(b, end, type);
    const Typed x = b.load(self), y = b.load(end), weight = b.number(2, type);
    const Typed difference = b.op(Op::kSub, y, x);
    if (std::abs(b.number_value(2)) < 0.5) return b.op(Op::kFma, weight, difference, x);
    return b.op(Op::kFma, b.plus(weight, -1), difference, y);
  });
}

void sqrt(Builder& b) {
  for_each(b, [&](int, int self, ScalarType type) {
    return is_reduced(type) ? b.op(Op::kSqrt, b.load(self)) : b.call(Function::kSqrt, b.load(self));
  });
}

template <Op op>
void exact(Builder& b) {
  for_each(b, [&](int, int self, ScalarType) { return b.op(op, b.load(self)); });
}

void reciprocal(Builder& b) {
  for_each(b, [&](int, int self, ScalarType type) { return b.op(Op::kDiv, b.literal(1, type), b.load(self)); });
}

void zero_(Builder& b) {
  for_each(b, [&](int, int, ScalarType type) { return b.literal(0, type); });
}

void copy_(Builder& b) {
  for_each(b, [&](int i, int, ScalarType type) {
    require_type(b, b.tensor(1, i), type);
    return b.load(b.tensor(1, i));
  });
}

const bool g_registered = [] {
  register_fusable({"_foreach_add.Scalar", "_foreach_add_.Scalar"}, {&with_scalar<Op::kAdd>});
  register_fusable({"_foreach_sub.Scalar", "_foreach_sub_.Scalar"}, {&with_scalar<Op::kSub>});
  register_fusable({"_foreach_mul.Scalar", "_foreach_mul_.Scalar"}, {&with_scalar<Op::kMul>});
  register_fusable({"_foreach_div.Scalar", "_foreach_div_.Scalar"}, {&with_scalar<Op::kDiv>});
  register_fusable({"_foreach_mul.ScalarList", "_foreach_mul_.ScalarList"}, {&with_scalars<Op::kMul>});
  register_fusable({"_foreach_div.ScalarList", "_foreach_div_.ScalarList"}, {&with_scalars<Op::kDiv>});
  register_fusable({"_foreach_add.ScalarList", "_foreach_add_.ScalarList"}, {&with_scalars<Op::kAdd>});
  register_fusable({"_foreach_mul.List", "_foreach_mul_.List"}, {&with_list<Op::kMul>});
  register_fusable({"_foreach_div.List", "_foreach_div_.List"}, {&with_list<Op::kDiv>});
  register_fusable({"_foreach_add.List", "_foreach_add_.List"}, {&add_list<false>, &is_alpha_one});
  register_fusable({"_foreach_sub.List", "_foreach_sub_.List"}, {&add_list<true>, &is_alpha_one});
  register_fusable({"_foreach_addcmul.Scalar", "_foreach_addcmul_.Scalar"}, {&addc<false, false>});
  register_fusable({"_foreach_addcmul.ScalarList", "_foreach_addcmul_.ScalarList"}, {&addc<false, true>});
  register_fusable({"_foreach_addcdiv.Scalar", "_foreach_addcdiv_.Scalar"}, {&addc<true, false>});
  register_fusable({"_foreach_addcdiv.ScalarList", "_foreach_addcdiv_.ScalarList"}, {&addc<true, true>});
  register_fusable({"_foreach_lerp.Scalar", "_foreach_lerp_.Scalar"}, {&lerp, &is_weight_large});
  register_fusable({"_foreach_sqrt", "_foreach_sqrt_"}, {&sqrt});
  register_fusable({"_foreach_neg", "_foreach_neg_"}, {&exact<Op::kNeg>});
  register_fusable({"_foreach_abs", "_foreach_abs_"}, {&exact<Op::kAbs>});
  register_fusable({"_foreach_reciprocal", "_foreach_reciprocal_"}, {&reciprocal});
  register_fusable({"_foreach_zero_"}, {&zero_});
  register_fusable({"_foreach_copy_"}, {&copy_});
  return true;
}();

}  // namespace

}  // namespace neuron::eager::fusion
