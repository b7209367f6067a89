#pragma once
// The emulated machine: the cores of one instance. Created at first use, never destroyed (tensors may outlive main).
#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "driver/fault.h"
#include "driver/hbm.h"
#include "driver/instance.h"
#include "driver/queue.h"

namespace neuron::driver {

// Why the machine cannot be used; the higher floors put it into the words of the error catalogue.
struct MachineError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What the knobs say. Set once, before the machine is created.
struct Config {
  const InstanceType* instance = &instance_types().front();
  std::size_t hbm_bytes_per_core = 0;  // 0: as the instance type says
  std::vector<int> visible_cores;      // empty: all
  std::string error;                   // a bad knob: first use of the machine throws it
};

class Core {
 public:
  // Queue 0 is the default stream's; then 32 of normal and 32 of high priority, as torch's stream pools have.
  static constexpr int kQueues = 65;

  Core(int index, std::size_t hbm_bytes) : hbm(hbm_bytes), index_(index) {}

  int index() const { return index_; }
  // Started when first asked for.
  Queue& queue(int id);
  // Null when it was never asked for.
  Queue* started_queue(int id) const { return queues_[id].load(std::memory_order_acquire); }

  bool idle() const;
  void wait_idle();
  // Waits for all queues, then throws the pending error, if there is one.
  void synchronize();

  Hbm hbm;
  Fault fault;

 private:
  const int index_;
  std::array<std::atomic<Queue*>, kQueues> queues_{};
  std::mutex start_mutex_;
};

class Machine {
 public:
  // Throws MachineError when the machine exists already.
  static void configure(Config config);
  static const Config& config();
  // Number of cores visible to this process; needs no machine.
  static int core_count() noexcept;

  // Creates it when first asked for. Throws MachineError on a bad knob and in a forked child of a process that had one.
  static Machine& get();
  static bool created();
  // Is this a child of a process that had a machine? Then its threads are gone and it cannot be used.
  static bool forked() { return forked_.load(std::memory_order_relaxed); }

  Core& core(int index) { return *cores_[static_cast<std::size_t>(index)]; }
  int cores() const { return static_cast<int>(cores_.size()); }
  // Lets all launched work finish; errors stay pending.
  void wait_idle();
  // The core whose HBM holds `p`, or -1.
  int core_of(const void* p) const;

 private:
  explicit Machine(const Config& config);
  static std::atomic<bool> forked_;
  std::vector<std::unique_ptr<Core>> cores_;
};

}  // namespace neuron::driver
