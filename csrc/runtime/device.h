#pragma once
// The current device of each thread, and device-wide operations.
#include <c10/core/Device.h>

#include "driver/machine.h"

namespace neuron::runtime {

constexpr auto kNeuron = c10::DeviceType::PrivateUse1;

c10::DeviceIndex device_count() noexcept;
c10::DeviceIndex current_device() noexcept;
void set_device(c10::DeviceIndex device);                   // throws when there is no such device
c10::DeviceIndex exchange_device(c10::DeviceIndex device);  // -1: leaves it as it is
// `device`, or the current one for -1; throws when there is no such device.
c10::DeviceIndex checked_device(c10::DeviceIndex device);

// The machine, created at first use; errors of the driver become errors of the catalogue.
driver::Machine& machine();
driver::Core& core(c10::DeviceIndex device);

// Waits for all streams of the device and throws the pending error, if there is one.
void synchronize(c10::DeviceIndex device);

}  // namespace neuron::runtime
