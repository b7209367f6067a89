#include "runtime/core_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <mutex>

#include "runtime/errors.h"

namespace neuron::runtime {

namespace {
constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kGranule = driver::Hbm::kGranule;
constexpr std::size_t kSmallSegment = 2 * kMiB;
constexpr std::size_t kSharedSegment = 20 * kMiB;  // for large blocks below kOwnSegment
constexpr std::size_t kOwnSegment = 10 * kMiB;
// Blocks in bins cannot merge. Merging them costs a walk over the small pool, so it must be worth it.
constexpr std::size_t kMergeShare = 16;

// One pointer per granule of the whole address space of a process (47 bits): 512 MiB of addresses, of which only the
// pages that describe HBM are ever touched.
class SegmentTable {
 public:
  static constexpr std::size_t kEntries = (std::size_t{1} << 47) / kGranule;

  static SegmentTable& get() {
    static SegmentTable table;
    return table;
  }

  Segment* find(const void* p) const {
    const std::size_t i = reinterpret_cast<std::uintptr_t>(p) / kGranule;
    return i < kEntries ? entries_[i].load(std::memory_order_acquire) : nullptr;
  }
  void set(const Segment& segment, Segment* value) {
    const std::size_t first = reinterpret_cast<std::uintptr_t>(segment.base) / kGranule;
    for (std::size_t i = 0; i < segment.bytes / kGranule; ++i)
      entries_[first + i].store(value, std::memory_order_release);
  }

 private:
  SegmentTable() {
    void* p = mmap(nullptr, kEntries * sizeof(*entries_), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    entries_ = static_cast<std::atomic<Segment*>*>(p);
  }
  std::atomic<Segment*>* entries_;
};

Block* allocated_block(void* p) {
  Segment* segment = find_segment(p);
  TORCH_INTERNAL_ASSERT(segment, "not an address of neuron memory: ", p);
  Block* block = segment->slot(p);
  TORCH_INTERNAL_ASSERT(block && block->address == p, "not the start of a block of neuron memory: ", p);
  return block;
}
}  // namespace

Segment* find_segment(const void* p) { return SegmentTable::get().find(p); }

void* CorePool::allocate(std::size_t bytes, int key) {
  const bool large = bytes >= SizeClass::kSmallLimit;
  std::unique_lock lock(lock_);
  if (waiting_) [[unlikely]]
    process_waiting();
  StreamPool& pool = this->pool(key);
  if (!large) [[likely]] {
    const SizeClass size = SizeClass::of(bytes);
    if (Block* block = pool.bins[size.index]) [[likely]] {
      pool.bins[size.index] = block->next;
      pool.binned_bytes -= block->size;
      leave_inactive(block);
      return hand_out(block, bytes);
    }
  }
  if (bytes <= core_.hbm.capacity()) {
    const SizeClass size = SizeClass::of(bytes);
    if (Block* block = find(pool, size, large)) return hand_out(block, bytes);
    ++stats_.num_alloc_retries;
    lock.unlock();
    release_cached();
    lock.lock();
    if (Block* block = find(pool, size, large)) return hand_out(block, bytes);
  }
  ++stats_.num_ooms;
  lock.unlock();
  throw_out_of_memory(bytes);
}

void* CorePool::hand_out(Block* block, std::size_t requested) {
  const bool large = block->segment->large;
  block->state = Block::State::kAllocated;
  block->requested = requested;
  add(stats_.allocation, large, 1);
  add(stats_.allocated_bytes, large, block->size);
  add(stats_.active, large, 1);
  add(stats_.active_bytes, large, block->size);
  add(stats_.requested_bytes, large, requested);
  return block->address;
}

void CorePool::free(void* p) {
  Block* block = allocated_block(p);
  CorePool& self = *block->segment->core;
  std::lock_guard lock(self.lock_);
  TORCH_INTERNAL_ASSERT(block->state == Block::State::kAllocated, "neuron memory is freed twice: ", p);
  const bool large = block->segment->large;
  subtract(self.stats_.allocation, large, 1);
  subtract(self.stats_.allocated_bytes, large, block->size);
  subtract(self.stats_.requested_bytes, large, block->requested);
  const bool leaves_worker = block->segment->owner->key == kWorkerKey && !driver::Queue::on_worker();
  if (block->users || leaves_worker) [[unlikely]]
    self.wait_for_users(block);
  else {
    // The log must have it before another launch can be given the block.
    StreamPool& owner = *block->segment->owner;
    if (owner.key < kWorkerKey) {
      if (auto* queue = self.core_.started_queue(owner.key)) queue->release(p);
    } else if (auto* recording = owner.recording.load(std::memory_order_relaxed)) {
      recording->release(p);
    }
    self.give_back(block);
  }
}

void CorePool::record_use(void* p, driver::Queue& queue) {
  Block* block = allocated_block(p);
  CorePool& self = *block->segment->core;
  const bool own_core = queue.core() == self.core_.index();
  if (own_core && queue.id() == block->segment->owner->key) return;  // the order of its own stream covers it
  std::lock_guard lock(self.lock_);
  if (!block->users) block->users = new std::vector<driver::Queue*>;
  if (std::find(block->users->begin(), block->users->end(), &queue) == block->users->end())
    block->users->push_back(&queue);
}

// Puts a block that nothing uses any more where its stream finds it.
void CorePool::give_back(Block* block) {
  const bool large = block->segment->large;
  subtract(stats_.active, large, 1);
  subtract(stats_.active_bytes, large, block->size);
  if (large) return insert_range(block);
  StreamPool& pool = *block->segment->owner;
  block->state = Block::State::kBinned;
  block->next = pool.bins[block->size_class];
  pool.bins[block->size_class] = block;
  pool.binned_bytes += block->size;
  enter_inactive(block);
}

void CorePool::wait_for_users(Block* block) {
  block->state = Block::State::kWaiting;
  Tickets tickets;
  if (block->users)
    for (driver::Queue* queue : *block->users) tickets.emplace_back(queue, queue->submitted());
  if (block->segment->owner->key == kWorkerKey) {  // which queue the host passed it to is not known
    const Tickets own = submitted();
    tickets.insert(tickets.end(), own.begin(), own.end());
  }
  delete block->users;
  block->users = nullptr;
  for (const auto& [queue, ticket] : tickets)
    if (queue->completed() < ticket) {
      waiting_of_[queue].push_back({ticket, block});
      ++block->waits;
    }
  if (block->waits)
    ++waiting_;
  else
    give_back(block);
}

void CorePool::process_waiting() {
  for (auto& [queue, list] : waiting_of_)
    while (!list.empty() && queue->completed() >= list.front().ticket) {
      Block* block = list.front().block;
      list.pop_front();
      if (--block->waits) continue;
      --waiting_;
      give_back(block);
    }
}

StreamPool& CorePool::pool(int key) {
  if (key >= kFirstPrivateKey) [[unlikely]]
    return *private_pools_.at(key);
  auto& pool = pools_[static_cast<std::size_t>(key)];
  if (!pool) [[unlikely]]
    pool = std::make_unique<StreamPool>(key);
  return *pool;
}

// A block from the free ranges or from a new segment; null when HBM is full.
Block* CorePool::find(StreamPool& pool, const SizeClass& size, bool large) {
  Block* block = take_range(pool, size.size, large);
  if (!block && !large && pool.binned_bytes >= std::max(kSmallSegment, pool.small_bytes / kMergeShare)) {
    merge_bins(pool);
    block = take_range(pool, size.size, large);
  }
  if (!block && add_segment(pool, size.size, large)) block = take_range(pool, size.size, large);
  if (block && !large) block->size_class = static_cast<std::uint8_t>(size.index);
  return block;
}

Block* CorePool::take_range(StreamPool& pool, std::size_t size, bool large) {
  auto& ranges = large ? pool.large_ranges : pool.small_ranges;
  const auto best = ranges.lower_bound(size);
  if (best == ranges.end()) return nullptr;
  Block* block = *best;
  ranges.erase(best);
  leave_inactive(block);
  const std::size_t rest = block->size - size;
  if (rest >= (large ? SizeClass::kSmallLimit : SizeClass::kSmallest)) {
    Block* remainder = new_block();
    remainder->address = block->address + size;
    remainder->size = rest;
    remainder->segment = block->segment;
    remainder->before = block;
    remainder->after = block->after;
    if (block->after) block->after->before = remainder;
    block->after = remainder;
    block->size = size;
    ranges.insert(remainder);
    enter_inactive(remainder);
  }
  block->segment->slot(block->address) = block;
  return block;
}

bool CorePool::add_segment(StreamPool& pool, std::size_t size, bool large) {
  const std::size_t exact = (size + kGranule - 1) / kGranule * kGranule;
  std::size_t bytes = !large ? kSmallSegment : size < kOwnSegment ? kSharedSegment : exact;
  void* base = core_.hbm.map(bytes);
  if (!base && bytes != exact) base = core_.hbm.map(bytes = exact);
  if (!base) return false;

  auto segment = std::make_unique<Segment>(Segment{this, &pool, static_cast<char*>(base), bytes, large, nullptr, {}});
  segment->index.resize((bytes >> segment->shift()) + 1);
  Block* block = new_block();
  block->address = segment->base;
  block->size = bytes;
  block->segment = segment.get();
  segment->first = block;
  SegmentTable::get().set(*segment, segment.get());
  segment->ranges().insert(block);
  if (!large) {
    pool.small_segments.insert(segment.get());
    pool.small_bytes += bytes;
  }
  segments_.emplace(segment->base, std::move(segment));
  add(stats_.segment, large, 1);
  add(stats_.reserved_bytes, large, bytes);
  ++stats_.num_device_alloc;
  return true;
}

void CorePool::insert_range(Block* block) {
  auto& ranges = block->segment->ranges();
  if (block->after && block->after->state == Block::State::kRange) {
    ranges.erase(block->after);
    leave_inactive(block->after);
    absorb_next(block);
  }
  if (Block* before = block->before; before && before->state == Block::State::kRange) {
    ranges.erase(before);
    leave_inactive(before);
    absorb_next(before);
    block = before;
  }
  block->state = Block::State::kRange;
  ranges.insert(block);
  enter_inactive(block);
}

void CorePool::absorb_next(Block* block) {
  Block* next = block->after;
  block->size += next->size;
  block->after = next->after;
  if (next->after) next->after->before = block;
  delete_block(next);
}

// Turns what lies in bins into free ranges, so that other sizes can use it.
void CorePool::merge_bins(StreamPool& pool) {
  if (!pool.binned_bytes) return;
  pool.bins.fill(nullptr);
  pool.binned_bytes = 0;
  const auto is_free = [](const Block* b) {
    return b->state == Block::State::kBinned || b->state == Block::State::kRange;
  };
  const auto take_out = [&](Block* b) {
    if (b->state == Block::State::kRange) pool.small_ranges.erase(b);
    leave_inactive(b);
  };
  for (Segment* segment : pool.small_segments)
    for (Block* block = segment->first; block; block = block->after) {
      if (!is_free(block)) continue;
      take_out(block);
      while (block->after && is_free(block->after)) {
        take_out(block->after);
        absorb_next(block);
      }
      block->state = Block::State::kRange;
      pool.small_ranges.insert(block);
      enter_inactive(block);
    }
}

void CorePool::release_cached() {
  // A worker cannot wait for its own queue; what kernels have freed themselves no launch can touch.
  const bool on_worker = driver::Queue::on_worker();
  Tickets tickets;
  if (!on_worker) {
    {
      std::lock_guard lock(lock_);
      for (const auto& [queue, list] : waiting_of_)
        if (!list.empty()) tickets.emplace_back(queue, list.back().ticket);
    }
    for (const auto& [queue, ticket] : tickets) queue->wait(ticket);
    core_.wait_idle();
  }
  std::vector<Segment*> released;
  {
    std::lock_guard lock(lock_);
    process_waiting();
    released =
        detach_free_segments([&](const StreamPool& pool) { return on_worker ? pool.key == kWorkerKey : !pool.users; });
    forget_empty_private_pools();
    // Another thread may have launched and freed since; blocks freed before this point have their launches in here.
    tickets = submitted();
  }
  if (!on_worker)
    for (const auto& [queue, ticket] : tickets) queue->wait(ticket);
  unmap(released);
}

void CorePool::unmap(const std::vector<Segment*>& segments) {
  for (Segment* segment : segments) {
    core_.hbm.unmap(segment->base, segment->bytes);
    delete segment;
  }
}

// Takes those without an allocated block out of the pools that are `wanted`.
std::vector<Segment*> CorePool::detach_free_segments(const std::function<bool(const StreamPool&)>& wanted) {
  std::vector<Segment*> detached;
  for (auto& pool : pools_)
    if (pool && wanted(*pool)) merge_bins(*pool);
  for (auto& [key, pool] : private_pools_)
    if (wanted(*pool)) merge_bins(*pool);
  for (auto it = segments_.begin(); it != segments_.end();) {
    Segment& segment = *it->second;
    Block* block = segment.first;
    if (block->state != Block::State::kRange || block->split() || !wanted(*segment.owner)) {
      ++it;
      continue;
    }
    segment.ranges().erase(block);
    delete_block(block);
    if (!segment.large) {
      segment.owner->small_segments.erase(&segment);
      segment.owner->small_bytes -= segment.bytes;
    }
    SegmentTable::get().set(segment, nullptr);
    subtract(stats_.segment, segment.large, 1);
    subtract(stats_.reserved_bytes, segment.large, segment.bytes);
    ++stats_.num_device_free;
    detached.push_back(it->second.release());
    it = segments_.erase(it);
  }
  return detached;
}

CorePool::Tickets CorePool::submitted() const {
  Tickets tickets;
  for (int id = 0; id < driver::Core::kQueues; ++id)
    if (auto* queue = core_.started_queue(id)) tickets.emplace_back(queue, queue->submitted());
  return tickets;
}

void CorePool::throw_out_of_memory(std::size_t requested) {
  const auto now = stats();
  const std::size_t used = core_.hbm.used();
  errors::out_of_memory(core_.index(), requested, core_.hbm.capacity(), core_.hbm.capacity() - used,
                        static_cast<std::size_t>(now.allocated_bytes[0].current),
                        static_cast<std::size_t>(now.reserved_bytes[0].current), core_.hbm.largest_free_range());
}

Block* CorePool::new_block() {
  if (!unused_blocks_) {
    for (Block& block : block_storage_.emplace_back()) {
      block.next = unused_blocks_;
      unused_blocks_ = &block;
    }
  }
  Block* block = std::exchange(unused_blocks_, unused_blocks_->next);
  *block = Block{};
  return block;
}

void CorePool::delete_block(Block* block) { block->next = std::exchange(unused_blocks_, block); }

}  // namespace neuron::runtime
