// Layouts that the device does not have are refused by name where tensors of them would come to be. What else meets
// such a layout (a sparse CPU tensor beside a strided device tensor) is refused by PyTorch, which names op and layout
// too; a fallback of ours for all ops would cost each program several milliseconds of import per layout.
#include <torch/library.h>

#include <string>

#include "eager/op_info.h"
#include "runtime/errors.h"

namespace neuron::eager {

namespace {

enum Layout { kSparse, kSparseCompressed, kNested, kQuantized };

template <Layout layout>
void refuse(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack*) {
  static constexpr const char* kNames[] = {"Sparse", "SparseCompressed (CSR, CSC, BSR, BSC)", "Nested", "Quantized"};
  const auto& name = op.operator_name();
  errors::unsupported_layout(name.overload_name.empty() ? name.name : name.name + "." + name.overload_name,
                             kNames[layout]);
}

template <Layout layout>
void refuse_ops(torch::Library& library, std::initializer_list<const char*> names) {
  for (const char* name : names) library.impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse<layout>>());
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  refuse_ops<kSparse>(m, {"empty.memory_format", "_sparse_coo_tensor_with_dims",
                          "_sparse_coo_tensor_with_dims_and_tensors", "copy_", "_copy_from", "_to_dense"});
}
TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  refuse_ops<kSparseCompressed>(m, {"empty.memory_format", "copy_", "sparse_sampled_addmm", "addmm"});
}
TORCH_LIBRARY_IMPL(aten, NestedTensorPrivateUse1, m) {
  refuse_ops<kNested>(m, {"_nested_view_from_buffer", "empty_like", "copy_"});
}
TORCH_LIBRARY_IMPL(aten, QuantizedPrivateUse1, m) {
  refuse_ops<kQuantized>(m, {"_empty_affine_quantized", "_empty_per_channel_affine_quantized", "empty.memory_format",
                             "empty_quantized", "copy_"});
}

namespace {
// nn.TransformerEncoder asks this before it goes over to nested tensors; with "no" it stays with padded ones.
bool never_left_aligned(const at::Tensor&, const at::Tensor&) { return false; }
}  // namespace

// Conversions from a strided tensor are reached with strided arguments; their results would be the refused ones.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_nested_tensor_from_mask_left_aligned", TORCH_FN(never_left_aligned));
  refuse_ops<kSparse>(m, {"_to_sparse", "_to_sparse.sparse_dim"});
  refuse_ops<kSparseCompressed>(
      m, {"_to_sparse_csr", "_to_sparse_csc", "_to_sparse_bsr", "_to_sparse_bsc", "_sparse_compressed_tensor_unsafe"});
  refuse_ops<kNested>(m, {"_nested_tensor_from_mask", "_nested_from_padded", "_nested_view_from_buffer"});
  refuse_ops<kQuantized>(m, {"quantize_per_tensor", "quantize_per_channel", "quantize_per_tensor_dynamic"});
}

}  // namespace neuron::eager
