#include "runtime/stream.h"

#include <array>
#include <atomic>

#include "driver/machine.h"
#include "runtime/device.h"
#include "runtime/errors.h"

namespace neuron::runtime {

namespace {
constexpr int kMaxDevices = 128;  // what c10::DeviceIndex can count
constexpr int kPoolStreams = driver::Core::kQueues / 2;
constexpr int kHighPriority = -1;

struct Current {
  driver::Queue* queue = nullptr;  // null until first used
  c10::StreamId id = 0;
};
thread_local std::array<Current, kMaxDevices> t_current{};

struct RoundRobin {
  std::atomic<unsigned> normal{0}, high{0};
};
std::array<RoundRobin, kMaxDevices> g_round_robin;

c10::Stream make_stream(c10::DeviceIndex device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kNeuron, device), id);
}

void check_id(c10::StreamId id) {
  TORCH_CHECK(id >= 0 && id < driver::Core::kQueues, "There is no neuron stream with id ", id, ": ids are 0 to ",
              driver::Core::kQueues - 1);
}
}  // namespace

c10::Stream default_stream(c10::DeviceIndex device) { return make_stream(checked_device(device), 0); }

c10::Stream current_stream(c10::DeviceIndex device) {
  device = checked_device(device);
  return make_stream(device, t_current[device].id);
}

c10::Stream exchange_current_stream(c10::Stream stream) {
  TORCH_CHECK(stream.device_type() == kNeuron, "Expected a stream of device neuron but found one of ", stream.device());
  const c10::DeviceIndex device = checked_device(stream.device_index());
  check_id(stream.id());
  Current& current = t_current[device];
  const c10::Stream previous = make_stream(device, current.id);
  if (current.id != stream.id()) current = {nullptr, stream.id()};
  return previous;
}

c10::Stream stream_from_pool(c10::DeviceIndex device, int priority) {
  if (driver::Machine::forked()) errors::forked_process();
  device = checked_device(device);
  // As torch.cuda: priorities outside the range are taken as the nearest one inside.
  const bool high = priority <= kHighPriority;
  auto& next = high ? g_round_robin[device].high : g_round_robin[device].normal;
  const auto n = static_cast<c10::StreamId>(next.fetch_add(1, std::memory_order_relaxed) % kPoolStreams);
  return make_stream(device, 1 + n + (high ? kPoolStreams : 0));
}

int stream_priority(c10::Stream stream) { return stream.id() > kPoolStreams ? kHighPriority : 0; }

c10::StreamId current_stream_id(c10::DeviceIndex device) noexcept { return t_current[device].id; }

driver::Queue& queue_of(c10::Stream stream) {
  check_id(stream.id());
  return core(stream.device_index()).queue(static_cast<int>(stream.id()));
}

driver::Queue& current_queue(c10::DeviceIndex device) {
  if (driver::Machine::forked()) [[unlikely]]
    errors::forked_process();
  if (device < 0) [[unlikely]]
    device = current_device();
  Current& current = t_current[device];
  if (!current.queue) [[unlikely]]
    current.queue = &core(device).queue(static_cast<int>(current.id));
  return *current.queue;
}

}  // namespace neuron::runtime
