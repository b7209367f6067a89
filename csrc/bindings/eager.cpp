// The launch path as Python sees it, and the one place where the launch path may look at Python: the line that
// launched.
#include <Python.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "bindings/bindings.h"
#include "eager/fusion/adaptive.h"
#include "eager/fusion/hot_programs.h"
#include "eager/kernels.h"
#include "eager/launch.h"
#include "eager/low_precision.h"

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

// Asked by a worker, which must never wait for the interpreter: the main thread starts the compiler when it comes by.
bool request_compiler() {
  const int refused = Py_AddPendingCall(  // when too many calls are pending
      [](void*) -> int {
        try {
          py::module_::import("torch_neuronx.adaptive").attr("_start_compiler")();
        } catch (py::error_already_set& error) {  // no reason to fail for whatever the main thread is doing
          error.discard_as_unraisable("starting the compiler of torch_neuronx");
        }
        return 0;
      },
      nullptr);
  return refused == 0;
}

py::dict adaptive_report() {
  const auto report = eager::fusion::report();
  py::list regions;
  for (const auto& region : report.regions) {
    py::dict d;
    d["ops"] = region.ops;
    d["lines"] = region.lines;
    d["elements"] = region.elements;
    d["launches"] = region.launches;
    d["runs"] = region.runs;
    d["bytes_not_written"] = region.bytes_not_written;
    d["compiled"] = region.compiled;
    regions.append(std::move(d));
  }
  py::dict d;
  d["windows"] = report.windows;
  d["hits"] = report.hits;
  d["misses"] = report.misses;
  d["launches"] = report.launches;
  d["single"] = report.single;
  d["regions"] = std::move(regions);
  return d;
}

void bind_adaptive(py::module_& m) {
  namespace fusion = eager::fusion;
  m.def("set_adaptive", &fusion::set_adaptive);
  m.def("adaptive", &fusion::adaptive);
  m.def("adaptive_report", &adaptive_report);
  m.def("reset_adaptive_report", &fusion::reset_report);
  m.def("set_compiler", [](bool on) { fusion::set_compiler_starter(on ? &request_compiler : nullptr); });
  m.def("next_stage_to_compile", &fusion::next_stage_to_compile, py::call_guard<py::gil_scoped_release>());
  m.def("wake_compiler", &fusion::wake_compiler);
  m.def("install_stage", [](int stage, std::uintptr_t address) {
    fusion::install_stage(stage, reinterpret_cast<engines::StageFn>(address));
  });
}

}  // namespace

void set_launch_lines(bool on) { eager::set_launch_site_probe(on ? &python_line : nullptr); }

void bind_eager(py::module_& m) {
  eager::set_first_site_probe(&python_line);
  bind_adaptive(m);
  m.def("register_eager", &eager::register_kernels);
  m.def("set_launch_lines", &set_launch_lines);
  m.def("set_chip_numerics", &eager::set_chip_numerics);
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
