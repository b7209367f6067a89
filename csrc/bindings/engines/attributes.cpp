#include "bindings/engines/attributes.h"

#include <array>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>

#include "engines/isa/names.h"

namespace neuron::bindings {

using namespace engines::isa;

namespace {

// One letter per attribute: a - operator, f - function, c - reduce command, g - groups (lists keep their lengths), and
// v - any other value, V - one that may be left out.
struct Entry {
  const char* name;
  const char* attributes;
};

// In the order of Op.
constexpr std::array<Entry, static_cast<std::size_t>(Op::kCount)> kOperations = {{
    {"dma_copy", "v"},
    {"dma_transpose", "vv"},
    {"dma_compute", "avv"},
    {"table_copy", "vv"},
    {"masked_copy", "v"},
    {"matmul", "vvV"},
    {"matmul_mx", "v"},
    {"transpose", ""},
    {"copy", ""},
    {"fill", "v"},
    {"copy_predicated", "v"},
    {"tensor_tensor", "av"},
    {"tensor_scalar", "avav"},
    {"scalar_tensor_tensor", "aavv"},
    {"tensor_reduce", "avv"},
    {"tensor_scalar_reduce", "avacv"},
    {"tensor_scalar_cumulative", "aac"},
    {"scan", "aavv"},
    {"partition_reduce", "a"},
    {"activation", "fac"},
    {"activate2", "faavvac"},
    {"exponential", "c"},
    {"reciprocal", ""},
    {"quantize_mx", ""},
    {"bn_stats", ""},
    {"bn_aggr", ""},
    {"max8", ""},
    {"find_index8", ""},
    {"match_replace8", "v"},
    {"shuffle", "v"},
    {"range_select", "aacavv"},
    {"select_reduce", "cav"},
    {"dropout", ""},
    {"rng", ""},
    {"rand2", ""},
    {"set_rng_seed", ""},
    {"rand_set_state", ""},
    {"rand_get_state", ""},
    {"iota", "vv"},
    {"affine_select", "vvva"},
    {"local_gather", "vv"},
    {"n_gather", ""},
    {"nonzero_with_count", "vv"},
    {"sequence_bounds", ""},
    {"topk", "v"},
    {"print", "v"},
    {"register_move", ""},
    {"register_load", ""},
    {"register_store", ""},
    {"register_alu", "aV"},
    {"loop_begin", "v"},
    {"loop_end", ""},
    {"while_begin", ""},
    {"while_end", ""},
    {"barrier", "v"},
    {"sendrecv", "vvv"},
    {"collective", "vgavv"},
}};

[[noreturn]] void refuse(Op op, std::size_t instruction, std::size_t place, const std::string& why) {
  throw std::invalid_argument("instruction " + std::to_string(instruction) + ", " +
                              kOperations[static_cast<std::size_t>(op)].name + ": attribute " + std::to_string(place) +
                              " " + why);
}

std::string_view text_of(PyObject* value) {
  Py_ssize_t length = 0;
  const char* text = PyUnicode_AsUTF8AndSize(value, &length);
  if (!text) {
    PyErr_Clear();
    return {};
  }
  return {text, static_cast<std::size_t>(length)};
}

bool is_number(PyObject* value) { return PyLong_Check(value) || PyFloat_Check(value); }

std::int64_t integer_of(PyObject* value) {
  const long long number = PyLong_AsLongLong(value);
  if (number == -1 && PyErr_Occurred()) {
    PyErr_Clear();
    throw std::invalid_argument("a number does not fit into 64 bits");
  }
  return number;
}

// Numbers of nested tuples, one after the other; with `lengths`, each inner one comes after its length.
void flatten(PyObject* value, bool lengths, std::vector<std::int64_t>& integers, std::vector<double>& numbers) {
  PyObject* items = PySequence_Fast(value, "");
  if (!items) {
    PyErr_Clear();
    throw std::invalid_argument("is no sequence");
  }
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(items);
  try {
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* item = PySequence_Fast_GET_ITEM(items, i);
      if (PyLong_Check(item)) {
        integers.push_back(integer_of(item));
        numbers.push_back(static_cast<double>(integers.back()));
      } else if (PyFloat_Check(item)) {
        numbers.push_back(PyFloat_AS_DOUBLE(item));
      } else if (PyTuple_Check(item) || PyList_Check(item)) {
        if (lengths) integers.push_back(PySequence_Size(item));
        flatten(item, lengths, integers, numbers);
      } else {
        throw std::invalid_argument(std::string("holds a ") + Py_TYPE(item)->tp_name);
      }
    }
  } catch (...) {
    Py_DECREF(items);
    throw;
  }
  Py_DECREF(items);
}

Attribute array_of(PyObject* value) {
  Py_buffer buffer;
  PyObject* copy = nullptr;
  if (PyObject_GetBuffer(value, &buffer, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) {
    PyErr_Clear();
    copy = PyObject_CallMethod(value, "copy", nullptr);
    if (!copy || PyObject_GetBuffer(copy, &buffer, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) {
      PyErr_Clear();
      Py_XDECREF(copy);
      throw std::invalid_argument(std::string("is a ") + Py_TYPE(value)->tp_name);
    }
  }
  Attribute result;
  const std::string_view format = buffer.format ? buffer.format : "B";
  if (buffer.itemsize == 1) {
    const auto* bytes = static_cast<const std::uint8_t*>(buffer.buf);
    result = std::vector<std::uint8_t>(bytes, bytes + buffer.len);
  } else if (format == "l" || format == "q" || format == "=l" || format == "=q") {
    const auto* numbers = static_cast<const std::int64_t*>(buffer.buf);
    result = std::vector<std::int64_t>(numbers, numbers + buffer.len / buffer.itemsize);
  }
  PyBuffer_Release(&buffer);
  Py_XDECREF(copy);
  if (std::holds_alternative<std::monostate>(result))
    throw std::invalid_argument("is an array whose elements are neither int64 nor of one byte");
  return result;
}

Attribute value_of(PyObject* value, bool lengths) {
  if (value == Py_None) return {};
  if (PyLong_Check(value)) return integer_of(value);
  if (PyFloat_Check(value)) return PyFloat_AS_DOUBLE(value);
  if (PyUnicode_Check(value)) return std::string(text_of(value));
  if (PyTuple_Check(value) || PyList_Check(value)) {
    std::vector<std::int64_t> integers;
    std::vector<double> numbers;
    flatten(value, lengths, integers, numbers);
    if (lengths || integers.size() == numbers.size()) return integers;
    return numbers;
  }
  if (PyObject_CheckBuffer(value)) return array_of(value);
  throw std::invalid_argument(std::string("is a ") + Py_TYPE(value)->tp_name);
}

std::int64_t named(char kind, PyObject* value) {
  const std::string_view name = text_of(value);
  const auto unknown = [&] { return std::invalid_argument("\"" + std::string(name) + "\" is unknown"); };
  if (kind == 'a') {
    const Alu op = alu_of(name);
    if (op == Alu::kCount) throw unknown();
    return static_cast<std::int64_t>(op);
  }
  if (kind == 'f') {
    const Function function = function_of(name);
    if (function == Function::kCount) throw unknown();
    return static_cast<std::int64_t>(function);
  }
  const ReduceCommand command = command_of(name);
  if (command > ReduceCommand::kLoadReduce) throw unknown();
  return static_cast<std::int64_t>(command);
}

}  // namespace

Op op_of(const char* name) {
  for (std::size_t i = 0; i < kOperations.size(); ++i)
    if (std::strcmp(kOperations[i].name, name) == 0) return static_cast<Op>(i);
  return Op::kCount;
}

std::vector<Attribute> attributes_of(Op op, PyObject* attributes, std::size_t instruction) {
  const std::string_view kinds = kOperations[static_cast<std::size_t>(op)].attributes;
  if (!PyTuple_Check(attributes)) refuse(op, instruction, 0, "is missing: attrs is no tuple");
  const auto count = static_cast<std::size_t>(PyTuple_GET_SIZE(attributes));
  std::vector<Attribute> result;
  result.reserve(kinds.size());
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    if (i >= count && kinds[i] == 'V') break;
    if (i >= count) refuse(op, instruction, i, "is missing");
    PyObject* value = PyTuple_GET_ITEM(attributes, static_cast<Py_ssize_t>(i));
    try {
      if (kinds[i] != 'v' && kinds[i] != 'V' && kinds[i] != 'g' && PyUnicode_Check(value))
        result.emplace_back(named(kinds[i], value));
      else
        result.push_back(value_of(value, kinds[i] == 'g'));
    } catch (const std::invalid_argument& error) {
      refuse(op, instruction, i, error.what());
    }
  }
  return result;
}

}  // namespace neuron::bindings
