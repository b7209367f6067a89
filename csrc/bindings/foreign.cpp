// Kernels of NKI for Python, and what the engines' own module borrows from this one.
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bindings/bindings.h"
#include "engines/tensor_engine.h"
#include "program/foreign.h"

namespace py = pybind11;

namespace neuron::bindings {

namespace {

using engines::isa::ProgramCapsule;

const ProgramCapsule& program_of(const py::capsule& capsule) {
  const auto* program =
      static_cast<const ProgramCapsule*>(PyCapsule_GetPointer(capsule.ptr(), engines::isa::kProgramCapsule));
  if (!program) throw py::error_already_set();
  if (program->version != engines::isa::kCapsuleVersion)
    throw py::value_error("the kernel's program was made by another version of nki: build torchneuron again");
  return *program;
}

}  // namespace

void bind_foreign(py::module_& m) {
  m.def(
      "launch_foreign",
      [](const py::capsule& capsule, const std::string& name, const std::vector<at::Tensor>& tensors,
         const std::vector<std::uintptr_t>& addresses) {
        const auto& program = program_of(capsule);
        py::gil_scoped_release unlocked;
        program::launch_foreign(program, name, tensors, addresses);
      },
      py::arg("program"), py::arg("name"), py::arg("tensors"), py::arg("addresses"));
  m.def("tensor_engine_host", [] { return py::capsule(&engines::tensor_engine_host(), "neuron.tensor_engine_host"); });
}

}  // namespace neuron::bindings
