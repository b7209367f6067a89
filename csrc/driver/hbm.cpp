#include "driver/hbm.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <new>

namespace neuron::driver {

namespace {
std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }
}  // namespace

Hbm::Hbm(std::size_t capacity) : capacity_(capacity / kGranule * kGranule) {
  // One granule more than needed, so that the range can start on a granule: transparent huge pages want that.
  void* p =
      mmap(nullptr, capacity_ + kGranule, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  base_ = reinterpret_cast<char*>(round_up(reinterpret_cast<std::size_t>(p), kGranule));
  if (capacity_) free_.emplace(base_, capacity_);
}

void* Hbm::map(std::size_t bytes) {
  const std::size_t size = round_up(bytes, kGranule);
  std::lock_guard lock(mutex_);
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->second < size) continue;
    char* p = it->first;
    const std::size_t rest = it->second - size;
    free_.erase(it);
    if (rest) free_.emplace(p + size, rest);
    used_ += size;
    // Large segments hold large tensors, whose first touch is a page fault per 4 KiB otherwise.
    if (size > kGranule) madvise(p, size, MADV_HUGEPAGE);
    return p;
  }
  return nullptr;
}

void Hbm::unmap(void* segment, std::size_t bytes) {
  const std::size_t size = round_up(bytes, kGranule);
  auto* p = static_cast<char*>(segment);
  madvise(p, size, MADV_DONTNEED);
  std::lock_guard lock(mutex_);
  used_ -= size;
  auto it = free_.emplace(p, size).first;
  if (auto next = std::next(it); next != free_.end() && it->first + it->second == next->first) {
    it->second += next->second;
    free_.erase(next);
  }
  if (it != free_.begin())
    if (auto before = std::prev(it); before->first + before->second == it->first) {
      before->second += it->second;
      free_.erase(it);
    }
}

std::size_t Hbm::used() const {
  std::lock_guard lock(mutex_);
  return used_;
}

std::size_t Hbm::largest_free_range() const {
  std::lock_guard lock(mutex_);
  std::size_t largest = 0;
  for (const auto& [p, size] : free_) largest = std::max(largest, size);
  return largest;
}

}  // namespace neuron::driver
