#pragma once
// The HBM of one core: an address range with a capacity. Physical memory is touched only when used.
#include <cstddef>
#include <map>
#include <mutex>

namespace neuron::driver {

class Hbm {
 public:
  static constexpr std::size_t kGranule = std::size_t{2} << 20;  // segments are multiples of 2 MiB

  explicit Hbm(std::size_t capacity);
  Hbm(const Hbm&) = delete;
  Hbm& operator=(const Hbm&) = delete;

  // A segment of at least `bytes` (rounded up to kGranule), or null when the core has no such range left.
  void* map(std::size_t bytes);
  // Gives a whole segment back; its physical pages return to the operating system.
  void unmap(void* segment, std::size_t bytes);

  bool contains(const void* p) const {
    auto* c = static_cast<const char*>(p);
    return c >= base_ && c < base_ + capacity_;
  }
  std::size_t capacity() const { return capacity_; }
  std::size_t used() const;
  std::size_t largest_free_range() const;

 private:
  char* base_;
  std::size_t capacity_;
  mutable std::mutex mutex_;
  std::map<char*, std::size_t> free_;  // by address, neighbours merged
  std::size_t used_ = 0;
};

}  // namespace neuron::driver
