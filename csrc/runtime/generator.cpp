#include "runtime/generator.h"

#include <ATen/CPUGeneratorImpl.h>

#include <array>
#include <mutex>

#include "driver/event.h"
#include "driver/machine.h"
#include "runtime/capture.h"
#include "runtime/device.h"
#include "runtime/errors.h"

namespace neuron::runtime {

NeuronGenerator::NeuronGenerator(c10::DeviceIndex device)
    : c10::GeneratorImpl(c10::Device(kNeuron, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      cpu_(at::detail::createCPUGenerator()) {}

void NeuronGenerator::wait() const {
  if (auto* capture = capture_of_thread(device().index())) refuse(*capture, [] { errors::capture_generator_state(); });
  // In a forked child the launches are gone together with the workers; the state is what it was.
  if (last_queue_ && !driver::Machine::forked()) last_queue_->wait(last_ticket_);
}

void NeuronGenerator::set_current_seed(uint64_t seed) {
  wait();
  cpu_.set_current_seed(seed);
}

uint64_t NeuronGenerator::current_seed() const {
  wait();
  return cpu_.current_seed();
}

uint64_t NeuronGenerator::seed() {
  wait();
  return cpu_.seed();
}

void NeuronGenerator::set_offset(uint64_t offset) {
  TORCH_CHECK(false, "neuron generators have no offset: like the CPU's they are set with manual_seed() or set_state()");
}

uint64_t NeuronGenerator::get_offset() const {
  TORCH_CHECK(false, "neuron generators have no offset: like the CPU's they are read with get_state()");
}

void NeuronGenerator::set_state(const c10::TensorImpl& state) {
  wait();
  cpu_.unsafeGetGeneratorImpl()->set_state(state);
}

c10::intrusive_ptr<c10::TensorImpl> NeuronGenerator::get_state() const {
  wait();
  return cpu_.unsafeGetGeneratorImpl()->get_state();
}

void NeuronGenerator::before_launch(driver::Queue& queue) {
  if (auto* capture = capture_of(queue)) return capture->add_generator(*this);
  if (last_queue_ && last_queue_ != &queue) driver::block_until(queue, *last_queue_, last_ticket_);
}

void NeuronGenerator::after_launch(driver::Queue& queue, uint64_t ticket) {
  if (queue.recording()) return;
  last_queue_ = &queue;
  last_ticket_ = ticket;
}

c10::DeviceType NeuronGenerator::device_type() { return kNeuron; }

NeuronGenerator* NeuronGenerator::clone_impl() const {
  wait();
  auto* copy = new NeuronGenerator(device().index());
  copy->cpu_ = cpu_.clone();
  return copy;
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static auto* const mutex = new std::mutex;
  static auto* const generators = new std::array<at::Generator, 128>;  // leaked: tensors may be drawn after main
  device = checked_device(device);
  std::lock_guard lock(*mutex);
  at::Generator& generator = (*generators)[device];
  if (!generator.defined()) {
    generator = at::make_generator<NeuronGenerator>(device);
    generator.seed();
  }
  return generator;
}

at::Generator new_generator(c10::DeviceIndex device) {
  return at::make_generator<NeuronGenerator>(checked_device(device));
}

NeuronGenerator& neuron_generator(const at::Generator& generator) {
  TORCH_CHECK(generator.defined(), "Generator with undefined implementation is not allowed");
  if (generator.device().type() != kNeuron) errors::wrong_generator(generator.device());
  return *generator.get<NeuronGenerator>();
}

}  // namespace neuron::runtime
