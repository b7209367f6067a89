// Programs for Python: the builder, bindings of integers, runs.
#include <pybind11/stl.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/program_arguments.h"
#include "program/call_step.h"
#include "program/flex_step.h"
#include "program/kernel_step.h"
#include "program/program.h"
#include "program/run.h"
#include "runtime/device.h"
#include "runtime/errors.h"

namespace py = pybind11;

namespace neuron::bindings {

namespace {

using program::IntRef;

c10::ScalarType dtype_of(py::handle dtype) {
  if (!THPDtype_Check(dtype.ptr())) throw py::type_error("expected a torch.dtype");
  return reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type;
}

class ProgramBuilder {
 public:
  ProgramBuilder(std::string name, int device, const py::list& arguments, bool synchronous) {
    d_.name = std::move(name);
    d_.device = runtime::checked_device(static_cast<c10::DeviceIndex>(device));
    d_.synchronous = synchronous;
    for (const auto& item : arguments) {
      program::Argument argument;
      if (!item.is_none()) {
        const auto [dtype, where] = item.cast<std::pair<py::object, std::string>>();
        argument.dtype = dtype_of(dtype);
        if (where != "neuron" && where != "cpu") fail("an argument is on '" + where + "', neither neuron nor cpu");
        argument.kind = where == "cpu" ? program::Argument::Kind::kHost : program::Argument::Kind::kDevice;
      }
      add_buffer(program::Buffer::Kind::kArgument, d_.arguments.size());
      d_.arguments.push_back(argument);
    }
  }

  std::size_t output(IntRef bytes, std::int32_t first) {
    const auto b = add_buffer(program::Buffer::Kind::kOutput, fresh_++, bytes);
    d_.buffers[b].first = first;
    return b;
  }
  std::size_t block(IntRef bytes, std::int32_t first, std::int32_t last) {
    if (first > last) fail("a block is given back before it is used");
    const auto b = add_buffer(program::Buffer::Kind::kBlock, blocks_++, bytes);
    d_.buffers[b].first = first;
    d_.buffers[b].last = last;
    return b;
  }
  void donate(std::uint32_t argument, std::int32_t last) {
    if (argument >= d_.arguments.size() || d_.arguments[argument].kind != program::Argument::Kind::kDevice)
      fail(c10::str("argument ", argument, " is no tensor of the device, so it cannot be donated"));
    d_.donated.push_back({argument, last});
  }
  std::size_t host_output(IntRef bytes) {
    if (!d_.synchronous) fail("it writes to host memory, so it has to be synchronous");
    return add_buffer(program::Buffer::Kind::kHostOutput, fresh_++, bytes);
  }
  std::size_t arena(IntRef offset) { return add_buffer(program::Buffer::Kind::kArena, 0, offset); }
  std::size_t constant(const at::Tensor& tensor) {
    const bool here = tensor.device() == c10::Device(runtime::kNeuron, d_.device) || tensor.device() == c10::kCPU;
    if (!here || tensor.layout() != c10::kStrided || tensor.is_conj() || tensor.is_neg())
      fail("a constant must be a plain strided tensor of the program's device or of the CPU");
    d_.constants.push_back(tensor);
    return add_buffer(program::Buffer::Kind::kConstant, d_.constants.size() - 1);
  }

  std::size_t tensor(std::uint32_t buffer, py::handle dtype, const std::vector<IntRef>& sizes,
                     const std::vector<IntRef>& strides, IntRef offset) {
    if (buffer >= d_.buffers.size()) fail(c10::str("there is no buffer ", buffer));
    if (sizes.size() != strides.size()) fail("a tensor has as many strides as sizes");
    const auto& in = d_.buffers[buffer];
    if (in.kind == program::Buffer::Kind::kArgument && d_.arguments[in.index].kind == program::Argument::Kind::kIgnored)
      fail(c10::str("a tensor lies in argument ", in.index, ", which is none"));
    program::Tensor t{buffer, dtype_of(dtype), {}, {}, use(offset)};
    for (const IntRef ref : sizes) t.sizes.push_back(use(ref));
    for (const IntRef ref : strides) t.strides.push_back(use(ref));
    d_.tensors.push_back(std::move(t));
    return d_.tensors.size() - 1;
  }

  void call(const std::string& op, const std::string& overload, const py::list& args, const py::dict& kwargs,
            const std::vector<std::optional<std::int32_t>>& results, std::string label) {
    auto parsed = parse_call(d_.name, op, overload, args, kwargs);
    for (const auto& argument : parsed.arguments) {
      for (const IntRef ref : argument.ints) use(ref);
      for (const auto t : argument.tensors)
        if (t >= 0 || argument.kind == program::CallArgument::Kind::kTensor) check_tensor(t);
    }
    std::vector<std::int32_t> wanted;
    for (const auto& result : results) {
      if (result) check_tensor(*result);
      wanted.push_back(result.value_or(program::CallStep::kNotWanted));
    }
    d_.steps.push_back(std::make_unique<program::CallStep>(*parsed.op, std::move(parsed.arguments), std::move(wanted),
                                                           std::move(label)));
  }

  void kernel(std::uintptr_t address, const std::vector<std::uint32_t>& operands, const std::vector<IntRef>& ints,
              IntRef units, IntRef grain, IntRef scratch, std::string name, std::string label) {
    if (!address) fail("a kernel has no address");
    for (const auto t : operands) check_tensor(t);
    for (const IntRef ref : ints) use(ref);
    d_.steps.push_back(std::make_unique<program::KernelStep>(
        program::KernelStep::Parts{reinterpret_cast<program::KernelFn>(address), operands, ints, use(units), use(grain),
                                   use(scratch)},
        std::move(name), std::move(label)));
  }

  using FlexCode = std::tuple<std::uintptr_t, std::vector<std::uint32_t>, std::vector<IntRef>>;
  void flex(bool backward, const std::vector<std::optional<std::int32_t>>& tensors, float scale, IntRef query_block,
            IntRef key_block, const std::vector<FlexCode>& codes, std::string label) {
    using Step = program::FlexStep;
    if (tensors.size() != Step::kRoles || codes.size() != 4) fail("attention has other tensors and codes");
    Step::Parts parts{backward, scale, {}, use(query_block), use(key_block), {}, {}, {}, {}};
    for (std::size_t role = 0; role < tensors.size(); ++role) {
      parts.tensors.push_back(tensors[role].value_or(Step::kNone));
      if (!tensors[role]) continue;
      check_tensor(*tensors[role]);
      const bool is_3d = role == Step::kLogsumexp || role == Step::kMaxima || role == Step::kPartialCounts ||
                         role == Step::kFullCounts || role == Step::kGradLogsumexp;
      if (d_.tensors[static_cast<std::size_t>(*tensors[role])].sizes.size() != (is_3d ? 3 : 4))
        fail(c10::str("tensor ", role, " of attention has other dimensions"));
    }
    Step::Code* const places[] = {&parts.change_partial, &parts.change_full, &parts.pull_partial, &parts.pull_full};
    for (std::size_t i = 0; i < codes.size(); ++i) {
      const auto& [address, captured, ints] = codes[i];
      for (const auto t : captured) check_tensor(t);
      for (const IntRef ref : ints) use(ref);
      *places[i] = {reinterpret_cast<program::KernelFn>(address), captured, ints};
    }
    d_.steps.push_back(std::make_unique<Step>(std::move(parts), std::move(label)));
  }

  std::shared_ptr<program::Program> build(const py::list& outputs) {
    for (const auto& item : outputs) d_.outputs.push_back(parse_output(item));
    auto built = std::make_shared<program::Program>(std::move(d_));
    d_ = {};
    return built;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { errors::bad_program(d_.name, what); }

  std::size_t add_buffer(program::Buffer::Kind kind, std::size_t index, IntRef value = 0) {
    if (kind != program::Buffer::Kind::kArgument && kind != program::Buffer::Kind::kConstant) use(value);
    d_.buffers.push_back({kind, static_cast<std::uint32_t>(index), value});
    return d_.buffers.size() - 1;
  }
  IntRef use(IntRef ref) {
    d_.ints = std::max(d_.ints, ref + 1);
    return ref;
  }
  void check_tensor(std::int64_t t) const {
    if (t < 0 || t >= static_cast<std::int64_t>(d_.tensors.size())) fail(c10::str("there is no tensor ", t));
  }

  program::Output parse_output(py::handle item) const {
    using Kind = program::Output::Kind;
    program::Output output;
    if (item.is_none()) return output;
    const auto [tag, index] = item.cast<std::pair<std::string, std::uint32_t>>();
    output.index = index;
    if (tag == "tensor") {
      output.kind = Kind::kTensor;
      check_tensor(index);
      const auto kind = d_.buffers[d_.tensors[index].buffer].kind;
      if (kind == program::Buffer::Kind::kArena || kind == program::Buffer::Kind::kConstant)
        fail(c10::str("output tensor ", index, " lies in memory that does not outlive the run, or in a constant"));
    } else if (tag == "argument") {
      output.kind = Kind::kArgument;
      if (index >= d_.arguments.size()) fail(c10::str("there is no argument ", index));
    } else if (tag == "constant") {
      output.kind = Kind::kConstant;
      if (index >= d_.buffers.size() || d_.buffers[index].kind != program::Buffer::Kind::kConstant)
        fail(c10::str("buffer ", index, " is no constant"));
      output.index = d_.buffers[index].index;
    } else {
      fail("an output has the tag '" + tag + "'; there are tensor, argument and constant");
    }
    return output;
  }

  program::Description d_;
  std::size_t fresh_ = 0, blocks_ = 0;
};

// The arguments of a run: owned, since the list may be emptied.
class Arguments {
 public:
  explicit Arguments(PyObject* list) {
    const Py_ssize_t n = PyList_GET_SIZE(list);
    for (Py_ssize_t i = 0; i < n; ++i) {
      PyObject* item = PyList_GET_ITEM(list, i);
      Py_INCREF(item);
      objects_.push_back(item);
      tensors_.push_back(THPVariable_Check(item) ? THPVariable_Unpack(item).unsafeGetTensorImpl() : nullptr);
    }
  }
  ~Arguments() {
    for (PyObject* object : objects_) Py_DECREF(object);
  }
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  PyObject* object(std::size_t i) const { return objects_[i]; }
  c10::ArrayRef<c10::TensorImpl*> tensors() const { return tensors_; }
  // Whether nobody else has the tensor or its memory.
  bool is_alone(std::size_t i) const {
    const auto* t = tensors_[i];
    return Py_REFCNT(objects_[i]) == 1 && t && t->has_storage() &&
           c10::raw::intrusive_ptr::use_count(tensors_[i]) == 1 && t->unsafe_storage().use_count() == 1;
  }

 private:
  c10::SmallVector<PyObject*, 32> objects_;
  c10::SmallVector<c10::TensorImpl*, 32> tensors_;
};

py::object run(program::Binding& binding, py::list args, bool clear) {
  const auto& outputs = binding.program()->outputs;
  const Arguments arguments(args.ptr());
  program::Run run(binding, arguments.tensors());
  if (clear && run.releases_arguments()) {
    run.announce_release();
    PyList_SetSlice(args.ptr(), 0, PyList_GET_SIZE(args.ptr()), nullptr);
    for (const auto& donated : binding.program()->donated)
      if (arguments.is_alone(donated.argument)) run.own(donated.argument);
  }
  {
    py::gil_scoped_release no_gil;  // a thread that needs the interpreter may hold the queue
    run.launch();
  }
  // Not before the launch: what is let go of now, launches before this one may take as never read.
  if (clear) PyList_SetSlice(args.ptr(), 0, PyList_GET_SIZE(args.ptr()), nullptr);
  auto results = py::reinterpret_steal<py::object>(PyList_New(static_cast<Py_ssize_t>(outputs.size())));
  if (!results) throw py::error_already_set();
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    PyObject* result = nullptr;
    switch (outputs[i].kind) {
      case program::Output::Kind::kNone:
        result = Py_NewRef(Py_None);
        break;
      case program::Output::Kind::kArgument:
        result = Py_NewRef(arguments.object(outputs[i].index));
        break;
      case program::Output::Kind::kTensor:
        result = THPVariable_Wrap(run.output(i));
        break;
      case program::Output::Kind::kConstant:
        result = THPVariable_Wrap(binding.program()->constants[outputs[i].index]);
        break;
    }
    if (!result) throw py::error_already_set();
    PyList_SET_ITEM(results.ptr(), static_cast<Py_ssize_t>(i), result);
  }
  return results;
}

py::list steps(const program::Program& program) {
  py::list list;
  for (const auto& step : program->steps) list.append(py::make_tuple(step->name(), step->label()));
  return list;
}

}  // namespace

void bind_program(py::module_& m) {
  py::class_<ProgramBuilder>(m, "ProgramBuilder")
      .def(py::init<std::string, int, const py::list&, bool>(), py::arg("name"), py::arg("device"),
           py::arg("arguments"), py::arg("synchronous") = false)
      .def("output", &ProgramBuilder::output, py::arg("bytes"), py::arg("first") = 0)
      .def("block", &ProgramBuilder::block, py::arg("bytes"), py::arg("first"), py::arg("last"))
      .def("donate", &ProgramBuilder::donate, py::arg("argument"), py::arg("last"))
      .def("host_output", &ProgramBuilder::host_output, py::arg("bytes"))
      .def("arena", &ProgramBuilder::arena, py::arg("offset"))
      .def("constant", &ProgramBuilder::constant, py::arg("tensor"))
      .def("tensor", &ProgramBuilder::tensor, py::arg("buffer"), py::arg("dtype"), py::arg("sizes"), py::arg("strides"),
           py::arg("offset"))
      .def("call", &ProgramBuilder::call, py::arg("op"), py::arg("overload"), py::arg("args"), py::arg("kwargs"),
           py::arg("results"), py::arg("label") = "")
      .def("kernel", &ProgramBuilder::kernel, py::arg("address"), py::arg("operands"), py::arg("ints"),
           py::arg("units"), py::arg("grain"), py::arg("scratch"), py::arg("name"), py::arg("label") = "")
      .def("flex", &ProgramBuilder::flex, py::arg("backward"), py::arg("tensors"), py::arg("scale"),
           py::arg("query_block"), py::arg("key_block"), py::arg("codes"), py::arg("label") = "")
      .def("build", &ProgramBuilder::build, py::arg("outputs"));
  py::class_<program::Program, std::shared_ptr<program::Program>>(m, "Program")
      .def_property_readonly("name", [](const program::Program& p) { return p->name; })
      .def("bind", &program::make_binding, py::arg("ints"))
      .def("steps", &steps);
  py::class_<program::Binding, std::shared_ptr<program::Binding>>(m, "Binding")
      .def_property_readonly("arena_bytes", &program::Binding::arena_bytes)
      .def("run", &run, py::arg("args"), py::arg("clear") = false);
  m.def("can_be_step", [](const std::string& op, const std::string& overload) {
    return program::op_for_step(op.c_str(), overload.c_str()) != nullptr;
  });
  m.def("program_statistics", [] {
    const auto s = program::statistics();
    py::dict d;
    d["runs"] = s.runs;
    d["steps"] = s.steps;
    return d;
  });
}

}  // namespace neuron::bindings
