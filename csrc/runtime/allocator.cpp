#include "runtime/allocator.h"

#include <array>
#include <cstring>
#include <mutex>

#include "runtime/capture.h"
#include "runtime/core_pool.h"
#include "runtime/device.h"
#include "runtime/errors.h"
#include "runtime/stream.h"

namespace neuron::runtime {

namespace {
using c10::CachingDeviceAllocator::DeviceStats;

// Leaked: blocks are freed until the very end of the process.
constinit std::array<std::atomic<CorePool*>, 128> g_pools{};

CorePool* existing_pool(c10::DeviceIndex device) { return g_pools[device].load(std::memory_order_acquire); }

CorePool& create_pool(c10::DeviceIndex device) {
  static auto* const mutex = new std::mutex;
  driver::Core& core = runtime::core(device);
  std::lock_guard lock(*mutex);
  if (CorePool* pool = existing_pool(device)) return *pool;
  auto* pool = new CorePool(core);
  g_pools[device].store(pool, std::memory_order_release);
  return *pool;
}

CorePool& pool_of(c10::DeviceIndex device) {
  if (driver::Machine::forked()) [[unlikely]]
    errors::forked_process();
  if (CorePool* pool = existing_pool(device)) [[likely]]
    return *pool;
  return create_pool(device);
}

class HbmAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override { return runtime::allocate(bytes, current_device()); }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }

  void copy_data(void* dest, const void* src, std::size_t count) const override {
    Segment* segment = find_segment(dest);
    if (!segment || driver::Queue::on_worker()) {
      std::memcpy(dest, src, count);
      return;
    }
    const auto device = static_cast<c10::DeviceIndex>(segment->core->core().index());
    driver::submit(current_queue(device), "clone", [=] { std::memcpy(dest, src, count); });
  }

  bool initialized() override { return true; }

  void emptyCache(c10::MempoolId_t mempool) override {
    if (mempool != c10::MempoolId_t{0, 0}) return;  // private pools give their memory back when their graphs are gone
    if (driver::Machine::forked()) errors::forked_process();
    for (c10::DeviceIndex device = 0; device < device_count(); ++device)
      if (auto* capture = capture_of_thread(device)) refuse(*capture, [] { errors::capture_frees_memory(); });
    for (c10::DeviceIndex device = 0; device < device_count(); ++device)
      if (CorePool* pool = existing_pool(device)) pool->release_cached();
  }

  void recordStream(const c10::DataPtr& ptr, c10::Stream stream) override {
    if (!ptr.get() || driver::Machine::forked()) return;
    // Memory that came by another way (from_blob, DLPack) is kept alive by its owner.
    if (!is_hbm_deleter(ptr.get_deleter())) return;
    CorePool::record_use(ptr.get_context(), queue_of(stream));
  }

  DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    if (CorePool* pool = existing_pool(checked_device(device))) return pool->stats();
    DeviceStats stats;
    stats.max_split_size = -1;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    if (CorePool* pool = existing_pool(checked_device(device))) pool->reset_totals();
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    if (CorePool* pool = existing_pool(checked_device(device))) pool->reset_peaks();
  }

  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override {
    device = checked_device(device);
    if (driver::Machine::forked()) errors::forked_process();
    if (CorePool* pool = existing_pool(device)) {
      const driver::Hbm& hbm = pool->core().hbm;
      return {hbm.capacity() - hbm.used(), hbm.capacity()};
    }
    const driver::Config& config = driver::Machine::config();
    std::size_t total = config.hbm_bytes_per_core ? config.hbm_bytes_per_core : config.instance->hbm_bytes_per_core;
    total = total / driver::Hbm::kGranule * driver::Hbm::kGranule;
    return {total, total};
  }
};

HbmAllocator& hbm_allocator() {
  static auto* const allocator = new HbmAllocator;
  return *allocator;
}

// Which blocks the host's allocations on the calling thread come from.
int current_key(c10::DeviceIndex device) {
  if (any_capture()) [[unlikely]]
    if (auto* capture = current_capture(device)) return capture->pool_key();
  return static_cast<int>(current_stream_id(device));
}

// torch.profiler(profile_memory=True) listens on the thread that allocates.
void report(CorePool& pool, void* p, std::int64_t bytes) {
  const DeviceStats stats = pool.stats();
  c10::reportMemoryUsageToProfiler(p, bytes, static_cast<std::size_t>(stats.allocated_bytes[0].current),
                                   static_cast<std::size_t>(stats.reserved_bytes[0].current),
                                   c10::Device(kNeuron, static_cast<c10::DeviceIndex>(pool.core().index())));
}

[[maybe_unused]] const bool g_registered = [] {
  c10::SetAllocator(kNeuron, &hbm_allocator());
  return true;
}();
}  // namespace

c10::DeviceAllocator* allocator() { return &hbm_allocator(); }

c10::DataPtr allocate(std::size_t bytes, c10::DeviceIndex device) {
  if (device < 0) [[unlikely]]
    device = current_device();
  const c10::Device where(kNeuron, device);
  if (!bytes) [[unlikely]]
    return {nullptr, nullptr, &free_block, where};
  CorePool& pool = pool_of(device);
  const int key = driver::Queue::on_worker() ? CorePool::kWorkerKey : current_key(device);
  void* p = pool.allocate(bytes, key);
  if (c10::memoryProfilingEnabled()) [[unlikely]]
    report(pool, p, static_cast<std::int64_t>(bytes));
  return {p, p, &free_block, where};
}

c10::intrusive_ptr<c10::StorageImpl> new_storage(std::size_t bytes, c10::DeviceIndex device) {
  if (device < 0) device = current_device();
  // Not make_storage_impl(): it takes the null pointer of an empty storage for "none given" and asks for one of the
  // current device.
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, allocate(bytes, device),
                                               allocator(), /*resizable=*/true);
}

bool is_hbm_deleter(c10::DeleterFnPtr deleter) { return deleter == &free_block; }

void free_block(void* p) {
  // In a forked child the lock may be held for ever by a thread that is not there.
  if (!p || driver::Machine::forked()) return;
  if (c10::memoryProfilingEnabled()) [[unlikely]] {
    Segment& segment = *find_segment(p);
    CorePool& pool = *segment.core;
    const auto bytes = static_cast<std::int64_t>(segment.slot(p)->requested);
    CorePool::free(p);
    report(pool, p, -bytes);
    return;
  }
  CorePool::free(p);
}

int open_private_pool(c10::DeviceIndex device, c10::MempoolId_t id) { return pool_of(device).open_private(id); }

void close_private_pool(c10::DeviceIndex device, int key) { pool_of(device).close_private(key); }

bool record_private_pool(c10::DeviceIndex device, int key, driver::Recording* recording) {
  return pool_of(device).record_private(key, recording);
}

bool is_hbm_address(const void* p) { return find_segment(p) != nullptr; }

std::vector<c10::CachingDeviceAllocator::SegmentInfo> memory_snapshot(c10::DeviceIndex device) {
  CorePool* pool = existing_pool(checked_device(device));
  return pool ? pool->snapshot() : std::vector<c10::CachingDeviceAllocator::SegmentInfo>{};
}

}  // namespace neuron::runtime
