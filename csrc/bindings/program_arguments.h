#pragma once
// Arguments of a program's calls, from Python's description of them.
#include <pybind11/pybind11.h>

#include <functional>
#include <string>
#include <vector>

#include "program/call_step.h"

namespace neuron::bindings {

// A call as Python gives it: `args` by position, `kwargs` by name. Each is ("tensor", t), ("tensors", [t or None,
// ...]),
// ("int", i), ("ints", [i, ...]) or a constant.
struct ParsedCall {
  eager::OpInfo* op;
  std::vector<program::CallArgument> arguments;
};

// Raises ValueError when the op cannot be a step or the arguments are not its own.
ParsedCall parse_call(const std::string& program, const std::string& name, const std::string& overload,
                      const pybind11::list& args, const pybind11::dict& kwargs);

}  // namespace neuron::bindings
