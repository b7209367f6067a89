// What PyTorch asks of a device: current device and stream of a thread, events, waiting.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "driver/event.h"
#include "driver/machine.h"
#include "runtime/allocator.h"
#include "runtime/capture.h"
#include "runtime/device.h"
#include "runtime/errors.h"
#include "runtime/stream.h"

namespace neuron::runtime {

namespace {
driver::Event& as_event(void* event) { return *static_cast<driver::Event*>(event); }

// The error state ends when a host thread is told. Launches behind the failed one must have been dropped by then, on
// all queues: they would run on data that was never computed.
void report_fault(driver::Queue& queue) {
  if (queue.fault().pending()) core(static_cast<c10::DeviceIndex>(queue.core())).synchronize();
}

void refuse_after_fork() {
  if (driver::Machine::forked()) errors::forked_process();
}

// Null when nothing was ever launched on the stream.
driver::Queue* started_queue(const c10::Stream& stream) {
  refuse_after_fork();
  if (!driver::Machine::created()) return nullptr;
  return core(stream.device_index()).started_queue(static_cast<int>(stream.id()));
}

// The queue cannot be waited for, or asked, while it records.
void refuse_while_capturing(const driver::Queue& queue, std::string_view what) {
  if (auto* capture = capture_of(queue)) refuse(*capture, [&] { errors::capture_cannot_wait(what); });
}

// Runs `f` on the event; what recordings do not allow becomes an error of the catalogue.
template <class F>
auto on_event(void* event, std::string_view what, F&& f) {
  const driver::Event& e = as_event(event);
  try {
    return f(e);
  } catch (const driver::RecordingError& error) {
    raise_for(error, what, nullptr, e.recording());
  }
}

class NeuronGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kNeuron; }

  c10::Device exchangeDevice(c10::Device device) const override {
    return c10::Device(kNeuron, exchange_device(device.index()));
  }
  c10::Device getDevice() const override { return c10::Device(kNeuron, current_device()); }
  void setDevice(c10::Device device) const override { exchange_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0 && device.index() < device_count()) exchange_device(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count(); }
  // Everything that the CPU computes with.
  c10::DeviceCapability getDeviceCapability(c10::Device) const override { return {}; }

  c10::Stream getStream(c10::Device device) const override { return current_stream(device.index()); }
  c10::Stream getDefaultStream(c10::Device device) const override { return default_stream(device.index()); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    return stream_from_pool(device.index(), high_priority ? -1 : 0);
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return stream_from_pool(device.index(), priority);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return exchange_current_stream(stream); }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return &queue_of(stream); }

  bool queryStream(const c10::Stream& stream) const override {
    driver::Queue* queue = started_queue(stream);
    if (!queue) return true;
    refuse_while_capturing(*queue, "Asking whether a stream is done");
    return queue->idle();
  }
  bool isStreamCapturing(const c10::Stream& stream) const override {
    if (!any_capture()) return false;
    driver::Queue* queue = started_queue(stream);
    return queue && queue->recording();
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    driver::Queue* queue = started_queue(stream);
    if (!queue) return;
    refuse_while_capturing(*queue, "Synchronizing a stream");
    queue->wait_idle();
    report_fault(*queue);
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    synchronize(device < 0 ? current_device() : device);
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex device,
              const c10::EventFlag flag) const override {
    TORCH_CHECK(device < 0 || device == stream.device_index(), "Event device neuron:", static_cast<int>(device),
                " does not match recording stream's device ", stream.device(), ".");
    driver::Queue& queue = queue_of(stream);
    if (!*event) *event = new driver::Event(flag == c10::EventFlag::BACKEND_DEFAULT);
    as_event(*event).record(queue);
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (!event) return;
    driver::Queue& queue = queue_of(stream);
    try {
      as_event(event).block(queue);
    } catch (const driver::RecordingError& error) {
      raise_for(error, "Waiting for it", &queue, as_event(event).recording());
    }
  }
  bool queryEvent(void* event) const override {
    refuse_after_fork();
    return !event || on_event(event, "Asking whether an event is done", [](auto& e) { return e.done(); });
  }
  void synchronizeEvent(void* event) const override {
    refuse_after_fork();
    if (!event) return;
    const driver::Event& e = as_event(event);
    on_event(event, "Synchronizing an event", [](auto& e) { e.wait(); });
    if (e.recorded()) report_fault(*e.queue());
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<driver::Event*>(event);
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    refuse_after_fork();
    TORCH_CHECK_VALUE(start && end && as_event(start).recorded() && as_event(end).recorded(),
                      "Both events must be recorded before calculating elapsed time.");
    TORCH_CHECK_VALUE(as_event(start).timed() && as_event(end).timed(),
                      "Both events must be created with argument 'enable_timing=True'.");
    const auto done = [](auto& e) { return e.done(); };
    constexpr std::string_view kMeasuring = "Measuring time between events";
    TORCH_CHECK_VALUE(on_event(start, kMeasuring, done) && on_event(end, kMeasuring, done),
                      "Both events must be completed before calculating elapsed time.");
    return driver::Event::elapsed_ms(as_event(start), as_event(end));
  }

  void recordDataPtrOnStream(const c10::DataPtr& ptr, const c10::Stream& stream) const override {
    allocator()->recordStream(ptr, stream);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, NeuronGuard)
}  // namespace

}  // namespace neuron::runtime
