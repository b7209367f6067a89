#pragma once
// Random numbers of the device: a CPU generator per device, used in stream order, so that the same seed gives the same
// numbers as on the CPU.
#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include "driver/queue.h"

namespace neuron::runtime {

class NeuronGenerator final : public c10::GeneratorImpl {
 public:
  explicit NeuronGenerator(c10::DeviceIndex device);

  // Each of these waits for the launches that draw from this generator. Not while the calling thread's stream is
  // captured.
  void set_current_seed(uint64_t seed) override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  // The generator that kernels draw from.
  const at::Generator& cpu() const { return cpu_; }

  // Called before a launch that draws from it on `queue`: orders it behind earlier draws on other queues. A captured
  // launch draws when it is replayed: the capture only notes the generator.
  void before_launch(driver::Queue& queue);
  // Called with that launch's ticket. Both under the generator's mutex_.
  void after_launch(driver::Queue& queue, uint64_t ticket);

  static c10::DeviceType device_type();

 private:
  NeuronGenerator* clone_impl() const override;
  void wait() const;

  at::Generator cpu_;
  driver::Queue* last_queue_ = nullptr;
  uint64_t last_ticket_ = 0;
};

const at::Generator& default_generator(c10::DeviceIndex device);  // -1: of the current device
at::Generator new_generator(c10::DeviceIndex device);
// The device's own implementation, or an error in PyTorch's words when `generator` is not of device neuron.
NeuronGenerator& neuron_generator(const at::Generator& generator);

}  // namespace neuron::runtime
