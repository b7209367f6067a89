// LSTM and GRU cells. On an accelerator ATen takes a fused branch and calls these ops, which have no CPU kernel. They
// are given one here, composed of ATen's pointwise ops; the device then runs a whole cell as one launch.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <tuple>

#include "eager/kernels.h"

namespace neuron::eager {

namespace {

using OptionalTensor = std::optional<at::Tensor>;

at::Tensor with_bias(const at::Tensor& gates, const OptionalTensor& bias) {
  return bias && bias->defined() ? gates + *bias : gates;
}

at::Tensor bias_grad(const at::Tensor& grad_gates, bool has_bias) {
  return has_bias ? grad_gates.sum({0}, /*keepdim=*/false) : at::Tensor();
}

// Gates in the order input, forget, cell, output. The workspace holds them after their activations.
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(const at::Tensor& input_gates, const at::Tensor& hidden_gates,
                                                         const at::Tensor& cx, const OptionalTensor& input_bias,
                                                         const OptionalTensor& hidden_bias) {
  const auto gates = (with_bias(hidden_gates, hidden_bias) + with_bias(input_gates, input_bias)).chunk(4, 1);
  const auto in = at::sigmoid(gates[0]);
  const auto forget = at::sigmoid(gates[1]);
  const auto cell = at::tanh(gates[2]);
  const auto out = at::sigmoid(gates[3]);
  const auto cy = (forget * cx).add_(in * cell);
  return {out * cy.tanh(), cy, at::cat({in, forget, cell, out}, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell_backward(const OptionalTensor& grad_hy_opt,
                                                                  const OptionalTensor& grad_cy_opt,
                                                                  const at::Tensor& cx, const at::Tensor& cy,
                                                                  const at::Tensor& workspace, bool has_bias) {
  const bool has_hy = grad_hy_opt && grad_hy_opt->defined(), has_cy = grad_cy_opt && grad_cy_opt->defined();
  if (!has_hy && !has_cy) return {};
  const auto grad_hy = has_hy ? *grad_hy_opt : at::zeros_like(cx);
  const auto gates = workspace.chunk(4, 1);
  const auto &in = gates[0], &forget = gates[1], &cell = gates[2], &out = gates[3];
  const auto tanh_cy = cy.tanh();
  auto grad_cell_state = at::tanh_backward(grad_hy * out, tanh_cy);
  if (has_cy) grad_cell_state = grad_cell_state + *grad_cy_opt;
  const auto grad_gates =
      at::cat({at::sigmoid_backward(grad_cell_state * cell, in), at::sigmoid_backward(grad_cell_state * cx, forget),
               at::tanh_backward(grad_cell_state * in, cell), at::sigmoid_backward(grad_hy * tanh_cy, out)},
              1);
  return {grad_gates, grad_cell_state * forget, bias_grad(grad_gates, has_bias)};
}

// Gates in the order reset, update, new. The workspace holds them after their activations, then the previous hidden
// state and the hidden part of the new gate.
std::tuple<at::Tensor, at::Tensor> gru_cell(const at::Tensor& input_gates, const at::Tensor& hidden_gates,
                                            const at::Tensor& hx, const OptionalTensor& input_bias,
                                            const OptionalTensor& hidden_bias) {
  const auto from_input = with_bias(input_gates, input_bias).chunk(3, 1);
  const auto from_hidden = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const auto reset = at::sigmoid(from_hidden[0] + from_input[0]);
  const auto update = at::sigmoid(from_hidden[1] + from_input[1]);
  const auto fresh = at::tanh(from_input[2] + from_hidden[2] * reset);
  return {(hx - fresh).mul_(update).add_(fresh), at::cat({reset, update, fresh, hx, from_hidden[2]}, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> gru_cell_backward(const at::Tensor& grad_hy,
                                                                                         const at::Tensor& workspace,
                                                                                         bool has_bias) {
  const auto saved = workspace.chunk(5, 1);
  const auto &reset = saved[0], &update = saved[1], &fresh = saved[2], &hx = saved[3], &hidden_new = saved[4];
  const auto grad_update = at::sigmoid_backward(grad_hy * (hx - fresh), update);
  const auto grad_fresh = at::tanh_backward(grad_hy * (1 - update), fresh);
  const auto grad_reset = at::sigmoid_backward(grad_fresh * hidden_new, reset);
  const auto grad_input = at::cat({grad_reset, grad_update, grad_fresh}, 1);
  const auto grad_hidden = at::cat({grad_reset, grad_update, grad_fresh * reset}, 1);
  return {grad_input, grad_hidden, grad_hy * update, bias_grad(grad_input, has_bias), bias_grad(grad_hidden, has_bias)};
}

}  // namespace

void register_recurrent_cells(torch::Library& aten_cpu) {
  aten_cpu.impl("_thnn_fused_lstm_cell", TORCH_FN(lstm_cell));
  aten_cpu.impl("_thnn_fused_lstm_cell_backward_impl", TORCH_FN(lstm_cell_backward));
  aten_cpu.impl("_thnn_fused_gru_cell", TORCH_FN(gru_cell));
  aten_cpu.impl("_thnn_fused_gru_cell_backward", TORCH_FN(gru_cell_backward));
}

}  // namespace neuron::eager
