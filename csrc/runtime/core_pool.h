#pragma once
// The cached memory of one core: segments taken from its HBM, cut into blocks that belong to one stream each.
//
// Requests below 1 MiB (the small pool) are rounded to a size class and served from a LIFO bin per stream and class.
// Bins are a cache in front of the free ranges, which merge with their neighbours and are found by best fit; the large
// pool uses those only. Nothing about a block is stored in HBM itself: a stray write of a kernel cannot damage it.
#include <c10/core/CachingDeviceAllocator.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "driver/machine.h"
#include "driver/recording.h"
#include "driver/relax.h"

namespace neuron::runtime {

// Critical sections are a few dozen nanoseconds, shorter than the wake-up of a mutex's waiter.
class SpinLock {
 public:
  void lock() {
    for (int spins = 0; flag_.exchange(true, std::memory_order_acquire);)
      if (++spins < 200)
        driver::cpu_relax();
      else
        std::this_thread::yield();
  }
  void unlock() { flag_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> flag_{false};
};

struct Segment;
class CorePool;

struct Block {
  enum class State : std::uint8_t { kRange, kBinned, kAllocated, kWaiting };

  char* address = nullptr;
  std::size_t size = 0;
  std::size_t requested = 0;
  Segment* segment = nullptr;
  Block* before = nullptr;  // neighbours in the segment
  Block* after = nullptr;
  Block* next = nullptr;                         // in its bin, or among unused Block objects
  std::vector<driver::Queue*>* users = nullptr;  // queues named by record_stream; null for nearly all blocks
  std::uint32_t waits = 0;                       // tickets it waits for
  std::uint8_t size_class = 0;                   // small pool only
  State state = State::kRange;

  bool split() const { return before || after; }
};

struct BySize {
  using is_transparent = void;
  bool operator()(const Block* a, const Block* b) const {
    return a->size != b->size ? a->size < b->size : a->address < b->address;
  }
  bool operator()(const Block* a, std::size_t size) const { return a->size < size; }
};

// Sizes of blocks: multiples of 256 bytes up to 4 KiB, then eight steps per power of two.
struct SizeClass {
  static constexpr std::size_t kSmallest = 256;
  static constexpr std::size_t kLinear = 4096;
  static constexpr std::size_t kSmallLimit = std::size_t{1} << 20;   // requests below are the small pool's
  static constexpr std::size_t kClassLimit = std::size_t{16} << 20;  // larger ones are multiples of 512 bytes
  static constexpr int kCount = 80;                                  // of the small pool

  int index;
  std::size_t size;

  static SizeClass of(std::size_t bytes) {
    if (bytes <= kLinear) {
      const std::size_t n = (bytes + kSmallest - 1) / kSmallest;
      return {static_cast<int>(n) - 1, n * kSmallest};
    }
    if (bytes > kClassLimit) return {-1, (bytes + 511) / 512 * 512};
    const std::size_t n = bytes - 1;
    const int log = 63 - __builtin_clzll(n);
    const std::size_t step = n >> (log - 3);  // 8..15
    return {16 + (log - 12) * 8 + static_cast<int>(step) - 8, (step + 1) << (log - 3)};
  }
};

// What one stream holds, or a private pool.
struct StreamPool {
  explicit StreamPool(int key, c10::MempoolId_t id = {0, 0}) : key(key), id(id) {}

  const int key;
  const c10::MempoolId_t id;                           // of a private pool
  int users = 0;                                       // of a private pool: captured graphs whose launches refer to it
  std::atomic<driver::Recording*> recording{nullptr};  // the one that takes blocks from it
  std::array<Block*, SizeClass::kCount> bins{};
  std::size_t binned_bytes = 0;
  std::size_t small_bytes = 0;  // of small segments
  std::set<Block*, BySize> small_ranges, large_ranges;
  std::set<Segment*> small_segments;
};

struct Segment {
  CorePool* core;
  StreamPool* owner;
  char* base;
  std::size_t bytes;
  bool large;
  Block* first;
  // From the address of a block to the block. Blocks of large segments are at least 1 MiB, hence the coarse slots.
  std::vector<Block*> index;

  int shift() const { return large ? 17 : 8; }
  Block*& slot(const void* p) { return index[static_cast<std::size_t>(static_cast<const char*>(p) - base) >> shift()]; }
  std::set<Block*, BySize>& ranges() const { return large ? owner->large_ranges : owner->small_ranges; }
};

// Segments of all cores by address, one entry per granule of HBM. Null for addresses that are in no segment.
Segment* find_segment(const void* p);

class CorePool {
 public:
  // Pools of streams have the stream's id as key. What kernels allocate for themselves on a worker thread is no part of
  // the host's order of launches, so it has a pool of its own: launches in flight may still use what the host has
  // freed.
  static constexpr int kWorkerKey = driver::Core::kQueues;
  static constexpr int kKeys = kWorkerKey + 1;
  // Private pools have keys from here on. Their blocks are reused in the order of a recording's launches, and their
  // segments stay as long as there is a user, for its launches hold addresses.
  static constexpr int kFirstPrivateKey = kKeys;

  explicit CorePool(driver::Core& core) : core_(core) { stats_.max_split_size = -1; }

  driver::Core& core() { return core_; }

  void* allocate(std::size_t bytes, int key);
  static void free(void* p);
  // The block is not reused before what is launched on `queue` until it is freed is done.
  static void record_use(void* p, driver::Queue& queue);

  // Gives segments without an allocated block back to HBM, after the launches that could still touch them. Not those of
  // private pools in use.
  void release_cached();

  // Adds a user to the private pool of this id; returns its key.
  int open_private(c10::MempoolId_t id);
  // A user less. After the last one what no tensor holds goes back to HBM, the rest with the next release_cached().
  void close_private(int key);
  // Who hears of blocks of the pool that are freed. False when there is somebody else.
  bool record_private(int key, driver::Recording* recording);

  c10::CachingDeviceAllocator::DeviceStats stats();
  void reset_peaks();
  void reset_totals();
  std::vector<c10::CachingDeviceAllocator::SegmentInfo> snapshot();

 private:
  using StatArray = c10::CachingAllocator::StatArray;
  using Tickets = std::vector<std::pair<driver::Queue*, std::uint64_t>>;
  struct Waiting {
    std::uint64_t ticket;
    Block* block;
  };

  // The methods below are called with the lock held.
  StreamPool& pool(int key);
  void* hand_out(Block* block, std::size_t requested);
  Block* find(StreamPool& pool, const SizeClass& size, bool large);
  Block* take_range(StreamPool& pool, std::size_t size, bool large);
  bool add_segment(StreamPool& pool, std::size_t size, bool large);
  void give_back(Block* block);
  void insert_range(Block* block);
  void merge_bins(StreamPool& pool);
  void absorb_next(Block* block);
  void wait_for_users(Block* block);
  void process_waiting();
  std::vector<Segment*> detach_free_segments(const std::function<bool(const StreamPool&)>& wanted);
  void unmap(const std::vector<Segment*>& segments);
  void forget_empty_private_pools();
  Tickets submitted() const;
  Block* new_block();
  void delete_block(Block* block);

  static void add(StatArray& stat, bool large, std::size_t amount) {
    stat[0].increase(amount);
    stat[large ? 2 : 1].increase(amount);
  }
  static void subtract(StatArray& stat, bool large, std::size_t amount) {
    stat[0].decrease(amount);
    stat[large ? 2 : 1].decrease(amount);
  }
  // A free block beside others in its segment is cached, but not to be given back to HBM.
  void enter_inactive(const Block* block) {
    if (!block->split()) return;
    add(stats_.inactive_split, block->segment->large, 1);
    add(stats_.inactive_split_bytes, block->segment->large, block->size);
  }
  void leave_inactive(const Block* block) {
    if (!block->split()) return;
    subtract(stats_.inactive_split, block->segment->large, 1);
    subtract(stats_.inactive_split_bytes, block->segment->large, block->size);
  }
  template <class F>
  void for_each_stat(F f);

  [[noreturn]] void throw_out_of_memory(std::size_t requested);

  driver::Core& core_;
  SpinLock lock_;
  std::size_t waiting_ = 0;
  c10::CachingDeviceAllocator::DeviceStats stats_;
  std::array<std::unique_ptr<StreamPool>, kKeys> pools_;
  std::map<int, std::unique_ptr<StreamPool>> private_pools_;
  int next_private_key_ = kFirstPrivateKey;
  std::map<char*, std::unique_ptr<Segment>> segments_;
  std::map<driver::Queue*, std::deque<Waiting>> waiting_of_;
  Block* unused_blocks_ = nullptr;
  std::deque<std::array<Block, 256>> block_storage_;
};

}  // namespace neuron::runtime
