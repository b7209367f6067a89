#pragma once
// Programs of another extension module - kernels of NKI - as launches of the device: stream order, captures and errors
// are those of any other launch.
#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string>

#include "engines/isa/capsule.h"

namespace neuron::program {

// Launches on the current stream of the tensors' device. `tensors` are all that the program uses; `addresses` are
// those that it is run with, mostly of these tensors. Raises when a tensor is not on the device, or is used by an open
// capture of another stream.
void launch_foreign(const engines::isa::ProgramCapsule& program, const std::string& name,
                    c10::ArrayRef<at::Tensor> tensors, c10::ArrayRef<std::uintptr_t> addresses);

}  // namespace neuron::program
