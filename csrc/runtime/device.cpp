#include "runtime/device.h"

#include "runtime/capture.h"
#include "runtime/errors.h"

namespace neuron::runtime {

namespace {
thread_local c10::DeviceIndex t_device = 0;
}  // namespace

c10::DeviceIndex device_count() noexcept { return static_cast<c10::DeviceIndex>(driver::Machine::core_count()); }

c10::DeviceIndex current_device() noexcept { return t_device; }

void set_device(c10::DeviceIndex device) {
  if (device < 0 || device >= device_count()) errors::no_such_device(device, device_count());
  t_device = device;
}

c10::DeviceIndex exchange_device(c10::DeviceIndex device) {
  const c10::DeviceIndex previous = t_device;
  if (device >= 0 && device != previous) set_device(device);
  return previous;
}

c10::DeviceIndex checked_device(c10::DeviceIndex device) {
  if (device < 0) return t_device;
  if (device >= device_count()) errors::no_such_device(device, device_count());
  return device;
}

driver::Machine& machine() {
  if (driver::Machine::forked()) errors::forked_process();
  try {
    return driver::Machine::get();
  } catch (const driver::MachineError& error) {
    errors::bad_configuration(error.what());
  } catch (const std::bad_alloc&) {
    errors::bad_configuration(
        "the address ranges of its HBM could not be reserved. Raise the limit on virtual memory "
        "(ulimit -v), or set NEURON_EMU_HBM_BYTES to a smaller size");
  }
}

driver::Core& core(c10::DeviceIndex device) {
  device = checked_device(device);
  return machine().core(device);
}

void synchronize(c10::DeviceIndex device) {
  device = checked_device(device);
  if (driver::Machine::forked()) errors::forked_process();
  if (auto* capture = capture_of_thread(device))
    refuse(*capture, [] { errors::capture_cannot_wait("Synchronizing the device"); });
  if (driver::Machine::created()) core(device).synchronize();
}

}  // namespace neuron::runtime
