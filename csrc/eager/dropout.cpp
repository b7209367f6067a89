// Dropout in training: ATen routes accelerators to native_dropout, whose CPU kernel takes no generator. The op below is
// the same with one, and gives the values that the CPU's dropout gives for the same seed.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include "eager/fusion/adaptive.h"
#include "eager/kernels.h"
#include "eager/launch.h"

namespace neuron::eager {

namespace {

at::MemoryFormat output_format(const at::Tensor& input) {
  // The strides that the CPU's product of input and noise has, also where dimensions of size 1 have odd ones.
  return input.is_contiguous() ? at::MemoryFormat::Contiguous : at::MemoryFormat::Preserve;
}

// `noise` is 0 or 1/(1-p), rounded as the CPU rounds it. The mask is what autograd multiplies gradients with.
std::tuple<at::Tensor, at::Tensor> dropout_cpu(const at::Tensor& input, double p,
                                               const std::optional<at::Generator>& generator) {
  auto noise = at::empty_like(input, output_format(input));
  noise.bernoulli_(1 - p, generator);
  auto mask = noise.to(at::kBool);
  noise.div_(1 - p);
  return {noise.mul_(input), mask};  // in place: `noise` already lies where the output goes
}

// The same in two launches, of which the second can run in a window: `noise` is 0 or 1, and becomes the output.
at::Tensor apply_dropout_cpu(at::Tensor& noise, const at::Tensor& input, double keep) {
  auto mask = noise.to(at::kBool);
  noise.div_(keep).mul_(input);
  return mask;
}

at::Tensor dropout_backward_cpu(const at::Tensor& grad, const at::Tensor& mask, double keep) {
  return mask.to(grad.dtype()).div_(keep).mul_(grad);
}

// What native_dropout() and native_dropout_backward() below do, in one op each: for programs, where the choices have to
// be part of the op.
std::tuple<at::Tensor, at::Tensor> dropout_any_cpu(const at::Tensor& input, double p, std::optional<bool> train,
                                                   const std::optional<at::Generator>& generator) {
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
  const auto mask_options = input.options().dtype(at::kBool);
  if (!train.value_or(true)) return {input.clone(), at::ones_like(input, mask_options)};
  if (p == 1) return {at::zeros_like(input), at::zeros_like(input, mask_options)};
  return dropout_cpu(input, p, generator);
}

at::Tensor dropout_backward_any_cpu(const at::Tensor& grad, const at::Tensor& mask, double scale) {
  if (!grad.is_floating_point()) return grad * mask * scale;
  if (scale == 0.0) return at::zeros_like(grad);
  return dropout_backward_cpu(grad, mask, 1.0 / scale);
}

// Below, one launch more costs more than what a window can save.
constexpr std::int64_t kWorthTwoLaunches = 1 << 14;

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p, std::optional<bool> train) {
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
  if (!train.value_or(true)) return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  if (p == 1) return {at::zeros_like(input), at::zeros_like(input, input.options().dtype(at::kBool))};
  if (input.numel() >= kWorthTwoLaunches && fusion::windows_wanted()) {
    auto noise = at::empty_like(input, output_format(input)).bernoulli_(1 - p);
    static OpInfo& apply = op_info("neuron::apply_dropout_", "");
    torch::jit::Stack stack{noise, input, 1 - p};
    run_boxed(apply, &stack);
    return {noise, stack[0].toTensor()};
  }
  static OpInfo& op = op_info("neuron::native_dropout", "");
  torch::jit::Stack stack{input, p, c10::IValue()};
  run_boxed(op, &stack);
  return {stack[0].toTensor(), stack[1].toTensor()};
}

at::Tensor native_dropout_backward(const at::Tensor& grad, const at::Tensor& mask, double scale) {
  if (!grad.is_floating_point()) return grad * mask * scale;  // with the CPU's type promotion
  if (scale == 0.0) return at::zeros_like(grad);
  static OpInfo& op = op_info("neuron::native_dropout_backward", "");
  torch::jit::Stack stack{grad, mask, 1.0 / scale};
  run_boxed(op, &stack);
  return stack[0].toTensor();
}

}  // namespace

TORCH_LIBRARY(neuron, m) {
  m.def("native_dropout(Tensor input, float p, Generator? generator) -> (Tensor, Tensor)");
  m.def("apply_dropout_(Tensor(a!) noise, Tensor input, float keep) -> Tensor");
  m.def("native_dropout_backward(Tensor grad, Tensor mask, float keep) -> Tensor");
  m.def("dropout(Tensor input, float p, bool? train, *, Generator? generator) -> (Tensor, Tensor)");
  m.def("dropout_backward(Tensor grad_output, Tensor mask, float scale) -> Tensor");
}
TORCH_LIBRARY_IMPL(neuron, CPU, m) {
  m.impl("native_dropout", TORCH_FN(dropout_cpu));
  m.impl("apply_dropout_", TORCH_FN(apply_dropout_cpu));
  m.impl("native_dropout_backward", TORCH_FN(dropout_backward_cpu));
  m.impl("dropout", TORCH_FN(dropout_any_cpu));
  m.impl("dropout_backward", TORCH_FN(dropout_backward_any_cpu));
}

void register_dropout(torch::Library& aten) {
  aten.impl("native_dropout", TORCH_FN(native_dropout));
  aten.impl("native_dropout_backward", TORCH_FN(native_dropout_backward));
}

}  // namespace neuron::eager
