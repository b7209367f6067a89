#pragma once
// Counters of the launch path; relaxed, since they only inform.
#include <atomic>
#include <cstdint>

namespace neuron::eager {

struct Counters {
  std::atomic<std::int64_t> launched{0};     // calls that found their plan
  std::atomic<std::int64_t> planned{0};      // calls that ran synchronously and left a plan
  std::atomic<std::int64_t> synchronous{0};  // calls that ran synchronously for good reason
  std::atomic<std::int64_t> views{0};
  std::atomic<std::int64_t> moved_outputs{0};  // outputs that a kernel put elsewhere, so that they were copied
};
inline Counters g_counters;

inline void count(std::atomic<std::int64_t>& counter, std::int64_t amount = 1) {
  // Lost updates between threads are acceptable; a locked instruction per launch is not.
  counter.store(counter.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
}

}  // namespace neuron::eager
