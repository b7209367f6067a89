#pragma once
// Scratch memory of one thread: grows to what the largest program needed and is then used again without allocation.
#include <cstddef>
#include <memory>
#include <new>

namespace neuron::engines {

class Arena {
 public:
  static constexpr std::size_t kAlignment = 64;  // a cache line, and the widest vector

  // Whatever was there before is lost.
  std::byte* reserve(std::size_t bytes) {
    if (bytes > size_) {
      memory_.reset();
      memory_.reset(static_cast<std::byte*>(::operator new(bytes, std::align_val_t{kAlignment})));
      size_ = bytes;
    }
    return memory_.get();
  }

  static constexpr std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

 private:
  struct Delete {
    void operator()(std::byte* p) const { ::operator delete(p, std::align_val_t{kAlignment}); }
  };
  std::unique_ptr<std::byte, Delete> memory_;
  std::size_t size_ = 0;
};

}  // namespace neuron::engines
