#pragma once
// Bringing what a CPU kernel has returned to the memory that was planned for it. Nothing to do for results that the
// placement of allocations has put there already; the others are copied.
#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstddef>

namespace neuron::eager {

// Where a result goes, and how it lies there.
struct Spot {
  void* address;  // of its first element
  c10::IntArrayRef sizes, strides;
  caffe2::TypeMeta dtype;
};

// Bytes from the first element to the end of the last one.
std::size_t span_bytes(c10::IntArrayRef sizes, c10::IntArrayRef strides, std::size_t itemsize);

// The results of one call.
class Settlement {
 public:
  // False when it lies elsewhere. Raises when it is not what was planned, naming `op`.
  bool add(const at::Tensor& result, const Spot& spot, const std::string& op);
  // Copies those that lie elsewhere. Call once, after the last add().
  void finish() {
    if (C10_UNLIKELY(!moved_.empty())) move();
  }

 private:
  struct Moved {
    at::Tensor tensor;
    Spot spot;
  };
  void move();

  c10::SmallVector<Moved, 2> moved_;
};

}  // namespace neuron::eager
