// Comparison, logic and choice.
#include "eager/fusion/recipe_parts.h"

namespace neuron::eager::fusion {

namespace {

using c10::ScalarType;
using engines::Op;

// There are no comparisons of registers of bools.
ScalarType compared_type(ScalarType type) { return type == ScalarType::Bool ? ScalarType::Long : type; }

template <Op op, bool swapped>
void compare_tensors(Builder& b) {
  Target target(b);
  const int self = b.tensor(0), other = b.tensor(1);
  const auto type = compared_type(b.result_type({self, other}));
  const Typed x = operand(b, self, type, true), y = operand(b, other, type, true);
  target.store(swapped ? b.compare(op, y, x) : b.compare(op, x, y));
}

template <Op op, bool swapped>
void compare_scalar(Builder& b) {
  Target target(b);
  const int self = b.tensor(0);
  const auto type = compared_type(b.result_type({self}, {1}));
  const Typed x = b.load_as(self, type), y = b.number_rounded(1, type);
  target.store(swapped ? b.compare(op, y, x) : b.compare(op, x, y));
}

template <Op op>
void logical(Builder& b) {
  Target target(b);
  const auto truth = [&](int tensor) {
    const Typed x = b.load(tensor);
    return x.type == ScalarType::Bool ? x : b.compare(Op::kNe, x, b.literal(0, x.type));
  };
  target.store(b.op(op, truth(b.tensor(0)), truth(b.tensor(1))));
}

template <Op op>
void bitwise(Builder& b) {
  Target target(b);
  const int self = b.tensor(0), other = b.tensor(1);
  const auto type = b.result_type({self, other});
  if (is_floating(type)) throw Builder::Unfusable{};
  target.store(b.op(op, b.load_as(self, type), b.load_as(other, type)));
}

void where(Builder& b) {
  Target target(b);
  const int condition = b.tensor(0), self = b.tensor(1), other = b.tensor(2);
  if (b.type(condition) != ScalarType::Bool) throw Builder::Unfusable{};
  const auto type = b.result_type({self, other});
  target.store(b.select(b.load(condition), operand(b, self, type, true), operand(b, other, type, true)));
}

void masked_fill(Builder& b) {
  Target target(b);
  const int self = b.tensor(0), mask = b.tensor(1);
  const auto type = b.type(self);
  if (b.type(mask) != ScalarType::Bool || b.repeats(self)) throw Builder::Unfusable{};
  target.store(b.select(b.load(mask), b.number_rounded(2, type), b.load(self)));
}

void clamp(Builder& b) {
  Target target(b);
  const int self = b.tensor(0);
  const auto type = target.type;
  Typed x = b.load_as(self, type);
  if (type == ScalarType::Bool) throw Builder::Unfusable{};
  if (b.has_number(1)) x = b.op(Op::kMax, b.number_rounded(1, type), x);
  if (b.has_number(2)) x = b.op(Op::kMin, b.number_rounded(2, type), x);
  if (!b.has_number(1) && !b.has_number(2)) throw Builder::Unfusable{};
  target.store(x);
}
template <Op op>
void clamp_side(Builder& b) {
  Target target(b);
  const auto type = target.type;
  if (type == ScalarType::Bool) throw Builder::Unfusable{};
  target.store(b.op(op, b.number_rounded(1, type), b.load_as(b.tensor(0), type)));
}

template <Op op>
void extremum(Builder& b) {
  Target target(b);
  const int self = b.tensor(0), other = b.tensor(1);
  const auto type = b.result_type({self, other});
  if (is_floating(type) || type == ScalarType::Bool) throw Builder::Unfusable{};
  target.store(b.op(op, b.load_as(self, type), b.load_as(other, type)));
}

const bool g_registered = [] {
  register_fusable({"eq.Tensor"}, {&compare_tensors<Op::kEq, false>, nullptr, Prediction::kBool});
  register_fusable({"ne.Tensor"}, {&compare_tensors<Op::kNe, false>, nullptr, Prediction::kBool});
  register_fusable({"lt.Tensor"}, {&compare_tensors<Op::kLt, false>, nullptr, Prediction::kBool});
  register_fusable({"le.Tensor"}, {&compare_tensors<Op::kLe, false>, nullptr, Prediction::kBool});
  register_fusable({"gt.Tensor"}, {&compare_tensors<Op::kLt, true>, nullptr, Prediction::kBool});
  register_fusable({"ge.Tensor"}, {&compare_tensors<Op::kLe, true>, nullptr, Prediction::kBool});
  register_fusable({"eq.Scalar"}, {&compare_scalar<Op::kEq, false>, nullptr, Prediction::kBool});
  register_fusable({"ne.Scalar"}, {&compare_scalar<Op::kNe, false>, nullptr, Prediction::kBool});
  register_fusable({"lt.Scalar"}, {&compare_scalar<Op::kLt, false>, nullptr, Prediction::kBool});
  register_fusable({"le.Scalar"}, {&compare_scalar<Op::kLe, false>, nullptr, Prediction::kBool});
  register_fusable({"gt.Scalar"}, {&compare_scalar<Op::kLt, true>, nullptr, Prediction::kBool});
  register_fusable({"ge.Scalar"}, {&compare_scalar<Op::kLe, true>, nullptr, Prediction::kBool});
  register_fusable({"logical_and"}, {&logical<Op::kAnd>, nullptr, Prediction::kBool});
  register_fusable({"logical_or"}, {&logical<Op::kOr>, nullptr, Prediction::kBool});
  register_fusable({"logical_xor"}, {&logical<Op::kXor>, nullptr, Prediction::kBool});
  register_fusable({"bitwise_and.Tensor", "bitwise_and_.Tensor"}, {&bitwise<Op::kAnd>});
  register_fusable({"bitwise_or.Tensor", "bitwise_or_.Tensor"}, {&bitwise<Op::kOr>});
  register_fusable({"bitwise_xor.Tensor", "bitwise_xor_.Tensor"}, {&bitwise<Op::kXor>});
  register_fusable({"where.self"}, {&where, nullptr, Prediction::kChosen});
  register_fusable({"masked_fill.Scalar", "masked_fill_.Scalar"}, {&masked_fill});
  register_fusable({"clamp", "clamp_"}, {&clamp});
  register_fusable({"clamp_min", "clamp_min_"}, {&clamp_side<Op::kMax>});
  register_fusable({"clamp_max", "clamp_max_"}, {&clamp_side<Op::kMin>});
  register_fusable({"maximum"}, {&extremum<Op::kMax>});
  register_fusable({"minimum"}, {&extremum<Op::kMin>});
  return true;
}();

}  // namespace

}  // namespace neuron::eager::fusion
