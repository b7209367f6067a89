#include "eager/threads.h"

#include <ATen/Parallel.h>

#include <atomic>

namespace neuron::eager {

namespace {
std::atomic<int> g_threads{0};
}

void observe_host_threads() {
  // torch's setting is per thread. Only a change seen by one thread counts: autograd's threads keep the value that was
  // in force when they started.
  thread_local int seen = 0;
  const int now = at::get_num_threads();
  if (C10_LIKELY(now == seen)) return;
  if (seen || !g_threads.load(std::memory_order_relaxed)) g_threads.store(now, std::memory_order_relaxed);
  seen = now;
}

void apply_host_threads() {
  thread_local int applied = 0;
  const int wanted = g_threads.load(std::memory_order_relaxed);
  if (C10_LIKELY(wanted == applied)) return;
  at::set_num_threads(wanted);
  applied = wanted;
}

}  // namespace neuron::eager
