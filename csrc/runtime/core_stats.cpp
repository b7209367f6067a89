// The figures of a core's memory, with torch.cuda's meanings.
#include <mutex>

#include "runtime/core_pool.h"

namespace neuron::runtime {

template <class F>
void CorePool::for_each_stat(F f) {
  for (StatArray* array :
       {&stats_.allocation, &stats_.segment, &stats_.active, &stats_.inactive_split, &stats_.allocated_bytes,
        &stats_.reserved_bytes, &stats_.active_bytes, &stats_.inactive_split_bytes, &stats_.requested_bytes})
    for (auto& stat : *array) f(stat);
}

c10::CachingDeviceAllocator::DeviceStats CorePool::stats() {
  std::lock_guard lock(lock_);
  process_waiting();
  return stats_;
}

void CorePool::reset_peaks() {
  std::lock_guard lock(lock_);
  process_waiting();
  for_each_stat([](auto& stat) { stat.reset_peak(); });
}

void CorePool::reset_totals() {
  std::lock_guard lock(lock_);
  for_each_stat([](auto& stat) { stat.reset_accumulated(); });
  stats_.num_alloc_retries = 0;
  stats_.num_ooms = 0;
  stats_.num_device_alloc = 0;
  stats_.num_device_free = 0;
}

std::vector<c10::CachingDeviceAllocator::SegmentInfo> CorePool::snapshot() {
  std::vector<c10::CachingDeviceAllocator::SegmentInfo> segments;
  std::lock_guard lock(lock_);
  process_waiting();
  for (const auto& [base, segment] : segments_) {
    auto& info = segments.emplace_back();
    info.device = static_cast<c10::DeviceIndex>(core_.index());
    info.address = reinterpret_cast<std::size_t>(base);
    info.total_size = segment->bytes;
    const StreamPool& owner = *segment->owner;
    info.stream = reinterpret_cast<void*>(static_cast<std::uintptr_t>(owner.key < kFirstPrivateKey ? owner.key : 0));
    info.owner_private_pool_id = owner.id;
    info.is_large = segment->large;
    for (const Block* block = segment->first; block; block = block->after) {
      auto& part = info.blocks.emplace_back();
      part.size = block->size;
      part.allocated = block->state == Block::State::kAllocated;
      part.active = part.allocated || block->state == Block::State::kWaiting;
      part.requested_size = part.active ? block->requested : 0;
      info.requested_size += part.requested_size;
      if (part.allocated) info.allocated_size += part.size;
      if (part.active) info.active_size += part.size;
    }
  }
  return segments;
}

}  // namespace neuron::runtime
