#pragma once
// CPU-labelled aliases of device tensors - other tensor objects over the same bytes - which ATen's CPU kernels work on,
// and the way back: results of those kernels relabelled as device tensors, without a copy.
#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "eager/plan.h"

namespace neuron::eager {

// A storage for the CPU over bytes that it does not own. It may be resized: the new bytes come from the CPU allocator.
c10::intrusive_ptr<c10::StorageImpl> cpu_storage(const void* data, std::size_t bytes);

// An alias of one device tensor; other tensors are returned as they are. It does not keep the bytes alive.
at::Tensor cpu_alias(const at::Tensor& tensor);

// The aliases of one synchronous call.
class AliasSet {
 public:
  // `written`: the op may change the tensor's metadata or storage.
  at::Tensor alias(const at::Tensor& tensor);
  // Carries what the op did to sizes, strides and storages of its written arguments over to the originals.
  // True when anything changed.
  bool propagate(const char* op);
  // The device tensor of a result: the original of an alias, a view of an original's storage, or a new tensor.
  // `kind` and `position` (in order of alias() calls) say which.
  enum class Kind { kOriginal, kView, kFresh };
  at::Tensor result(at::Tensor tensor, c10::DeviceIndex device, const char* op, Kind* kind);

 private:
  struct Pair {
    at::Tensor alias, original;
    c10::StorageImpl* storage;  // of the alias, as it was made
  };
  c10::SmallVector<Pair, 8> pairs_;
  c10::SmallVector<std::pair<c10::StorageImpl*, c10::intrusive_ptr<c10::StorageImpl>>, 4> fresh_;  // CPU -> device
};

// The aliases of a worker thread: objects that are used again by launch after launch instead of being made anew.
class AliasPool {
 public:
  // The alias for tensor number `i` of a launch.
  at::Tensor get(std::size_t i, const TensorMeta& meta, const void* data, std::size_t bytes, std::int64_t offset);
  // After the launch: objects that a kernel kept a reference to are let go.
  void release(std::size_t used);

 private:
  struct Slot {
    c10::intrusive_ptr<c10::TensorImpl> tensor;
    c10::intrusive_ptr<c10::StorageImpl> storage;
  };
  std::vector<Slot> slots_;
};

}  // namespace neuron::eager
