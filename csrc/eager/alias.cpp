#include "eager/alias.h"

#include <c10/core/CPUAllocator.h>

#include <cstring>

#include "eager/call.h"
#include "runtime/allocator.h"
#include "runtime/device.h"
#include "runtime/errors.h"

namespace neuron::eager {

namespace {

const c10::Device kCpu(c10::DeviceType::CPU);

// The protected members of TensorImpl that relabelling must set.
struct Access : c10::TensorImpl {
  static c10::DispatchKeySet& keys(c10::TensorImpl* t) { return t->*(&Access::key_set_); }
  static std::optional<c10::Device>& device(c10::TensorImpl* t) { return t->*(&Access::device_opt_); }
};

constexpr c10::DispatchKeySet kCpuBit(c10::BackendComponent::CPUBit);
constexpr c10::DispatchKeySet kNeuronBit(c10::BackendComponent::PrivateUse1Bit);
// Properties of the values that a tensor's keys carry.
const c10::DispatchKeySet kValueKeys({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative,
                                      c10::DispatchKey::ZeroTensor});

c10::DataPtr borrowed(const void* data) { return {const_cast<void*>(data), kCpu}; }

c10::intrusive_ptr<c10::TensorImpl> make_alias(c10::TensorImpl* t, c10::intrusive_ptr<c10::StorageImpl> storage) {
  auto alias = c10::make_intrusive<c10::TensorImpl>(c10::Storage(std::move(storage)),
                                                    c10::DispatchKeySet(c10::DispatchKey::CPU), t->dtype());
  Access::keys(alias.get()) = alias->key_set() | (t->key_set() & kValueKeys);
  if (t->storage_offset()) alias->set_storage_offset(t->storage_offset());
  alias->set_sizes_and_strides(t->sizes(), t->strides());
  if (t->is_wrapped_number()) alias->set_wrapped_number(true);
  return alias;
}

void relabel(c10::TensorImpl* t, c10::Device device, c10::intrusive_ptr<c10::StorageImpl> storage) {
  t->set_storage_keep_dtype(c10::Storage(std::move(storage)));
  Access::device(t) = device;
  Access::keys(t) = ((t->key_set().remove_backend(c10::BackendComponent::CPUBit)) | kNeuronBit)
                        .remove(c10::DispatchKey::AutocastCPU)
                        .add(c10::DispatchKey::AutocastPrivateUse1);
}

// The device storage with the bytes of a storage that a CPU kernel made.
c10::intrusive_ptr<c10::StorageImpl> device_storage(c10::StorageImpl* cpu, c10::Device device) {
  const std::size_t bytes = cpu->nbytes();
  c10::DataPtr data;
  if (bytes && cpu->data() && !runtime::is_hbm_deleter(cpu->data_ptr().get_deleter())) {
    data = runtime::allocate(bytes, device.index());  // from another allocator, e.g. a kernel's own buffer
    std::memcpy(data.get(), cpu->data(), bytes);
  } else {
    data = cpu->set_data_ptr(borrowed(cpu->data()));
    data.unsafe_set_device(device);
  }
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, std::move(data),
                                               runtime::allocator(), /*resizable=*/true);
}

}  // namespace

c10::intrusive_ptr<c10::StorageImpl> cpu_storage(const void* data, std::size_t bytes) {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, borrowed(data),
                                               c10::GetCPUAllocator(), /*resizable=*/true);
}

at::Tensor cpu_alias(const at::Tensor& tensor) {
  auto* t = tensor.unsafeGetTensorImpl();
  if (!tensor.defined() || !is_neuron(t)) return tensor;
  const auto& storage = t->unsafe_storage();
  return at::Tensor(make_alias(t, cpu_storage(storage.data(), storage.nbytes())));
}

at::Tensor AliasSet::alias(const at::Tensor& tensor) {
  auto* t = tensor.unsafeGetTensorImpl();
  if (is_undefined(t) || !is_neuron(t)) return tensor;
  auto* original = t->unsafe_storage().unsafeGetStorageImpl();
  c10::intrusive_ptr<c10::StorageImpl> storage;
  for (const auto& pair : pairs_) {
    if (pair.original.unsafeGetTensorImpl() == t) return pair.alias;
    if (pair.original.storage().unsafeGetStorageImpl() == original)
      storage = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(pair.storage);
  }
  if (!storage) storage = cpu_storage(original->data(), original->nbytes());
  auto* raw = storage.get();
  pairs_.push_back({at::Tensor(make_alias(t, std::move(storage))), tensor, raw});
  return pairs_.back().alias;
}

bool AliasSet::propagate(const char* op) {
  bool changed = false;
  for (auto& [alias, original, storage] : pairs_) {
    auto* from = alias.unsafeGetTensorImpl();
    auto* to = original.unsafeGetTensorImpl();
    TORCH_INTERNAL_ASSERT(from->unsafe_storage().unsafeGetStorageImpl() == storage, "torchneuron: ", op,
                          " replaced the storage of an argument");
    auto* device = to->unsafe_storage().unsafeGetStorageImpl();
    if (storage->data() != device->data() || storage->nbytes() != device->nbytes()) {
      if (storage->data() != device->data()) {
        auto data = storage->set_data_ptr(borrowed(storage->data()));
        data.unsafe_set_device(to->device());
        device->set_data_ptr_noswap(std::move(data));
      }
      device->set_nbytes(storage->nbytes());
      changed = true;
    }
    if (from->is_conj() != to->is_conj() || from->is_neg() != to->is_neg()) {
      to->_set_conj(from->is_conj());
      to->_set_neg(from->is_neg());
      changed = true;
    }
    if (!from->sizes().equals(to->sizes()) || !from->strides().equals(to->strides()) ||
        from->storage_offset() != to->storage_offset()) {
      to->set_storage_offset(from->storage_offset());
      to->set_sizes_and_strides(from->sizes(), from->strides());
      changed = true;
    }
  }
  return changed;
}

at::Tensor AliasSet::result(at::Tensor tensor, c10::DeviceIndex device_index, const char* op, Kind* kind) {
  auto* t = tensor.unsafeGetTensorImpl();
  for (const auto& pair : pairs_)
    if (pair.alias.unsafeGetTensorImpl() == t) {
      *kind = Kind::kOriginal;
      return pair.original;
    }
  if (t->layout() != c10::kStrided || !t->has_storage()) errors::unsupported_layout(op, c10::str(t->layout()));
  auto* storage = t->unsafe_storage().unsafeGetStorageImpl();
  const c10::Device device(runtime::kNeuron, device_index);
  for (const auto& pair : pairs_)
    if (pair.storage == storage) {
      *kind = Kind::kView;
      relabel(t, device, pair.original.storage().getWeakStorageImpl().lock());
      return tensor;
    }
  for (const auto& [cpu, made] : fresh_)
    if (cpu == storage) {
      *kind = Kind::kView;
      relabel(t, device, made);
      return tensor;
    }
  *kind = Kind::kFresh;
  auto made = device_storage(storage, device);
  fresh_.emplace_back(storage, made);
  relabel(t, device, std::move(made));
  return tensor;
}

at::Tensor AliasPool::get(std::size_t i, const TensorMeta& meta, const void* data, std::size_t bytes,
                          std::int64_t offset) {
  if (i >= slots_.size()) slots_.resize(i + 1);
  auto& slot = slots_[i];
  c10::StorageImpl* storage;
  if (meta.shares_storage_with >= 0) {
    storage =
        slots_[static_cast<std::size_t>(meta.shares_storage_with)].tensor->unsafe_storage().unsafeGetStorageImpl();
  } else {
    if (!slot.storage) slot.storage = cpu_storage(nullptr, 0);
    storage = slot.storage.get();
    storage->set_data_ptr_noswap(borrowed(data));
    storage->set_nbytes(bytes);
  }
  if (!slot.tensor)
    slot.tensor =
        c10::make_intrusive<c10::TensorImpl>(c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage)),
                                             c10::DispatchKeySet(c10::DispatchKey::CPU), meta.dtype);
  else
    slot.tensor->set_storage_and_dtype(c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage)),
                                       meta.dtype);
  auto* t = slot.tensor.get();
  auto& keys = Access::keys(t);
  keys = keys - kValueKeys;
  if (C10_UNLIKELY(meta.conj)) keys = keys.add(c10::DispatchKey::Conjugate);
  if (C10_UNLIKELY(meta.neg)) keys = keys.add(c10::DispatchKey::Negative);
  if (C10_UNLIKELY(t->is_wrapped_number())) t->set_wrapped_number(false);  // while it still has no dimensions
  t->set_storage_offset(offset);
  t->set_sizes_and_strides(meta.sizes, meta.strides);
  if (C10_UNLIKELY(meta.wrapped)) t->set_wrapped_number(true);
  return at::Tensor(slot.tensor);
}

void AliasPool::release(std::size_t used) {
  for (std::size_t i = 0; i < used && i < slots_.size(); ++i) {
    auto& slot = slots_[i];
    if (C10_UNLIKELY(slot.tensor && slot.tensor.use_count() > 1)) slot.tensor.reset();
    // The tensor of the slot holds one reference itself.
    if (C10_UNLIKELY(slot.storage && slot.storage.use_count() > (slot.tensor ? 2u : 1u))) {
      slot.tensor.reset();
      slot.storage.reset();
    }
  }
}

}  // namespace neuron::eager
