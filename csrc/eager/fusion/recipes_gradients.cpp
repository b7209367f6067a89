// Dropout, and gradients of activations.
#include "eager/fusion/recipe_parts.h"

namespace neuron::eager::fusion {

namespace {

using c10::ScalarType;
using engines::Function;
using engines::Op;

void threshold_backward(Builder& b) {
  Target target(b);
  const int gradient = b.tensor(0), self = b.tensor(1);
  const auto type = b.result_type({gradient, self});
  if (type != b.type(gradient) || type != b.type(self)) throw Builder::Unfusable{};
  const Typed passes = b.compare(Op::kLe, b.load(self), b.number(2, type));
  target.store(b.select(passes, b.literal(0, type), b.load(gradient)));
}

void sigmoid_backward(Builder& b) {
  Target target(b);
  const int gradient = b.tensor(0), output = b.tensor(1);
  const auto type = b.type(gradient);
  if (!is_floating(type) || type != b.type(output)) throw Builder::Unfusable{};
  const bool half = type == ScalarType::Half;
  const auto rounded = [&](Typed v) { return half ? b.round(v) : v; };
  const Typed y = b.load(output);
  const Typed slope = rounded(b.op(Op::kSub, b.literal(1, type), y));
  target.store(b.op(Op::kMul, rounded(b.op(Op::kMul, b.load(gradient), slope)), y));
}

void tanh_backward(Builder& b) {
  Target target(b);
  const int gradient = b.tensor(0), output = b.tensor(1);
  const auto type = b.type(gradient);
  if (!is_floating(type) || type != b.type(output) || b.repeats(output)) throw Builder::Unfusable{};
  const Typed y = b.load(output);
  const Typed slope = b.op(Op::kFma, b.op(Op::kNeg, y), y, b.literal(1, type));
  target.store(b.op(Op::kMul, b.load(gradient), slope));
}

template <Function function>
void gradient_of(Builder& b) {
  Target target(b);
  const int gradient = b.tensor(0), other = b.tensor(1);
  if (b.type(gradient) != b.type(other) || b.repeats(gradient) || b.repeats(other)) throw Builder::Unfusable{};
  target.store(b.call(function, b.load(gradient), b.load(other)));
}
void gelu_backward(Builder& b) {
  b.constant(2).toStringRef() == "tanh" ? gradient_of<Function::kGeluTanhBackward>(b)
                                        : gradient_of<Function::kGeluBackward>(b);
}

// The draw is a launch of its own (dropout.cpp); what follows it rounds after the division and after the product.
void apply_dropout(Builder& b) {
  const int noise = b.tensor(0), input = b.tensor(1);
  const auto type = b.type(noise);
  if (!is_floating(type) || type != b.type(input)) throw Builder::Unfusable{};
  b.begin(noise);
  const Typed drawn = b.load(noise);
  const Typed scaled = b.round(b.op(Op::kDiv, drawn, b.number(2, type)));
  b.store_out(b.compare(Op::kNe, drawn, b.literal(0, type)));
  b.store(noise, b.op(Op::kMul, scaled, b.load(input)));
}

void dropout_backward(Builder& b) {
  Target target(b);
  const int gradient = b.tensor(0), mask = b.tensor(1);
  const auto type = b.type(gradient);
  if (!is_floating(type) || b.type(mask) != ScalarType::Bool) throw Builder::Unfusable{};
  const Typed scaled = b.round(b.op(Op::kDiv, b.convert(b.load(mask), type), b.number(2, type)));
  target.store(b.op(Op::kMul, scaled, b.load(gradient)));
}

const bool g_registered = [] {
  register_fusable({"threshold_backward"}, {&threshold_backward, nullptr, Prediction::kFirst});
  register_fusable({"sigmoid_backward"}, {&sigmoid_backward, nullptr, Prediction::kFirst});
  register_fusable({"tanh_backward"}, {&tanh_backward, nullptr, Prediction::kFirst});
  register_fusable({"silu_backward"}, {&gradient_of<Function::kSiluBackward>, nullptr, Prediction::kFirst});
  register_fusable({"gelu_backward"}, {&gelu_backward, nullptr, Prediction::kFirst});
  register_fusable({"neuron::apply_dropout_"}, {&apply_dropout});
  register_fusable({"neuron::native_dropout_backward"}, {&dropout_backward});
  return true;
}();

}  // namespace

}  // namespace neuron::eager::fusion
