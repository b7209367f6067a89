#pragma once
// The launch path: an op's call becomes a launch on the current stream's queue when a plan for its signature exists,
// and runs synchronously, making the plan, when none does.
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include "eager/call.h"
#include "eager/launch_settings.h"

namespace neuron::eager {

using Results = c10::SmallVector<at::Tensor, 4>;  // returns in order, lists flattened; arguments that are returned too

// Launches the call when there is a plan for it; false when there is none.
bool launch(Call& call, Results& results);

// Puts the returns of a launched call in the place of its arguments.
void give_results(const Call& call, Results&& results, torch::jit::Stack* stack);

// Runs the call with its arguments on the stack; returns take their place. `call` has been built from these arguments.
void run_synchronously(Call& call, torch::jit::Stack* stack);

// The whole life of a boxed call: look, launch or run.
void run_boxed(OpInfo& op, torch::jit::Stack* stack);

// After a launch that does not go through launch(): waits and raises in blocking mode.
void wait_if_blocking(driver::Queue& queue, std::uint64_t ticket);

struct LaunchStatistics {
  std::int64_t launched, planned, synchronous, views, moved_outputs;
};
LaunchStatistics launch_statistics();

}  // namespace neuron::eager
