#pragma once
// Kernels on a worker use as many threads as the host's own kernels would: torch.set_num_threads() reaches the workers
// with the next launch.
namespace neuron::eager {
void observe_host_threads();  // on the launching thread
void apply_host_threads();    // on a worker
}  // namespace neuron::eager
