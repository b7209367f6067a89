// The launch path as Python sees it, and the one place where the launch path may look at Python: the line that
// launched.
#include <Python.h>
#include <pybind11/pybind11.h>

#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "bindings/bindings.h"
#include "eager/kernels.h"
#include "eager/launch.h"

namespace py = pybind11;

namespace neuron::bindings {

namespace {

// Frames of these do not help: users look for their own line.
bool is_library_frame(std::string_view file) {
  return file.find("/torch/") != std::string_view::npos || file.find("/torch_neuronx/") != std::string_view::npos;
}

// The innermost frame of the calling thread outside torch, or the innermost at all. Sites are few and live for good.
const eager::LaunchSite* python_line() {
  if (!Py_IsInitialized() || !PyGILState_GetThisThreadState()) return nullptr;  // not a Python thread, e.g. autograd's
  py::gil_scoped_acquire gil;
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  const eager::LaunchSite* site = nullptr;
  static auto* sites = new std::map<std::pair<PyCodeObject*, int>, eager::LaunchSite>;
  while (frame) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    const int line = PyFrame_GetLineNumber(frame);
    auto [it, inserted] = sites->try_emplace({code, line});
    if (inserted) {
      Py_INCREF(code);  // the key must stay the address of this code
      const char* file = PyUnicode_AsUTF8(code->co_filename);
      it->second = {file ? file : "?", line};
    }
    Py_DECREF(code);
    if (!site || !is_library_frame(it->second.file)) site = &it->second;
    const bool found = !is_library_frame(it->second.file);
    PyFrameObject* outer = found ? nullptr : PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = outer;
  }
  return site;
}

}  // namespace

void set_launch_lines(bool on) { eager::set_launch_site_probe(on ? &python_line : nullptr); }

void bind_eager(py::module_& m) {
  m.def("register_eager", &eager::register_kernels);
  m.def("set_launch_lines", &set_launch_lines);
  m.def("set_launch_blocking", &eager::set_launch_blocking);
  m.def("launch_statistics", [] {
    const auto s = eager::launch_statistics();
    py::dict d;
    d["launched"] = s.launched;
    d["planned"] = s.planned;
    d["synchronous"] = s.synchronous;
    d["views"] = s.views;
    d["moved_outputs"] = s.moved_outputs;
    return d;
  });
}

}  // namespace neuron::bindings
