#include "eager/threads.h"

#include <ATen/Parallel.h>

#include <algorithm>
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

void parallel_for(std::int64_t count, std::int64_t grain, int threads, void (*body)(void*, std::int64_t, std::int64_t),
                  void* context) {
  const std::int64_t pieces = (count + grain - 1) / grain;
  const std::int64_t ranges = std::min<std::int64_t>(threads, pieces);
  const std::int64_t per_range = (pieces + ranges - 1) / ranges * grain;
  at::parallel_for(0, ranges, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const std::int64_t begin = i * per_range, end = std::min(count, begin + per_range);
      if (begin < end) body(context, begin, end);
    }
  });
}

}  // namespace neuron::eager
