#pragma once
// Traced kernels as the engines take them: reads the Python objects of src/nki/{instruction,storage,tensor}.py by the
// names of their fields.
#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

#include "engines/isa/program.h"

namespace neuron::bindings {

struct Traced {
  engines::isa::Program program;
  std::vector<std::uint8_t> known;   // per storage: holds something before the program starts
  std::vector<std::uint8_t> output;  // per storage: somebody reads it afterwards
};

// Throws std::invalid_argument where the objects are not what they should be.
Traced read_trace(pybind11::handle instructions, pybind11::handle storages, int registers, bool precise);

}  // namespace neuron::bindings
