#include "driver/machine.h"

#include <pthread.h>

#include <cstdlib>

namespace neuron::driver {

namespace {
Config& mutable_config() {
  static auto* config = new Config;
  return *config;
}
std::atomic<Machine*> g_machine{nullptr};
std::mutex g_create_mutex;
}  // namespace

std::atomic<bool> Machine::forked_{false};

Queue& Core::queue(int id) {
  auto& slot = queues_[static_cast<std::size_t>(id)];
  if (auto* queue = slot.load(std::memory_order_acquire)) return *queue;
  std::lock_guard lock(start_mutex_);
  if (auto* queue = slot.load(std::memory_order_acquire)) return *queue;
  const int priority = id > kQueues / 2 ? -1 : 0;
  auto* queue = new Queue(fault, index_, id, priority);
  slot.store(queue, std::memory_order_release);
  return *queue;
}

bool Core::idle() const {
  for (const auto& slot : queues_)
    if (auto* queue = slot.load(std::memory_order_acquire); queue && !queue->idle()) return false;
  return true;
}

void Core::wait_idle() {
  for (auto& slot : queues_)
    if (auto* queue = slot.load(std::memory_order_acquire)) queue->wait_idle();
}

void Core::synchronize() {
  wait_idle();
  fault.rethrow_if_pending();
}

void Machine::configure(Config config) {
  std::lock_guard lock(g_create_mutex);
  if (g_machine.load()) throw MachineError("the machine is in use already; knobs must be set before its first use");
  mutable_config() = std::move(config);
}

const Config& Machine::config() { return mutable_config(); }

int Machine::core_count() noexcept {
  const auto& config = mutable_config();
  if (!config.error.empty()) return 0;
  return config.visible_cores.empty() ? config.instance->logical_cores()
                                      : static_cast<int>(config.visible_cores.size());
}

bool Machine::created() { return g_machine.load(std::memory_order_acquire) != nullptr; }

Machine& Machine::get() {
  if (forked()) throw MachineError("forked");
  if (auto* machine = g_machine.load(std::memory_order_acquire)) return *machine;
  std::lock_guard lock(g_create_mutex);
  if (auto* machine = g_machine.load(std::memory_order_acquire)) return *machine;
  if (!config().error.empty()) throw MachineError(config().error);
  auto* machine = new Machine(config());
  pthread_atfork(nullptr, nullptr, [] { forked_.store(true); });
  // Static objects of the libraries that kernels call are destroyed after main: no kernel may run by then.
  std::atexit([] {
    if (!forked()) g_machine.load()->wait_idle();
  });
  g_machine.store(machine, std::memory_order_release);
  return *machine;
}

Machine::Machine(const Config& config) {
  const std::size_t hbm = config.hbm_bytes_per_core ? config.hbm_bytes_per_core : config.instance->hbm_bytes_per_core;
  for (int i = 0; i < core_count(); ++i) cores_.push_back(std::make_unique<Core>(i, hbm));
}

void Machine::wait_idle() {
  for (auto& core : cores_) core->wait_idle();
}

int Machine::core_of(const void* p) const {
  for (const auto& core : cores_)
    if (core->hbm.contains(p)) return core->index();
  return -1;
}

}  // namespace neuron::driver
