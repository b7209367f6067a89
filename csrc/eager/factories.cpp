// Tensors without values: memory is taken, nothing is launched.
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <c10/core/DefaultDtype.h>

#include "eager/kernels.h"
#include "runtime/allocator.h"
#include "runtime/device.h"
#include "runtime/errors.h"

namespace neuron::eager {

namespace {

at::Tensor new_tensor(std::size_t bytes, c10::ScalarType dtype, std::optional<c10::Layout> layout,
                      std::optional<c10::Device> device, std::optional<bool> pin_memory, const char* op) {
  if (C10_UNLIKELY(c10::layout_or_default(layout) != c10::kStrided)) errors::unsupported_layout(op, c10::str(*layout));
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  const auto index = device && device->has_index() ? device->index() : runtime::current_device();
  if (C10_UNLIKELY(index >= runtime::device_count())) errors::no_such_device(index, runtime::device_count());
  return at::detail::make_tensor<c10::TensorImpl>(c10::Storage(runtime::new_storage(bytes, index)),
                                                  c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                                  c10::scalarTypeToTypeMeta(dtype));
}

void fill_if_deterministic(at::Tensor& tensor) {
  auto& context = at::globalContext();
  if (C10_UNLIKELY(context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory()))
    at::native::fill_empty_deterministic_(tensor);
}

at::Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                 std::optional<c10::Device> device, std::optional<bool> pin_memory,
                 std::optional<c10::MemoryFormat> format) {
  const auto type = c10::dtype_or_default(dtype);
  at::detail::check_size_nonnegative(size);
  const auto bytes = at::detail::computeStorageNbytesContiguous(size, c10::elementSize(type));
  auto tensor = new_tensor(bytes, type, layout, device, pin_memory, "aten::empty");
  auto* t = tensor.unsafeGetTensorImpl();
  if (size.size() != 1 || size[0] != 0) t->set_sizes_contiguous(size);
  if (format && *format != c10::MemoryFormat::Contiguous) t->empty_tensor_restride(*format);
  fill_if_deterministic(tensor);
  return tensor;
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> dtype,
                         std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                         std::optional<bool> pin_memory) {
  const auto type = c10::dtype_or_default(dtype);
  at::detail::check_size_nonnegative(size);
  const auto bytes = at::detail::computeStorageNbytes(size, stride, c10::elementSize(type));
  auto tensor = new_tensor(bytes, type, layout, device, pin_memory, "aten::empty_strided");
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride);
  fill_if_deterministic(tensor);
  return tensor;
}

// New sizes; the storage grows when they need more bytes than it has (stream-ordered, see the device's hooks).
void resize(c10::TensorImpl* t, c10::IntArrayRef size, c10::OptionalIntArrayRef stride) {
  if (t->sizes() == size && (!stride || t->strides() == *stride)) return;
  const auto itemsize = t->dtype().itemsize();
  const auto offset = static_cast<std::size_t>(t->storage_offset());
  std::size_t bytes;
  if (stride) {
    t->set_sizes_and_strides(size, *stride);
    bytes = at::detail::computeStorageNbytes(size, *stride, itemsize, offset);
  } else {
    t->set_sizes_contiguous(size);
    bytes = at::detail::computeStorageNbytesContiguous(size, itemsize, offset);
  }
  if (t->numel() > 0 && bytes > t->unsafe_storage().nbytes())
    at::native::resize_bytes_nocuda(t->unsafe_storage(), static_cast<std::int64_t>(bytes));
}

const at::Tensor& resize_(const at::Tensor& self, c10::IntArrayRef size, std::optional<c10::MemoryFormat> format) {
  TORCH_CHECK(!format || *format != c10::MemoryFormat::Preserve, "Unsupported memory format ", *format);
  at::detail::check_size_nonnegative(size);
  auto* t = self.unsafeGetTensorImpl();
  const auto old_bytes = static_cast<std::int64_t>(t->unsafe_storage().nbytes());
  resize(t, size, std::nullopt);
  if (format) t->empty_tensor_restride(*format);
  auto& context = at::globalContext();
  if (C10_UNLIKELY(context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory()))
    at::native::fill_resize_deterministic_(self, old_bytes);
  return self;
}

at::Tensor& set_strided(at::Tensor& self, at::Storage storage, std::int64_t offset, c10::IntArrayRef size,
                        c10::IntArrayRef stride) {
  at::native::checkSetStorage(self, std::move(storage), offset, size, stride);
  auto* t = self.unsafeGetTensorImpl();
  t->set_storage_offset(offset);
  resize(t, size, stride.data() ? c10::OptionalIntArrayRef(stride) : std::nullopt);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage storage) {
  const auto elements = static_cast<std::int64_t>(storage.nbytes() / self.dtype().itemsize());
  return set_strided(self, std::move(storage), 0, {elements}, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_strided(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_empty(at::Tensor& self) {
  return set_strided(self, c10::Storage(runtime::new_storage(0, self.device().index())), 0, {0}, {});
}

// May a tensor object take over what another one is (`p.data = p.data.to("neuron")`, module.to())? ATen's own answer
// leaves out devices that it does not know.
bool may_take_over(const at::Tensor& self, const at::Tensor& from) {
  const auto strided = [](const at::Tensor& t) {
    return t.layout() == c10::kStrided && t.has_storage() &&
           (t.device().type() == runtime::kNeuron || t.device().is_cpu());
  };
  return strided(self) && strided(from);
}

}  // namespace

void register_factories(torch::Library& aten) {
  aten.impl("empty.memory_format", TORCH_FN(empty));
  aten.impl("empty_strided", TORCH_FN(empty_strided));
  aten.impl("resize_", TORCH_FN(resize_));
  aten.impl("set_.source_Storage_storage_offset", TORCH_FN(set_strided));
  aten.impl("set_.source_Storage", TORCH_FN(set_storage));
  aten.impl("set_.source_Tensor", TORCH_FN(set_tensor));
  aten.impl("set_", TORCH_FN(set_empty));
  aten.impl("_has_compatible_shallow_copy_type", TORCH_FN(may_take_over));
}

}  // namespace neuron::eager
