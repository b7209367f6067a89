// Captured graphs: torch's own classes stand for them (torch.accelerator.Graph); this adds what torch has no name for.
#include "bindings/bindings.h"
#include "program/graph.h"

namespace py = pybind11;

namespace neuron::bindings {

void bind_graphs(py::module_& m) {
  m.def("register_graphs", &program::register_graphs);
  m.def("graph_pool_handle", [] {
    const auto [capture, handle] = runtime::new_pool_handle();
    return py::make_tuple(capture, handle);
  });
}

}  // namespace neuron::bindings
