// Pools of captured graphs: memory whose addresses stay with the launches of a recording.
#include <algorithm>
#include <mutex>

#include "runtime/core_pool.h"

namespace neuron::runtime {

int CorePool::open_private(c10::MempoolId_t id) {
  std::lock_guard lock(lock_);
  for (auto& [key, pool] : private_pools_)
    if (pool->id == id) {
      ++pool->users;
      return key;
    }
  auto pool = std::make_unique<StreamPool>(next_private_key_, id);
  pool->users = 1;
  private_pools_.emplace(next_private_key_, std::move(pool));
  return next_private_key_++;
}

void CorePool::close_private(int key) {
  std::vector<Segment*> released;
  Tickets tickets;
  {
    std::lock_guard lock(lock_);
    if (--private_pools_.at(key)->users) return;
    process_waiting();
    released = detach_free_segments([&](const StreamPool& pool) { return pool.key == key; });
    forget_empty_private_pools();
    tickets = submitted();
  }
  if (released.empty()) return;
  for (const auto& [queue, ticket] : tickets) queue->wait(ticket);
  unmap(released);
}

bool CorePool::record_private(int key, driver::Recording* recording) {
  std::lock_guard lock(lock_);
  auto& current = private_pools_.at(key)->recording;
  if (recording && current.load()) return false;
  current.store(recording, std::memory_order_release);
  return true;
}

void CorePool::forget_empty_private_pools() {
  std::erase_if(private_pools_, [&](const auto& entry) {
    const StreamPool* pool = entry.second.get();
    return !pool->users && std::none_of(segments_.begin(), segments_.end(),
                                        [&](const auto& segment) { return segment.second->owner == pool; });
  });
}

}  // namespace neuron::runtime
