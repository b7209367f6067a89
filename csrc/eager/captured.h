#pragma once
// Calls whose launches are captured: nothing may run on the values of their arguments, for there are none yet.
#include <ATen/core/stack.h>

#include "eager/call.h"
#include "runtime/capture.h"

namespace neuron::eager {

// Can the call be launched from a capture? More than eager execution launches: indexing with indices of the device.
bool can_capture(const Call& call);

// The call, which has no plan: makes one without a look at the arguments' values, and launches. Raises when there can
// be none.
void run_captured(Call& call, torch::jit::Stack* stack, runtime::Capture& capture);

// The capture's launches of `op` use the device tensors among these.
void note_use(runtime::Capture& capture, c10::ArrayRef<c10::TensorImpl*> tensors, const std::string& op);

// Raises when the call is made on a stream that is not captured, and uses memory that an open capture has taken.
void check_use_outside(const Call& call, const driver::Queue& queue);
void check_use_outside(const c10::TensorImpl& tensor, const driver::Queue& queue, std::string_view what);

}  // namespace neuron::eager
