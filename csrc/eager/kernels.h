#pragma once
// The kernels of the device that are not "run the CPU kernel": each file registers its own with the library it is
// given.
#include <torch/library.h>

namespace neuron::eager {

// Everything, once: called when the module is imported, after the backend has its name.
void register_kernels();

void register_factories(torch::Library& aten);
void register_views(torch::Library& aten);
void register_copies(torch::Library& aten);
void register_hot_ops(torch::Library& aten);
void register_dropout(torch::Library& aten);
// CPU kernels for fused cells that ATen has for accelerators only; the device then runs them as any other.
void register_recurrent_cells(torch::Library& aten_cpu);

}  // namespace neuron::eager
