#pragma once
// Kernels on a worker use as many threads as the host's own kernels would: torch.set_num_threads() reaches the workers
// with the next launch.
#include <cstdint>

namespace neuron::eager {
void observe_host_threads();  // on the launching thread
void apply_host_threads();    // on a worker

// What the engines' parallel loops run on (engines/parallel.h): the pool of ATen's own kernels.
void parallel_for(std::int64_t count, std::int64_t grain, int threads,
                  void (*body)(void* context, std::int64_t begin, std::int64_t end), void* context);
}  // namespace neuron::eager
