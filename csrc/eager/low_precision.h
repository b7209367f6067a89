#pragma once
// Kernels that take the place of ATen's CPU kernels where these compute in bf16, fp16 or fp8: matrix products,
// convolutions and attention, with exact products, sums in fp32 and one rounding, as on the chip. ATen's own are many
// times slower than its fp32 kernels on CPUs without instructions for these formats.
#include <ATen/core/stack.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/ArrayRef.h>

#include <string_view>

#include "eager/call.h"

namespace neuron::eager {

// Takes an op's arguments, CPU tensors, from the stack and leaves its returns there, as a boxed ATen kernel does. It
// runs below autograd.
using ReplacementKernel = void (*)(torch::jit::Stack*);

// The kernel for a call of an op with these tensors (in the order of the schema, undefined ones included), or null
// when ATen's serves: other dtypes, or a CPU that has instructions for the dtype. It depends on nothing but the op, the
// tensors' dtypes and the switch below.
ReplacementKernel low_precision_kernel(std::string_view op, c10::ArrayRef<c10::TensorImpl*> tensors);
inline ReplacementKernel low_precision_kernel(const OpInfo& op, const Call& call) {
  return low_precision_kernel(op.name, call.tensors());
}

// Arithmetic follows the chip, so the engine's kernels serve even where the CPU's own would be fast.
void set_chip_numerics(bool on);
bool chip_numerics();

// Which dtypes a kernel replaces ATen's for.
enum class LowPrecision {
  kAllTensors,  // all tensors are bf16, or all are fp16
  kOperands,    // the first three are, others may have other dtypes
  kFloat8,      // the first two are fp8
};

struct NamedKernel {
  const char* name;
  const char* overload;
  LowPrecision when;
  ReplacementKernel kernel;
};
c10::ArrayRef<NamedKernel> low_precision_products();  // mm, addmm, bmm, ...
c10::ArrayRef<NamedKernel> low_precision_layers();    // convolution, attention

}  // namespace neuron::eager
