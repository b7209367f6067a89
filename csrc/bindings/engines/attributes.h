#pragma once
// Attributes of instructions as the engines take them: names of operators, functions and commands become numbers once,
// when the program is made.
#include <Python.h>

#include "engines/isa/program.h"

namespace neuron::bindings {

// The operation of that name; kCount when there is none.
engines::isa::Op op_of(const char* name);

// `instruction` is for messages only. Throws std::invalid_argument.
std::vector<engines::isa::Attribute> attributes_of(engines::isa::Op op, PyObject* attributes, std::size_t instruction);

}  // namespace neuron::bindings
