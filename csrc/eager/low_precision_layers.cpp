// Convolution and attention in low precision: operands widened as a whole, ATen's fp32 kernel, results rounded once.
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <utility>

#include "eager/low_precision.h"

namespace neuron::eager {

namespace {

struct Layer {
  const char* name;
  const char* overload;
  unsigned rounded;  // bit i: return i has the dtype of the operands; others are fp32 whatever the operands are
};

constexpr unsigned kAllReturns = ~0u;
constexpr Layer kLayers[] = {
    {"aten::convolution", "", kAllReturns},
    {"aten::_convolution", "", kAllReturns},
    {"aten::convolution_backward", "", kAllReturns},
    {"aten::_scaled_dot_product_flash_attention_for_cpu", "", 0b01},  // not the logarithms of the sums
    {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", "", kAllReturns},
    {"aten::_native_multi_head_attention", "", kAllReturns},
    {"aten::_transformer_encoder_layer_fwd", "", kAllReturns},
};

bool is_low(const at::Tensor& t) {
  return t.defined() && (t.scalar_type() == at::kBFloat16 || t.scalar_type() == at::kHalf);
}

template <const Layer& layer>
void run_in_float32(torch::jit::Stack* stack) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(layer.name, layer.overload);
  const std::size_t arguments = op.schema().arguments().size(), returns = op.schema().returns().size();
  const auto dtype = torch::jit::peek(*stack, 0, arguments).toTensor().scalar_type();
  for (auto& argument : torch::jit::last(*stack, arguments))
    if (argument.isTensor() && is_low(argument.toTensor()))
      const_cast<c10::IValue&>(argument) = argument.toTensor().to(at::kFloat);
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  for (std::size_t i = 0; i < returns; ++i) {
    auto& result = torch::jit::peek(*stack, i, returns);
    if (layer.rounded >> i & 1 && result.toTensor().defined()) result = result.toTensor().to(dtype);
  }
}

}  // namespace

c10::ArrayRef<NamedKernel> low_precision_layers() {
  static constexpr NamedKernel kernels[] = {
      {kLayers[0].name, kLayers[0].overload, LowPrecision::kAllTensors, &run_in_float32<kLayers[0]>},
      {kLayers[1].name, kLayers[1].overload, LowPrecision::kAllTensors, &run_in_float32<kLayers[1]>},
      {kLayers[2].name, kLayers[2].overload, LowPrecision::kAllTensors, &run_in_float32<kLayers[2]>},
      {kLayers[3].name, kLayers[3].overload, LowPrecision::kOperands, &run_in_float32<kLayers[3]>},
      {kLayers[4].name, kLayers[4].overload, LowPrecision::kOperands, &run_in_float32<kLayers[4]>},
      {kLayers[5].name, kLayers[5].overload, LowPrecision::kOperands, &run_in_float32<kLayers[5]>},
      {kLayers[6].name, kLayers[6].overload, LowPrecision::kOperands, &run_in_float32<kLayers[6]>},
  };
  return kernels;
}

}  // namespace neuron::eager
