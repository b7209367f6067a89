// Devices, streams and generators for Python.
#include <pybind11/stl.h>
#include <torch/csrc/Generator.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "bindings/bindings.h"
#include "driver/machine.h"
#include "eager/launch.h"
#include "runtime/device.h"
#include "runtime/errors.h"
#include "runtime/generator.h"
#include "runtime/stream.h"

namespace py = pybind11;

namespace neuron::bindings {

namespace {
// An index of any size, as an index that fits.
c10::DeviceIndex index_of(int device) {
  if (device < -1 || device >= runtime::device_count()) errors::no_such_device(device, runtime::device_count());
  return static_cast<c10::DeviceIndex>(device);
}

std::string check_cores(const std::vector<int>& cores, const driver::InstanceType& instance) {
  for (std::size_t i = 0; i < cores.size(); ++i) {
    if (cores[i] < 0 || cores[i] >= instance.logical_cores())
      return c10::str("NEURON_RT_VISIBLE_CORES names core ", cores[i], ", but ", instance.name, " has the cores 0 to ",
                      instance.logical_cores() - 1);
    if (std::find(cores.begin(), cores.begin() + static_cast<std::ptrdiff_t>(i), cores[i]) !=
        cores.begin() + static_cast<std::ptrdiff_t>(i))
      return c10::str("NEURON_RT_VISIBLE_CORES names core ", cores[i], " twice");
  }
  return {};
}

void configure(const std::string& instance, std::size_t hbm_bytes, std::vector<int> visible_cores, bool launch_blocking,
               bool launch_lines, const std::string& error) {
  driver::Config config;
  config.error = error;
  if (const auto* type = driver::find_instance_type(instance))
    config.instance = type;
  else if (config.error.empty())
    config.error = c10::str("NEURON_EMU_INSTANCE='", instance, "' is not an instance type; choose one of ",
                            driver::instance_type_names());
  if (config.error.empty()) config.error = check_cores(visible_cores, *config.instance);
  if (config.error.empty() && hbm_bytes && hbm_bytes < driver::Hbm::kGranule)
    config.error = c10::str("NEURON_EMU_HBM_BYTES=", hbm_bytes, " is too small; memory comes in pieces of ",
                            driver::Hbm::kGranule, " bytes");
  config.hbm_bytes_per_core = hbm_bytes;
  config.visible_cores = std::move(visible_cores);
  try {
    driver::Machine::configure(std::move(config));
  } catch (const driver::MachineError& e) {
    errors::bad_configuration(e.what());
  }
  eager::set_launch_blocking(launch_blocking);
  set_launch_lines(launch_lines);
}

py::list instance_types() {
  py::list types;
  for (const auto& type : driver::instance_types()) {
    py::dict d;
    d["name"] = type.name;
    d["chip"] = type.chip;
    d["chips"] = type.chips;
    d["logical_cores_per_chip"] = type.logical_cores_per_chip;
    d["hbm_bytes_per_core"] = type.hbm_bytes_per_core;
    types.append(std::move(d));
  }
  return types;
}

std::size_t hbm_bytes(const driver::Config& config) {
  const std::size_t bytes = config.hbm_bytes_per_core ? config.hbm_bytes_per_core : config.instance->hbm_bytes_per_core;
  return bytes / driver::Hbm::kGranule * driver::Hbm::kGranule;
}

// Needs no machine.
py::dict device_properties(int index) {
  const c10::DeviceIndex device = runtime::checked_device(index_of(index));
  const auto& config = driver::Machine::config();
  const auto& instance = *config.instance;
  const int core = config.visible_cores.empty() ? device : config.visible_cores[static_cast<std::size_t>(device)];
  py::dict d;
  d["name"] = instance.chip == "trn3" ? "Trainium3 (emulated)" : "Trainium2 (emulated)";
  d["chip"] = instance.chip;
  d["instance"] = instance.name;
  d["total_memory"] = hbm_bytes(config);
  d["logical_cores"] = instance.logical_cores();
  d["logical_cores_per_chip"] = instance.logical_cores_per_chip;
  d["core"] = core;
  d["chip_index"] = core / instance.logical_cores_per_chip;
  return d;
}

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

// Lets all work finish; returns the text of an error that nobody was told of.
std::optional<std::string> shutdown() {
  if (!driver::Machine::created() || driver::Machine::forked()) return std::nullopt;
  auto& machine = runtime::machine();
  machine.wait_idle();
  std::optional<std::string> text;
  for (int i = 0; i < machine.cores(); ++i)
    if (const auto error = machine.core(i).fault.take(); error && !text)
      text = c10::str("neuron:", i, ": ", text_of(error));
  return text;
}

py::tuple default_generators() {
  py::tuple generators(static_cast<std::size_t>(runtime::device_count()));
  for (c10::DeviceIndex i = 0; i < runtime::device_count(); ++i)
    generators[static_cast<std::size_t>(i)] =
        py::reinterpret_steal<py::object>(THPGenerator_Wrap(runtime::default_generator(i)));
  return generators;
}

int stream_priority(c10::StreamId id, int device) {
  const c10::Device where(runtime::kNeuron, index_of(device));
  return runtime::stream_priority(c10::Stream(c10::Stream::UNSAFE, where, id));
}
}  // namespace

void bind_device(py::module_& m) {
  using release_gil = py::call_guard<py::gil_scoped_release>;
  m.def("configure", &configure, py::arg("instance"), py::arg("hbm_bytes"), py::arg("visible_cores"),
        py::arg("launch_blocking"), py::arg("launch_lines"), py::arg("error"));
  m.def("instance_types", &instance_types);
  m.def("device_count", [] { return static_cast<int>(runtime::device_count()); });
  m.def("current_device", [] { return static_cast<int>(runtime::current_device()); });
  m.def("set_device", [](int device) { runtime::set_device(index_of(device)); });
  m.def("exchange_device", [](int device) { return static_cast<int>(runtime::exchange_device(index_of(device))); });
  m.def("is_initialized", [] { return driver::Machine::created() && !driver::Machine::forked(); });
  m.def("is_in_bad_fork", &driver::Machine::forked);
  m.def("init", [] { runtime::machine(); }, release_gil());
  m.def("synchronize", [](int device) { runtime::synchronize(index_of(device)); }, release_gil());
  m.def("shutdown", &shutdown, release_gil());
  m.def("device_properties", &device_properties);
  m.def("stream_priority", &stream_priority, py::arg("stream_id"), py::arg("device_index"));
  m.def("priority_range", [] { return py::make_tuple(0, -1); });
  m.def("default_generators", &default_generators);
}

}  // namespace neuron::bindings
