// What PyTorch asks of an accelerator beyond the guard: generators, pinned memory, resizing, initialisation.
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include <algorithm>
#include <cstring>

#include "driver/machine.h"
#include "driver/queue.h"
#include "runtime/allocator.h"
#include "runtime/device.h"
#include "runtime/generator.h"
#include "runtime/host_allocator.h"
#include "runtime/stream.h"

namespace neuron::runtime {

namespace {
struct NeuronHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  // False in a forked child as well: autograd asks before it looks at our streams, and its CPU graphs must work there.
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return driver::Machine::created() && !driver::Machine::forked();
  }
  // The machine starts at the first use of memory or of a stream, not here: asking for a generator, or whether host
  // memory is pinned, must not start it.
  void init() const override {}

  c10::DeviceIndex deviceCount() const override { return device_count(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_device(device); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override { return exchange_device(device); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchange_device(device); }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override { return default_generator(device); }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override { return new_generator(device); }

  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return host_allocator(); }

  c10::Device getDeviceFromPtr(void* data) const override {
    const int device = driver::Machine::created() ? machine().core_of(data) : -1;
    TORCH_CHECK(device >= 0, "The pointer ", data, " is not an address in the memory of a neuron device");
    return c10::Device(kNeuron, static_cast<c10::DeviceIndex>(device));
  }

  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t new_size) const override {
    auto* impl = storage.unsafeGetStorageImpl();
    TORCH_CHECK(impl->resizable(), "Trying to resize storage that is not resizable");
    const c10::DeviceIndex device = storage.device().index();
    const std::size_t kept = std::min(impl->nbytes(), new_size);
    c10::DataPtr grown = allocate(new_size, device);
    if (kept) {
      auto& queue = current_queue(device);
      driver::submit(queue, "resize_", [to = grown.get(), from = impl->data(), kept] { std::memcpy(to, from, kept); });
      allocator()->recordStream(impl->data_ptr(), current_stream(device));
    }
    impl->set_data_ptr_noswap(std::move(grown));
    impl->set_nbytes(new_size);
  }
};

[[maybe_unused]] const bool g_registered = [] {
  at::RegisterPrivateUse1HooksInterface(new NeuronHooks);
  return true;
}();
}  // namespace

}  // namespace neuron::runtime
