// Dropout in training: ATen routes accelerators to native_dropout, whose CPU kernel takes no generator. The op below is
// the same with one, and gives the values that the CPU's dropout gives for the same seed.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include "eager/kernels.h"
#include "eager/launch.h"

namespace neuron::eager {

namespace {

// `noise` is 0 or 1/(1-p), rounded as the CPU rounds it. The mask is what autograd multiplies gradients with.
std::tuple<at::Tensor, at::Tensor> dropout_cpu(const at::Tensor& input, double p,
                                               const std::optional<at::Generator>& generator) {
  // The strides that the CPU's product of input and noise has, also where dimensions of size 1 have odd ones.
  auto noise = at::empty_like(input, input.is_contiguous() ? at::MemoryFormat::Contiguous : at::MemoryFormat::Preserve);
  noise.bernoulli_(1 - p, generator);
  auto mask = noise.to(at::kBool);
  noise.div_(1 - p);
  return {noise.mul_(input), mask};  // in place: `noise` already lies where the output goes
}

at::Tensor dropout_backward_cpu(const at::Tensor& grad, const at::Tensor& mask, double scale) {
  if (!grad.is_floating_point()) return grad * mask * scale;  // with the CPU's type promotion
  if (scale == 0.0) return at::zeros_like(grad);
  return mask.to(grad.dtype()).div_(1.0 / scale).mul_(grad);
}

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p, std::optional<bool> train) {
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
  if (!train.value_or(true)) return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  if (p == 1) return {at::zeros_like(input), at::zeros_like(input, input.options().dtype(at::kBool))};
  static OpInfo& op = op_info("neuron::native_dropout", "");
  torch::jit::Stack stack{input, p, c10::IValue()};
  run_boxed(op, &stack);
  return {stack[0].toTensor(), stack[1].toTensor()};
}

at::Tensor native_dropout_backward(const at::Tensor& grad, const at::Tensor& mask, double scale) {
  static OpInfo& op = op_info("neuron::native_dropout_backward", "");
  torch::jit::Stack stack{grad, mask, scale};
  run_boxed(op, &stack);
  return stack[0].toTensor();
}

}  // namespace

TORCH_LIBRARY(neuron, m) {
  m.def("native_dropout(Tensor input, float p, Generator? generator) -> (Tensor, Tensor)");
  m.def("native_dropout_backward(Tensor grad, Tensor mask, float scale) -> Tensor");
}
TORCH_LIBRARY_IMPL(neuron, CPU, m) {
  m.impl("native_dropout", TORCH_FN(dropout_cpu));
  m.impl("native_dropout_backward", TORCH_FN(dropout_backward_cpu));
}

void register_dropout(torch::Library& aten) {
  aten.impl("native_dropout", TORCH_FN(native_dropout));
  aten.impl("native_dropout_backward", TORCH_FN(native_dropout_backward));
}

}  // namespace neuron::eager
