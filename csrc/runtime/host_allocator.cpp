#include "runtime/host_allocator.h"

#include <ATen/core/CachingHostAllocator.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "driver/machine.h"
#include "driver/queue.h"
#include "runtime/device.h"
#include "runtime/stream.h"

namespace neuron::runtime {

namespace {
std::size_t whole_pages(std::size_t bytes) {
  static const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

// The address ranges that count as pinned. The emulated DMA engine needs no locked pages, so pinning is a matter of
// knowing which ranges the device may use.
class PinnedRanges {
 public:
  void add(void* p, std::size_t bytes) {
    std::unique_lock lock(mutex_);
    ranges_.emplace(static_cast<const char*>(p), bytes);
  }
  std::size_t remove(void* p) {
    std::unique_lock lock(mutex_);
    const auto node = ranges_.extract(static_cast<const char*>(p));
    return node ? node.mapped() : 0;
  }
  bool contains(const void* p) const {
    const auto* address = static_cast<const char*>(p);
    std::shared_lock lock(mutex_);
    auto it = ranges_.upper_bound(address);
    return it != ranges_.begin() && address < (--it)->first + it->second;
  }

 private:
  mutable std::shared_mutex mutex_;
  std::map<const char*, std::size_t> ranges_;
};

PinnedRanges& pinned_ranges() {
  static auto* const ranges = new PinnedRanges;
  return *ranges;
}

// A point in a queue; as cheap as a pair of numbers, so it is held by value.
struct HostEvent {
  driver::Queue* queue;
  std::uint64_t ticket;
};

// PyTorch's host cache over memory from the operating system.
class HostCache final : public at::CachingHostAllocatorImpl<c10::Stream, HostEvent> {
 public:
  void copy_data(void* dest, const void* src, std::size_t count) const override { std::memcpy(dest, src, count); }

 private:
  using HostBlock = at::HostBlock<c10::Stream>;

  void allocate_host_memory(std::size_t bytes, void** p) override {
    const std::size_t size = whole_pages(bytes);
    void* address = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TORCH_CHECK(address != MAP_FAILED, "Cannot allocate ", c10::CachingAllocator::format_size(bytes),
                " of pinned host memory: ", std::strerror(errno));
    pinned_ranges().add(address, size);
    *p = address;
  }
  void free_block(HostBlock* block) override { munmap(block->ptr_, pinned_ranges().remove(block->ptr_)); }

  void record_stream(std::optional<std::vector<HostEvent>>& events, c10::Stream stream) override {
    driver::Queue& queue = queue_of(stream);
    events->push_back({&queue, queue.submitted()});
  }
  bool query_event(HostEvent& event) override { return event.queue->completed() >= event.ticket; }
  c10::Stream get_current_stream() const override { return current_stream(current_device()); }
  bool stream_is_capturing(c10::Stream stream) const override { return queue_of(stream).recording() != nullptr; }
};

void delete_host_block(void* context);

struct HostAllocator final : at::CachingHostAllocatorInterface<HostCache, &delete_host_block> {};

HostAllocator& instance() {
  static auto* const allocator = new HostAllocator;  // leaked: tensors may be freed after main
  return *allocator;
}

void delete_host_block(void* context) {
  // In a forked child its locks may be held for ever by threads that are not there.
  if (!driver::Machine::forked()) instance().free(context);
}

[[maybe_unused]] const bool g_registered = [] {
  at::setHostAllocator(kNeuron, &instance());
  return true;
}();
}  // namespace

c10::Allocator* host_allocator() { return &instance(); }

bool is_pinned(const void* p) { return pinned_ranges().contains(p); }

void record_host_use(const void* p, void* context, c10::Stream stream) {
  if (is_pinned(p)) instance().record_event(const_cast<void*>(p), context, stream);
}

void empty_host_cache() { instance().empty_cache(); }

}  // namespace neuron::runtime
