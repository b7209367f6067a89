#pragma once
// The parts of the extension module torch_neuronx._C. These files are the only ones that see Python.
#include <pybind11/pybind11.h>

namespace neuron::bindings {

void bind_device(pybind11::module_& m);
void bind_memory(pybind11::module_& m);
void bind_eager(pybind11::module_& m);
void bind_program(pybind11::module_& m);
void bind_graphs(pybind11::module_& m);
void bind_foreign(pybind11::module_& m);

// Launches remember the Python line that made them.
void set_launch_lines(bool on);

}  // namespace neuron::bindings
