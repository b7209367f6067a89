#include "bindings/engines/reader.h"

#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>

#include "bindings/engines/attributes.h"

namespace neuron::bindings {

using namespace engines::isa;
using std::int32_t;
using std::int64_t;

namespace {

// A new reference that gives itself back.
class Ref {
 public:
  explicit Ref(PyObject* object) : object_(object) {}
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;
  ~Ref() { Py_XDECREF(object_); }
  PyObject* get() const { return object_; }

 private:
  PyObject* object_;
};

[[noreturn]] void refuse(const std::string& what) {
  PyErr_Clear();
  throw std::invalid_argument(what);
}

struct Names {
#define NAME(x) PyObject* x = PyUnicode_InternFromString(#x)
  NAME(op);
  NAME(engine);
  NAME(out);
  NAME(args);
  NAME(attrs);
  NAME(after);
  NAME(index);
  NAME(storage);
  NAME(dtype);
  NAME(shape);
  NAME(strides);
  NAME(offset);
  NAME(dynamic);
  NAME(number);
  NAME(kind);
  NAME(step);
  NAME(limit);
  NAME(group);
  NAME(region);
  NAME(free);
  NAME(address);
  NAME(role);
  NAME(loops);
  NAME(code);
#undef NAME
};

const Names& names() {
  static const Names names;
  return names;
}

PyObject* get(PyObject* object, PyObject* name) {
  PyObject* value = PyObject_GetAttr(object, name);
  if (!value) {
    const char* text = PyUnicode_AsUTF8(name);
    refuse(std::string("a ") + Py_TYPE(object)->tp_name + " has no \"" + (text ? text : "?") + "\"");
  }
  return value;
}

int64_t integer(PyObject* value, const char* what) {
  // Numbers of NumPy are no ints, but say that they are indices.
  if (!PyLong_Check(value)) {
    const Ref index(PyNumber_Index(value));
    if (!index.get()) refuse(std::string(what) + " is a " + Py_TYPE(value)->tp_name + ", not an integer");
    return integer(index.get(), what);
  }
  const long long number = PyLong_AsLongLong(value);
  if (number == -1 && PyErr_Occurred()) refuse(std::string(what) + " does not fit into 64 bits");
  return number;
}

int64_t integer_field(PyObject* object, PyObject* name) {
  const Ref value(get(object, name));
  return integer(value.get(), PyUnicode_AsUTF8(name));
}

std::string_view text(PyObject* value, const char* what) {
  const char* result = PyUnicode_Check(value) ? PyUnicode_AsUTF8(value) : nullptr;
  if (!result) refuse(std::string(what) + " is a " + Py_TYPE(value)->tp_name + ", not a string");
  return result;
}

Type type_of(PyObject* dtype) {
  const int64_t code = integer_field(dtype, names().code);
  if (code < 0 || code >= static_cast<int64_t>(Type::kCount)) refuse("no type has the code " + std::to_string(code));
  return static_cast<Type>(code);
}

int engine_of(std::string_view name) {
  constexpr std::string_view kEngines[] = {"tensor", "vector", "scalar", "gpsimd", "dma", "sync"};
  for (int i = 0; i < 6; ++i)
    if (kEngines[i] == name) return i;
  refuse("there is no engine \"" + std::string(name) + "\"");
}

class Reader {
 public:
  explicit Reader(Traced& traced) : traced_(traced) {}

  void storages(PyObject* list) {
    const Ref items(PySequence_Fast(list, ""));
    if (!items.get()) refuse("storages is no list");
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.get()); ++i)
      storage(PySequence_Fast_GET_ITEM(items.get(), i), i);
  }

  void instructions(PyObject* list) {
    const Ref items(PySequence_Fast(list, ""));
    if (!items.get()) refuse("instructions is no list");
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(items.get());
    traced_.program.instructions.reserve(static_cast<std::size_t>(count));
    traced_.program.views.reserve(static_cast<std::size_t>(count) * 3);
    for (Py_ssize_t i = 0; i < count; ++i)
      instruction(PySequence_Fast_GET_ITEM(items.get(), i), static_cast<std::size_t>(i));
  }

 private:
  void storage(PyObject* object, int64_t place) {
    const Names& n = names();
    if (integer_field(object, n.number) != place)
      refuse("storage " + std::to_string(place) + " says that its number is " +
             std::to_string(integer_field(object, n.number)));
    Storage s{};
    const Ref region(get(object, n.region)), dtype(get(object, n.dtype)), shape(get(object, n.shape)),
        address(get(object, n.address)), role(get(object, n.role)), loops(get(object, n.loops));
    const std::string_view where = text(region.get(), "region");
    if (where == "sbuf")
      s.region = Storage::Region::kSbuf;
    else if (where == "psum")
      s.region = Storage::Region::kPsum;
    else if (where == "private_hbm")
      s.region = Storage::Region::kPrivateHbm;
    else if (where == "shared_hbm")
      s.region = Storage::Region::kSharedHbm;
    else
      refuse("there is no memory \"" + std::string(where) + "\"");
    s.type = type_of(dtype.get());
    s.free = integer_field(object, n.free);
    const bool chip = s.region == Storage::Region::kSbuf || s.region == Storage::Region::kPsum;
    s.partitions = 1;
    if (chip) {
      if (!PyTuple_Check(shape.get()) || PyTuple_GET_SIZE(shape.get()) < 1) refuse("a shape on chip has no dimension");
      s.partitions = integer(PyTuple_GET_ITEM(shape.get(), 0), "shape");
    }
    if (s.free < 0 || s.partitions < 0 || s.partitions > kPartitions)
      refuse("storage " + std::to_string(place) + " has " + std::to_string(s.partitions) + " partitions of " +
             std::to_string(s.free) + " elements");
    if (chip && address.get() != Py_None) {
      if (!PyTuple_Check(address.get()) || PyTuple_GET_SIZE(address.get()) != 2) refuse("an address is no pair");
      s.address_partition = integer(PyTuple_GET_ITEM(address.get(), 0), "address");
      s.address_bytes = integer(PyTuple_GET_ITEM(address.get(), 1), "address");
      if (s.address_partition < 0 || s.address_bytes < 0) refuse("an address is negative");
    }
    s.loops = static_cast<int32_t>(PySequence_Size(loops.get()));
    const std::string_view what = text(role.get(), "role");
    traced_.known.push_back(what == "argument" || what == "constant");
    traced_.output.push_back(what == "output");
    traced_.program.storages.push_back(s);
  }

  int32_t register_of(PyObject* object) {
    const int64_t number = integer_field(object, names().number);
    if (number < 0 || number >= traced_.program.registers)
      refuse("register " + std::to_string(number) + " is not one of " + std::to_string(traced_.program.registers));
    return static_cast<int32_t>(number);
  }

  int32_t view(PyObject* object) {
    if (const auto known = views_.find(object); known != views_.end()) return known->second;
    const Names& n = names();
    const Ref storage(get(object, n.storage)), dtype(get(object, n.dtype)), shape(get(object, n.shape)),
        strides(get(object, n.strides)), dynamic(get(object, n.dynamic));
    View v;
    const int64_t number = integer_field(storage.get(), n.number);
    if (number < 0 || number >= static_cast<int64_t>(traced_.program.storages.size()))
      refuse("a view of storage " + std::to_string(number) + ", which is not in the list");
    v.storage = static_cast<int32_t>(number);
    v.type = dtype.get() == last_dtype_ ? last_type_ : type_of(dtype.get());
    last_dtype_ = dtype.get();
    last_type_ = v.type;
    v.offset = integer_field(object, n.offset);
    if (!PyTuple_Check(shape.get()) || !PyTuple_Check(strides.get()) ||
        PyTuple_GET_SIZE(shape.get()) != PyTuple_GET_SIZE(strides.get()))
      refuse("shape and strides of a view are no tuples of the same length");
    const Py_ssize_t rank = PyTuple_GET_SIZE(shape.get());
    if (rank < 1 || rank > kMaxRank) refuse("a view has " + std::to_string(rank) + " dimensions");
    v.rank = static_cast<std::int8_t>(rank);
    for (Py_ssize_t d = 0; d < rank; ++d) {
      v.size[d] = integer(PyTuple_GET_ITEM(shape.get(), d), "shape");
      v.stride[d] = integer(PyTuple_GET_ITEM(strides.get(), d), "strides");
      if (v.size[d] < 0) refuse("a view has a negative size");
    }
    if (dynamic.get() != Py_None) move(dynamic.get(), v);
    const auto place = static_cast<int32_t>(traced_.program.views.size());
    traced_.program.views.push_back(v);
    views_.emplace(object, place);
    return place;
  }

  void move(PyObject* dynamic, View& v) {
    const Names& n = names();
    const Ref kind(get(dynamic, n.kind)), index(get(dynamic, n.index));
    const std::string_view name = text(kind.get(), "kind");
    if (name == "scalar")
      v.dynamic = View::Dynamic::kScalar;
    else if (name == "vector")
      v.dynamic = View::Dynamic::kVector;
    else if (name == "indirect")
      v.dynamic = View::Dynamic::kIndirect;
    else
      refuse("views do not move by \"" + std::string(name) + "\"");
    v.step = integer_field(dynamic, n.step);
    v.limit = integer_field(dynamic, n.limit);
    v.group = integer_field(dynamic, n.group);
    if (PyObject_HasAttr(index.get(), n.storage))
      v.index = view(index.get());
    else if (v.dynamic == View::Dynamic::kScalar)
      v.index_register = register_of(index.get());
    else
      refuse("the index of a \"" + std::string(name) + "\" view is no tensor");
  }

  Operand operand(PyObject* object) {
    Operand result;
    if (object == Py_None) return result;
    if (PyFloat_Check(object) || PyLong_Check(object)) {
      result.kind = Operand::Kind::kNumber;
      result.number = PyFloat_AsDouble(object);
      if (result.number == -1 && PyErr_Occurred()) refuse("a number is too large");
      return result;
    }
    PyTypeObject* type = Py_TYPE(object);
    if (type == view_type_ || (type != register_type_ && PyObject_HasAttr(object, names().storage))) {
      view_type_ = type;
      result.kind = Operand::Kind::kView;
      result.index = view(object);
    } else if (type == register_type_ || PyObject_HasAttr(object, names().number)) {
      register_type_ = type;
      result.kind = Operand::Kind::kRegister;
      result.index = register_of(object);
    } else if (PyNumber_Check(object)) {
      const Ref number(PyNumber_Float(object));
      if (!number.get()) refuse(std::string("an operand is a ") + type->tp_name);
      result.kind = Operand::Kind::kNumber;
      result.number = PyFloat_AS_DOUBLE(number.get());
    } else {
      refuse(std::string("an operand is a ") + type->tp_name);
    }
    return result;
  }

  void operands(PyObject* tuple, std::vector<Operand>& result) {
    if (!PyTuple_Check(tuple)) refuse("operands are no tuple");
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) result.push_back(operand(PyTuple_GET_ITEM(tuple, i)));
  }

  Op op(PyObject* name) {
    if (const auto known = ops_.find(name); known != ops_.end()) return known->second;
    const std::string_view spelled = text(name, "op");
    const Op op = op_of(spelled.data());
    if (op == Op::kCount) refuse("there is no operation \"" + std::string(spelled) + "\"");
    ops_.emplace(name, op);
    return op;
  }

  void instruction(PyObject* object, std::size_t place) {
    const Names& n = names();
    Instruction result{};
    try {
      const Ref name(get(object, n.op)), engine(get(object, n.engine)), out(get(object, n.out)),
          args(get(object, n.args)), attrs(get(object, n.attrs)), after(get(object, n.after));
      result.op = op(name.get());
      result.engine = static_cast<std::uint8_t>(engine_of(text(engine.get(), "engine")));
      if (!PyTuple_Check(out.get()) || !PyTuple_Check(args.get())) refuse("operands are no tuple");
      result.operands.reserve(static_cast<std::size_t>(PyTuple_GET_SIZE(out.get()) + PyTuple_GET_SIZE(args.get())));
      operands(out.get(), result.operands);
      result.outputs = static_cast<std::uint8_t>(result.operands.size());
      operands(args.get(), result.operands);
      result.attributes = attributes_of(result.op, attrs.get(), place);
      if (PyTuple_Check(after.get())) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(after.get()); ++i)
          result.after.push_back(static_cast<int32_t>(integer_field(PyTuple_GET_ITEM(after.get(), i), n.index)));
      }
    } catch (const std::invalid_argument& error) {
      const std::string_view text = error.what();
      if (text.starts_with("instruction ")) throw;
      throw std::invalid_argument("instruction " + std::to_string(place) + ": " + std::string(text));
    }
    traced_.program.instructions.push_back(std::move(result));
  }

  Traced& traced_;
  std::unordered_map<PyObject*, int32_t> views_;
  std::unordered_map<PyObject*, Op> ops_;
  PyObject* last_dtype_ = nullptr;
  Type last_type_ = Type::kFloat32;
  PyTypeObject *view_type_ = nullptr, *register_type_ = nullptr;
};

}  // namespace

Traced read_trace(pybind11::handle instructions, pybind11::handle storages, int registers, bool precise) {
  Traced traced;
  traced.program.registers = registers;
  traced.program.precise = precise;
  Reader reader(traced);
  reader.storages(storages.ptr());
  reader.instructions(instructions.ptr());
  return traced;
}

}  // namespace neuron::bindings
