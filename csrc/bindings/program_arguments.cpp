#include "bindings/program_arguments.h"

#include <ATen/ScalarOps.h>
#include <pybind11/stl.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <map>
#include <optional>

#include "runtime/device.h"
#include "runtime/errors.h"

namespace py = pybind11;

namespace neuron::bindings {

namespace {

using program::CallArgument;

c10::TypePtr without_optional(c10::TypePtr type) {
  while (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  return type;
}

class Parser {
 public:
  Parser(const std::string& program, const std::string& op) : program_(program), op_(op) {}

  CallArgument parse(py::handle value, const c10::Argument& argument) const {
    const auto type = without_optional(argument.type());
    if (py::isinstance<py::tuple>(value)) {
      const auto tuple = py::reinterpret_borrow<py::tuple>(value);
      if (tuple.size() == 2 && py::isinstance<py::str>(tuple[0])) return tagged(tuple, type, argument);
    }
    return constant(value, type, argument);
  }

  // What the argument is when it was not given.
  CallArgument by_default(const c10::Argument& argument) const {
    if (type_of(argument)->kind() == c10::TypeKind::GeneratorType) return of_kind(CallArgument::Kind::kGenerator);
    if (!argument.default_value()) fail(argument, "is missing");
    CallArgument parsed;
    parsed.constant = *argument.default_value();
    return parsed;
  }

  [[noreturn]] void fail(const c10::Argument& argument, const std::string& what) const {
    errors::bad_program(program_, c10::str("argument '", argument.name(), "' of ", op_, " ", what));
  }

 private:
  static c10::TypePtr type_of(const c10::Argument& argument) { return without_optional(argument.type()); }
  static CallArgument of_kind(CallArgument::Kind kind) {
    CallArgument argument;
    argument.kind = kind;
    return argument;
  }

  CallArgument tagged(const py::tuple& tuple, const c10::TypePtr& type, const c10::Argument& argument) const {
    const auto tag = tuple[0].cast<std::string>();
    const bool takes_tensor = type->kind() == c10::TypeKind::TensorType;
    CallArgument parsed;
    if (tag == "tensor") {
      if (!takes_tensor) fail(argument, "is no tensor");
      parsed.kind = CallArgument::Kind::kTensor;
      parsed.tensors.push_back(tuple[1].cast<std::int32_t>());
    } else if (tag == "tensors") {
      const auto list = type->cast<c10::ListType>();
      if (!list) fail(argument, "is no list of tensors");
      parsed.kind = list->getElementType()->kind() == c10::TypeKind::OptionalType
                        ? CallArgument::Kind::kOptionalTensorList
                        : CallArgument::Kind::kTensorList;
      for (const auto& t : tuple[1].cast<std::vector<std::optional<std::int32_t>>>())
        parsed.tensors.push_back(t.value_or(-1));
    } else if (tag == "int") {
      parsed.kind = takes_tensor                               ? CallArgument::Kind::kIntAsTensor
                    : type->kind() == c10::TypeKind::FloatType ? CallArgument::Kind::kIntAsFloat
                                                               : CallArgument::Kind::kInt;
      parsed.ints.push_back(tuple[1].cast<program::IntRef>());
    } else if (tag == "ints") {
      parsed.kind = CallArgument::Kind::kIntList;
      parsed.ints = tuple[1].cast<std::vector<program::IntRef>>();
    } else {
      fail(argument, c10::str("has the tag '", tag, "'; there are tensor, tensors, int and ints"));
    }
    return parsed;
  }

  CallArgument constant(py::handle value, const c10::TypePtr& type, const c10::Argument& argument) const {
    if (type->kind() == c10::TypeKind::GeneratorType) {
      if (!value.is_none()) fail(argument, "can only be None: programs draw from the device's default generator");
      return of_kind(CallArgument::Kind::kGenerator);
    }
    CallArgument parsed;
    if (type->kind() == c10::TypeKind::TensorType) {
      if (value.is_none()) {
        parsed.constant = at::Tensor();
        return parsed;
      }
      // A number where a tensor is taken does not take part in type promotion as a tensor would.
      if (!PyLong_Check(value.ptr()) && !PyFloat_Check(value.ptr()) && !PyComplex_Check(value.ptr()))
        fail(argument, "is neither a tensor of the program nor a number");
      auto number = at::scalar_to_tensor(torch::jit::toIValue(value, c10::NumberType::get()).toScalar());
      number.unsafeGetTensorImpl()->set_wrapped_number(true);
      parsed.constant = std::move(number);
      return parsed;
    }
    try {
      parsed.constant = torch::jit::toIValue(value, argument.type(), argument.N());
    } catch (const std::exception& error) {
      fail(argument, c10::str("cannot be ", py::repr(value).cast<std::string>()));
    }
    if (parsed.constant.isDevice() && parsed.constant.toDevice().type() == runtime::kNeuron)
      parsed.constant = c10::Device(c10::DeviceType::CPU);
    return parsed;
  }

  const std::string& program_;
  const std::string& op_;
};

}  // namespace

ParsedCall parse_call(const std::string& program, const std::string& name, const std::string& overload,
                      const py::list& args, const py::dict& kwargs) {
  const std::string full = overload.empty() ? name : name + "." + overload;
  auto* op = program::op_for_step(name.c_str(), overload.c_str());
  if (!op) errors::bad_program(program, full + " cannot be a step (_C.can_be_step tells before)");
  const Parser parser(program, full);

  // The arguments of the op that was asked for, by name; the op that is called may have a generator besides.
  const auto& asked = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str()).schema();
  std::map<std::string, CallArgument> given;
  std::size_t keywords = 0;
  for (std::size_t i = 0; i < asked.arguments().size(); ++i) {
    const auto& argument = asked.arguments()[i];
    const char* key = argument.name().c_str();
    if (i < args.size()) {
      given.emplace(argument.name(), parser.parse(args[i], argument));
    } else if (kwargs.contains(key)) {
      given.emplace(argument.name(), parser.parse(kwargs[key], argument));
      ++keywords;
    } else {
      given.emplace(argument.name(), parser.by_default(argument));
    }
  }
  if (args.size() > asked.arguments().size() || keywords != kwargs.size())
    errors::bad_program(program, c10::str(full, " was given arguments that it does not have: ", args.size(),
                                          " by position and ", kwargs.size(), " by name"));
  ParsedCall call{op, {}};
  for (const auto& argument : op->handle.schema().arguments()) {
    const auto found = given.find(argument.name());
    call.arguments.push_back(found == given.end() ? parser.by_default(argument) : std::move(found->second));
  }
  return call;
}

}  // namespace neuron::bindings
