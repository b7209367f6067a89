#include "runtime/capture.h"

#include <algorithm>
#include <atomic>
#include <mutex>

#include "driver/machine.h"
#include "runtime/allocator.h"
#include "runtime/core_pool.h"
#include "runtime/device.h"
#include "runtime/errors.h"
#include "runtime/generator.h"
#include "runtime/stream.h"

namespace neuron::runtime {

namespace {

// Captures from begin() to end(), for what asks by thread.
struct OpenCaptures {
  std::mutex mutex;
  std::vector<Capture*> captures;
};
OpenCaptures& open_captures() {
  static auto* const open = new OpenCaptures;
  return *open;
}

c10::CaptureId_t next_id() {
  static std::atomic<c10::CaptureId_t> last{0};
  return last.fetch_add(1) + 1;
}

}  // namespace

c10::MempoolId_t new_capture_pool() { return {next_id(), 0}; }
c10::MempoolId_t new_pool_handle() { return {0, next_id()}; }

Capture::Capture(c10::DeviceIndex device, c10::MempoolId_t pool)
    : device_(device), pool_(pool), pool_key_(open_private_pool(device, pool)) {}

Capture::~Capture() {
  end();
  drop_launches();
  kept_.clear();
  if (!driver::Machine::forked()) close_private_pool(device_, pool_key_);
}

bool Capture::begin(driver::Queue& queue) {
  if (!record_private_pool(device_, pool_key_, this)) return false;
  thread_ = std::this_thread::get_id();
  {
    std::lock_guard lock(open_captures().mutex);
    open_captures().captures.push_back(this);
  }
  open(queue);
  return true;
}

void Capture::keep(std::shared_ptr<const void> object) {
  std::lock_guard lock(lists_mutex_);
  kept_.push_back(std::move(object));
}

bool Capture::end() {
  if (!is_open()) return true;
  const bool joined = close();
  {
    std::lock_guard lock(open_captures().mutex);
    std::erase(open_captures().captures, this);
  }
  if (!driver::Machine::forked()) record_private_pool(device_, pool_key_, nullptr);
  return joined;
}

void Capture::add_generator(NeuronGenerator& generator) {
  std::lock_guard lock(lists_mutex_);
  for (const auto& known : generators_)
    if (known.get() == &generator) return;
  generators_.push_back(c10::intrusive_ptr<c10::GeneratorImpl>::reclaim_copy(&generator));
}

void Capture::use(c10::StorageImpl* storage, const std::string& op) {
  const void* data = storage->data();
  if (!data || capture_owning(data) == this) return;
  std::lock_guard lock(lists_mutex_);
  if (inputs_.contains(storage)) return;  // it cannot be another one at the same place: a weak reference holds that
  auto weak = c10::weak_intrusive_ptr<c10::StorageImpl>(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage));
  inputs_.emplace(storage, Input{std::move(weak), data, op});
}

void Capture::use_all(const Capture& inner) {
  std::lock_guard lock(lists_mutex_);
  for (const auto& [storage, input] : inner.inputs_)
    if (capture_owning(input.data) != this) inputs_.try_emplace(storage, input);
}

void Capture::check_inputs() const {
  for (const auto& [storage, input] : inputs_)
    if (!input.storage.use_count() || storage->data() != input.data) errors::graph_input_gone(input.op);
}

void Capture::invalidate(std::string_view reason) {
  std::lock_guard lock(lists_mutex_);
  if (invalid_.empty()) invalid_ = reason.substr(0, reason.find('\n'));
}

Capture* current_capture(c10::DeviceIndex device) {
  if (!any_capture() || !driver::Machine::created()) return nullptr;
  if (device < 0) device = current_device();
  auto* queue = core(device).started_queue(static_cast<int>(current_stream_id(device)));
  return queue ? capture_of(*queue) : nullptr;
}

Capture* capture_of_thread(c10::DeviceIndex device) {
  if (!any_capture()) return nullptr;
  if (device < 0) device = current_device();
  if (auto* capture = current_capture(device)) return capture;
  std::lock_guard lock(open_captures().mutex);
  for (auto* capture : open_captures().captures)
    if (capture->device() == device && capture->begun_by_this_thread()) return capture;
  return nullptr;
}

Capture* capture_owning(const void* p) {
  Segment* segment = find_segment(p);
  return segment ? static_cast<Capture*>(segment->owner->recording.load(std::memory_order_acquire)) : nullptr;
}

void raise_for(const driver::RecordingError& error, std::string_view what, const driver::Queue* queue,
               std::uint64_t recording) {
  using Mistake = driver::RecordingError::Mistake;
  Capture* capture = queue ? capture_of(*queue) : nullptr;
  if (!capture) {
    std::lock_guard lock(open_captures().mutex);
    for (auto* open : open_captures().captures)
      if (open->id() == recording) capture = open;
  }
  const auto raise = [&] {
    switch (error.mistake) {
      case Mistake::kWaitsForOutside:
      case Mistake::kWaitsForOther:
        errors::capture_waits_for_outside();
      case Mistake::kIsOver:
        errors::captured_event(what);
      case Mistake::kAsksForEvent:
        errors::capture_cannot_wait(what);
    }
  };
  if (capture) refuse(*capture, raise);
  raise();
  TORCH_INTERNAL_ASSERT(false);
}

}  // namespace neuron::runtime
