// The extension module torch_neuronx._C. Importing it registers the device's parts with PyTorch; no device work.
#include <c10/util/Exception.h>
#include <torch/csrc/Export.h>

#include <exception>

#include "bindings/bindings.h"

// Of torch/csrc/Exceptions.h, which would include most of ATen.
namespace torch {
TORCH_PYTHON_API void translate_exception_to_python(const std::exception_ptr& error);
}

PYBIND11_MODULE(_C, m) {
  m.doc() = "The C++ core of torch_neuronx.";
  // torch's own classes (torch.OutOfMemoryError, NotImplementedError, ...) instead of pybind11's plain RuntimeError.
  pybind11::register_local_exception_translator([](std::exception_ptr error) {
    try {
      std::rethrow_exception(error);
    } catch (const c10::Error&) {
      torch::translate_exception_to_python(std::current_exception());
    }
  });
  neuron::bindings::bind_device(m);
  neuron::bindings::bind_memory(m);
  neuron::bindings::bind_eager(m);
  neuron::bindings::bind_program(m);
  neuron::bindings::bind_graphs(m);
  neuron::bindings::bind_foreign(m);
}
