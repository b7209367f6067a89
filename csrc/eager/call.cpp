#include "eager/call.h"

#include <c10/core/DefaultDtype.h>

#include <bit>
#include <functional>

#include "runtime/errors.h"

namespace neuron::eager {

c10::IValue Number::ivalue() const {
  switch (type) {
    case Type::kInt:
      return integer;
    case Type::kDouble:
      return real[0];
    case Type::kBool:
      return integer != 0;
    case Type::kComplex:
      return c10::complex<double>(real[0], real[1]);
  }
  return {};
}

int shares_storage_with(c10::ArrayRef<c10::TensorImpl*> tensors, std::size_t i) {
  constexpr std::size_t kLookedAt = 16;
  if (i >= kLookedAt || !tensors[i]->has_storage()) return -1;
  const auto* storage = tensors[i]->unsafe_storage().unsafeGetStorageImpl();
  for (std::size_t j = 0; j < i; ++j)
    if (tensors[j]->has_storage() && tensors[j]->unsafe_storage().unsafeGetStorageImpl() == storage)
      return static_cast<int>(j);
  return -1;
}

Call::Call(OpInfo& op) : op_(op) {
  // Integers become the default dtype in many ops, so it belongs to the signature.
  key_.push_back(static_cast<std::int64_t>(c10::get_default_dtype_as_scalartype()));
}

void Call::add_tensor(c10::TensorImpl* t) {
  if (is_undefined(t)) {
    key_.push_back(kUndefined);
    return;
  }
  tensors_.push_back(t);
  const std::int64_t dim = t->dim();
  const bool neuron = is_neuron(t);
  if (neuron) {
    if (C10_UNLIKELY(t->layout() != c10::kStrided || !t->has_storage()))
      errors::unsupported_layout(op_.name, c10::str(t->layout()));
    const auto index = t->device().index();
    if (device_ < 0)
      device_ = index;
    else if (C10_UNLIKELY(device_ != index))
      errors::mixed_devices(op_.name, {runtime::kNeuron, device_}, {runtime::kNeuron, index});
  } else {
    if (dim || t->layout() != c10::kStrided || t->device().type() != c10::DeviceType::CPU) {
      cpu_tensor_ = t;
      cacheable_ = false;
      return;
    }
  }
  if (C10_UNLIKELY(t->key_set().has(c10::DispatchKey::ZeroTensor))) cacheable_ = false;
  key_.push_back(kTensor | neuron << 5 | std::int64_t{t->is_wrapped_number()} << 6 | std::int64_t{t->is_conj()} << 7 |
                 std::int64_t{t->is_neg()} << 8 |
                 static_cast<std::int64_t>(c10::typeMetaToScalarType(t->dtype())) << 9 | dim << 20);
  if (!dim) return;
  const auto sizes = t->sizes(), strides = t->strides();
  key_.append(sizes.begin(), sizes.end());
  key_.append(strides.begin(), strides.end());
}

void Call::add(at::TensorList tensors) {
  key_.push_back(kTensors | static_cast<std::int64_t>(tensors.size()) << 8);
  for (const auto& tensor : tensors) add(tensor);
}

void Call::add_number(const Number& number) {
  key_.push_back(static_cast<std::int64_t>(number.type));
  if (op_.numbers_in_key) {
    key_.push_back(std::bit_cast<std::int64_t>(number.real[0]));
    key_.push_back(number.type == Number::Type::kComplex ? std::bit_cast<std::int64_t>(number.real[1]) : 0);
  }
  numbers_.push_back(number);
}

void Call::add_double(double value) {
  Number number{Number::Type::kDouble, {}};
  number.real[0] = value;
  add_number(number);
}

void Call::add(const c10::Scalar& scalar) {
  if (scalar.isFloatingPoint()) return add_double(scalar.toDouble());
  Number number{Number::Type::kInt, {}};
  if (scalar.isBoolean()) {
    number.type = Number::Type::kBool;
    number.integer = scalar.toBool();
  } else if (scalar.isComplex()) {
    const auto value = scalar.toComplexDouble();
    number.type = Number::Type::kComplex;
    number.real[0] = value.real();
    number.real[1] = value.imag();
  } else {
    number.integer = scalar.toLong();
  }
  add_number(number);
}

void Call::add(c10::ArrayRef<c10::Scalar> numbers) {
  key_.push_back(kNumbers | static_cast<std::int64_t>(numbers.size()) << 8);
  for (const auto& number : numbers) add(number);
}

void Call::add(c10::IntArrayRef integers) {
  key_.push_back(kInts | static_cast<std::int64_t>(integers.size()) << 8);
  key_.append(integers.begin(), integers.end());
}

void Call::add(c10::string_view text) {
  key_.push_back(kString | static_cast<std::int64_t>(text.size()) << 8);
  for (std::size_t i = 0; i < text.size(); i += 8) {
    std::int64_t word = 0;
    std::memcpy(&word, text.data() + i, std::min<std::size_t>(8, text.size() - i));
    key_.push_back(word);
  }
}

void Call::add_list(const c10::IValue& value) {
  const auto list = value.toListRef();
  const auto size = static_cast<std::int64_t>(list.size()) << 8;
  if (value.isTensorList()) {
    key_.push_back(kTensors | size);
    for (const auto& element : list) add_tensor(element.unsafeToTensorImpl());
  } else if (value.isOptionalTensorList()) {
    key_.push_back(kOptionalTensors | size);
    for (const auto& element : list) element.isNone() ? add_none() : add_tensor(element.unsafeToTensorImpl());
  } else if (value.isIntList()) {
    key_.push_back(kInts | size);
    for (const auto& element : list) key_.push_back(element.toInt());
  } else if (value.isDoubleList()) {
    key_.push_back(kDoubles | size);
    for (const auto& element : list) key_.push_back(std::bit_cast<std::int64_t>(element.toDouble()));
  } else if (value.isBoolList()) {
    key_.push_back(kBools | size);
    for (const auto& element : list) key_.push_back(element.toBool());
  } else {
    key_.push_back(kNumbers | size);
    for (const auto& element : list) {
      if (!element.isScalar()) {
        cacheable_ = false;
        return;
      }
      add(element.toScalar());
    }
  }
}

void Call::add(const c10::IValue& value, const ArgInfo& info) {
  if (value.isTensor()) {
    add_tensor(value.unsafeToTensorImpl());
  } else if (info.generator) {
    key_.push_back(kGenerator);
    if (value.isGenerator()) generator_ = value.toGenerator();
  } else if (value.isNone()) {
    add_none();
  } else if (value.isBool() && !info.number) {
    add(value.toBool());
  } else if (value.isInt() && !info.number) {
    add(value.toInt());
  } else if (value.isScalar()) {
    add(value.toScalar());
  } else if (value.isList()) {
    add_list(value);
  } else if (value.isString()) {
    add(value.toStringView());
  } else if (value.isDevice()) {
    key_.push_back(kDevice);
    const auto device = value.toDevice();
    if (device.type() != runtime::kNeuron)
      cacheable_ = false;
    else if (device_ < 0)
      device_ = device.has_index() ? device.index() : runtime::current_device();
  } else {
    cacheable_ = false;
  }
}

void Call::finish() {
  // A generator of ours alone has brought the call here: its tensors, or the tensor that it would make, are the CPU's.
  if (C10_UNLIKELY(generator_.defined()) && device_ < 0)
    TORCH_CHECK(false, "Expected a 'cpu' device type for generator but found '", generator_.device().type(), "'");
  if (C10_UNLIKELY(cpu_tensor_ != nullptr) && device_ >= 0 && !op_.mixed_devices)
    errors::mixed_devices(op_.name, {runtime::kNeuron, device_}, cpu_tensor_->device());
  if (op_.mutates)
    for (std::size_t i = 1; i < tensors_.size(); ++i)
      if (const int j = shares_storage_with(tensors_, i); j >= 0) {
        // Whether they overlap decides if the call is legal, so a plan holds for one way of overlapping only.
        key_.push_back(kTensor << 32 | static_cast<std::int64_t>(i) << 16 | j);
        key_.push_back(tensors_[i]->storage_offset());
        key_.push_back(tensors_[static_cast<std::size_t>(j)]->storage_offset());
      }
}

}  // namespace neuron::eager
