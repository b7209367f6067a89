// Layouts that the device does not have are refused by name, whatever the op.
#include <torch/library.h>

#include <string>

#include "eager/op_info.h"
#include "runtime/errors.h"

namespace neuron::eager {

namespace {

template <int kLayout>
void refuse(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack*) {
  static constexpr const char* kNames[] = {"Sparse", "SparseCsr", "Nested", "Quantized"};
  const auto& name = op.operator_name();
  errors::unsupported_layout(name.overload_name.empty() ? name.name : name.name + "." + name.overload_name,
                             kNames[kLayout]);
}

template <int kLayout>
torch::CppFunction refusal() {
  return torch::CppFunction::makeFromBoxedFunction<&refuse<kLayout>>();
}

}  // namespace

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) { m.fallback(refusal<0>()); }
TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) { m.fallback(refusal<1>()); }
TORCH_LIBRARY_IMPL(_, NestedTensorPrivateUse1, m) { m.fallback(refusal<2>()); }
TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, m) { m.fallback(refusal<3>()); }

// Conversions from a strided tensor are reached with strided arguments; their results would be the refused ones.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_to_sparse", refusal<0>());
  m.impl("_to_sparse.sparse_dim", refusal<0>());
  m.impl("_to_sparse_csr", refusal<1>());
  m.impl("_to_sparse_csc", refusal<1>());
  m.impl("_to_sparse_bsr", refusal<1>());
  m.impl("_to_sparse_bsc", refusal<1>());
  m.impl("_nested_tensor_from_mask", refusal<2>());
  m.impl("_nested_from_padded", refusal<2>());
  m.impl("quantize_per_tensor", refusal<3>());
  m.impl("quantize_per_channel", refusal<3>());
  m.impl("quantize_per_tensor_dynamic", refusal<3>());
}

}  // namespace neuron::eager
