// Views touch metadata only; ATen's own implementations work for any device.
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>

#include "eager/kernels.h"
#include "runtime/allocator.h"

namespace neuron::eager {

namespace {
void record_stream(at::Tensor& self, c10::Stream stream) {
  runtime::allocator()->recordStream(self.storage().data_ptr(), stream);
}
}  // namespace

void register_views(torch::Library& aten) {
  aten.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  aten.impl("view", TORCH_FN(static_cast<at::Tensor (*)(const at::Tensor&, c10::IntArrayRef)>(at::native::view)));
  aten.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  aten.impl("unfold", TORCH_FN(at::native::unfold));
  aten.impl("record_stream", TORCH_FN(record_stream));
}

}  // namespace neuron::eager
