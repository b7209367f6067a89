// Module nki._engines: programs of kernels, and what runs and analyses them. It knows neither torch nor the device.
#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "bindings/engines/reader.h"
#include "engines/isa/capsule.h"
#include "engines/isa/elements.h"
#include "engines/isa/hazards.h"
#include "engines/isa/machine.h"
#include "engines/tensor_engine.h"

namespace py = pybind11;

namespace neuron::bindings {

using namespace engines::isa;

namespace {

using Programs = std::vector<std::shared_ptr<Executable>>;

PyObject* g_fault_class = nullptr;

const char* name_of(ProgramFault::Kind kind) {
  switch (kind) {
    case ProgramFault::Kind::kOutOfBounds:
      return "out_of_bounds";
    case ProgramFault::Kind::kBadIndex:
      return "bad_index";
    case ProgramFault::Kind::kLoop:
      return "loop";
    case ProgramFault::Kind::kDeadlock:
      return "deadlock";
    case ProgramFault::Kind::kMismatch:
      return "mismatch";
    default:
      return "other";
  }
}

const char* title_of(ProgramFault::Kind kind) {
  switch (kind) {
    case ProgramFault::Kind::kOutOfBounds:
      return "out of bounds";
    case ProgramFault::Kind::kBadIndex:
      return "bad index";
    case ProgramFault::Kind::kLoop:
      return "endless loop";
    case ProgramFault::Kind::kDeadlock:
      return "deadlock";
    case ProgramFault::Kind::kMismatch:
      return "operands that do not fit";
    default:
      return "fault";
  }
}

void set_fault(const ProgramFault& fault) {
  py::object error = py::reinterpret_borrow<py::object>(g_fault_class)(fault.what());
  error.attr("kind") = name_of(fault.kind);
  error.attr("instruction") = fault.instruction;
  error.attr("program") = fault.program;
  error.attr("detail") = fault.what();
  PyErr_SetObject(g_fault_class, error.ptr());
}

std::shared_ptr<Executable> make_program(py::handle instructions, py::handle storages, int registers, bool precise) {
  Traced traced = read_trace(instructions, storages, registers, precise);
  const py::gil_scoped_release release;
  return std::make_shared<Executable>(make_image(std::move(traced.program), traced.known, traced.output));
}

// fp32 for all floats and int64 for all integers: what a print shows.
py::array values_of(const Tile& tile) {
  const std::vector<py::ssize_t> shape(tile.size, tile.size + tile.rank);
  const bool floats = is_float(tile.type);
  py::array result = floats ? py::array(py::array_t<float>(shape)) : py::array(py::array_t<std::int64_t>(shape));
  Cursor cursor(tile);
  for (std::int64_t i = 0, n = tile.elements(); i < n; ++i) {
    const std::byte* at = cursor.pointer();
    if (floats)
      static_cast<float*>(result.mutable_data())[i] = at ? float_at(tile.type, at) : 0;
    else
      static_cast<std::int64_t*>(result.mutable_data())[i] = at ? integer_at(tile.type, at) : 0;
    cursor.advance(1);
  }
  if (tile.type == Type::kBool) return result.attr("astype")("bool");
  return result;
}

Print printer(const py::object& print) {
  if (print.is_none()) return &print_to_stdout;
  return [print](const std::string& prefix, const Tile& tile) {
    const py::gil_scoped_acquire acquire;
    print(prefix, values_of(tile));
  };
}

// Callers give the addresses of HBM storages, in order; the machine wants one place per storage.
std::vector<void*> places_of(const Executable& program, void* const*& addresses) {
  std::vector<void*> places;
  for (const Storage& storage : program.image().program.storages)
    places.push_back(on_chip(storage) ? nullptr : *addresses++);
  return places;
}

std::size_t in_hbm(const Executable& program) {
  const auto& storages = program.image().program.storages;
  return static_cast<std::size_t>(
      std::count_if(storages.begin(), storages.end(), [](const Storage& s) { return !on_chip(s); }));
}

void run_programs(const Programs& programs, const std::vector<std::vector<std::uintptr_t>>& memories,
                  std::optional<int> threads, const py::object& print) {
  if (programs.size() != memories.size()) throw std::invalid_argument("programs and memories differ in number");
  std::vector<std::vector<void*>> all;
  std::vector<void* const*> places;
  for (std::size_t i = 0; i < memories.size(); ++i) {
    const std::size_t expected = in_hbm(*programs[i]);
    if (memories[i].size() != expected)
      throw std::invalid_argument("program " + std::to_string(i) + " has " + std::to_string(expected) +
                                  " storages in HBM, not " + std::to_string(memories[i].size()));
    std::vector<void*> addresses;
    for (const std::uintptr_t address : memories[i]) addresses.push_back(reinterpret_cast<void*>(address));
    void* const* next = addresses.data();
    all.push_back(places_of(*programs[i], next));
    places.push_back(all.back().data());
  }
  const Print show = printer(print);
  const py::gil_scoped_release release;
  run(programs, places, threads.value_or(0), show);
}

// What a capsule points to: programs that run together, counted.
struct Group {
  ProgramCapsule capsule;
  Programs programs;
  std::vector<std::vector<std::string>> lines;  // of each program's instructions, or empty
  std::atomic<int> references{1};
};

int run_group(void* group, void* const* addresses, char* error, std::size_t error_size) {
  const Programs& programs = static_cast<Group*>(group)->programs;
  try {
    std::vector<std::vector<void*>> all;
    std::vector<void* const*> places;
    for (const auto& program : programs) {
      all.push_back(places_of(*program, addresses));
      places.push_back(all.back().data());
    }
    run(programs, places, 0, &print_to_stdout);
    return 0;
  } catch (const ProgramFault& fault) {
    const auto& lines = static_cast<Group*>(group)->lines;
    const auto program = static_cast<std::size_t>(fault.program), place = static_cast<std::size_t>(fault.instruction);
    const std::string where = program < lines.size() && place < lines[program].size()
                                  ? lines[program][place]
                                  : "instruction " + std::to_string(fault.instruction);
    std::snprintf(error, error_size, "%s: %s (core %d, %s)", title_of(fault.kind), fault.what(), fault.program,
                  where.c_str());
  } catch (const std::exception& other) {
    std::snprintf(error, error_size, "%s", other.what());
  }
  return 1;
}

void release_group(void* group) {
  auto* g = static_cast<Group*>(group);
  if (--g->references == 0) delete g;
}

py::capsule make_capsule(const Programs& programs, std::vector<std::vector<std::string>> lines) {
  auto* group = new Group;
  group->programs = programs;
  group->lines = std::move(lines);
  group->capsule = {kCapsuleVersion, group, &run_group, [](void* g) { ++static_cast<Group*>(g)->references; },
                    &release_group};
  return py::capsule(&group->capsule, kProgramCapsule, [](PyObject* capsule) {
    auto* pointer = static_cast<ProgramCapsule*>(PyCapsule_GetPointer(capsule, kProgramCapsule));
    pointer->release(pointer->programs);
  });
}

void set_host(const py::capsule& capsule) {
  const auto* host =
      static_cast<const engines::TensorEngineHost*>(PyCapsule_GetPointer(capsule.ptr(), "neuron.tensor_engine_host"));
  if (!host) throw py::error_already_set();
  engines::set_tensor_engine_host(*host);
}

py::list lifetimes(const Executable& e) {
  py::list result;
  for (const Lifetime& l : e.image().plan.lifetimes) result.append(py::make_tuple(l.first, l.last));
  return result;
}

py::list unwritten_reads(const Executable& e) {
  py::list result;
  for (const UnwrittenRead& r : e.image().unwritten_reads)
    result.append(py::make_tuple(r.instruction, r.operand, r.storage));
  return result;
}

py::list dependencies_of(const Executable& e, const py::object& places) {
  std::vector<Alias> aliases;
  if (!places.is_none()) {
    const auto list = places.cast<std::vector<std::optional<std::tuple<std::int64_t, std::int64_t, int>>>>();
    if (list.size() != e.image().program.storages.size())
      throw std::invalid_argument("places has " + std::to_string(list.size()) + " entries for " +
                                  std::to_string(e.image().program.storages.size()) + " storages");
    for (const auto& place : list)
      aliases.push_back(place ? Alias{std::get<2>(*place), std::get<0>(*place), std::get<1>(*place)} : Alias{});
  }
  std::vector<std::vector<std::int32_t>> found;
  {
    const py::gil_scoped_release release;
    found = dependencies(e.image(), aliases);
  }
  py::list result(found.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    py::tuple before(found[i].size());
    for (std::size_t j = 0; j < found[i].size(); ++j) before[j] = py::int_(found[i][j]);
    result[i] = std::move(before);
  }
  return result;
}

std::vector<int> types_of(const Executable& e) {
  std::vector<int> codes;
  for (const Storage& storage : e.image().program.storages) codes.push_back(static_cast<int>(storage.type));
  return codes;
}

}  // namespace

PYBIND11_MODULE(_engines, m) {
  m.doc() = "Programs of NKI kernels, and the simulated NeuronCores that run them.";
  g_fault_class = PyErr_NewException("nki._engines.ProgramFault", PyExc_RuntimeError, nullptr);
  m.attr("ProgramFault") = py::reinterpret_borrow<py::object>(g_fault_class);
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const ProgramFault& fault) {
      set_fault(fault);
    }
  });
  py::class_<Executable, std::shared_ptr<Executable>>(m, "Program")
      .def(py::init(&make_program), py::arg("instructions"), py::arg("storages"), py::arg("registers"),
           py::arg("precise") = true)
      .def("capsule", [](const std::shared_ptr<Executable>& e) { return make_capsule({e}, {}); })
      .def("lifetimes", &lifetimes)
      .def("unwritten_reads", &unwritten_reads)
      .def("unwritten_storages", [](const Executable& e) { return e.image().unwritten_storages; })
      .def("dependencies", &dependencies_of, py::arg("places") = py::none())
      .def("storage_types", &types_of)
      .def_property_readonly("memory_bytes", [](const Executable& e) { return e.image().plan.arena_bytes; });
  m.def("run", &run_programs, py::arg("programs"), py::arg("memories"), py::arg("threads") = py::none(),
        py::arg("print") = py::none());
  m.def("capsule", &make_capsule, py::arg("programs"), py::arg("lines") = std::vector<std::vector<std::string>>{});
  m.def("set_host", &set_host, py::arg("host"));
}

}  // namespace neuron::bindings
