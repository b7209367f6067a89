#pragma once
// One call of an op while it is looked at: its signature, its tensors and the numbers that vary.
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Scalar.h>
#include <c10/util/OptionalArrayRef.h>

#include "eager/op_info.h"
#include "eager/plan.h"
#include "runtime/device.h"

namespace neuron::eager {

inline bool is_neuron(const c10::TensorImpl* t) {
  return t->key_set().has_backend(c10::BackendComponent::PrivateUse1Bit);
}
inline bool is_undefined(const c10::TensorImpl* t) { return t == c10::UndefinedTensorImpl::singleton(); }

// A Python number as it travels in a launch.
struct Number {
  enum class Type : std::int64_t { kInt = 20, kDouble, kBool, kComplex } type;
  union {
    std::int64_t integer;
    double real[2];
  };
  c10::IValue ivalue() const;
};

class Call {
 public:
  explicit Call(OpInfo& op);

  // Arguments in the order of the schema.
  void add(const at::Tensor& tensor) { add_tensor(tensor.unsafeGetTensorImpl()); }
  void add(const std::optional<at::Tensor>& tensor) {
    add_tensor(tensor ? tensor->unsafeGetTensorImpl() : c10::UndefinedTensorImpl::singleton());
  }
  void add(at::TensorList tensors);
  void add(const c10::Scalar& number);
  void add(c10::ArrayRef<c10::Scalar> numbers);
  void add(const std::optional<c10::Scalar>& number) { number ? add(*number) : add_none(); }
  void add(double number) { add_double(number); }
  void add(std::optional<double> number) { number ? add_double(*number) : add_none(); }
  void add(bool flag) { key_.push_back(flag ? kTrue : kFalse); }
  void add(std::int64_t integer) {
    key_.push_back(kInt);
    key_.push_back(integer);
  }
  void add(std::optional<std::int64_t> integer) { integer ? add(*integer) : add_none(); }
  void add(c10::IntArrayRef integers);
  void add(c10::OptionalIntArrayRef integers) { integers ? add(*integers) : add_none(); }
  void add(c10::ScalarType dtype) { add(static_cast<std::int64_t>(dtype)); }
  void add(std::optional<c10::ScalarType> dtype) { dtype ? add(static_cast<std::int64_t>(*dtype)) : add_none(); }
  void add(std::optional<c10::MemoryFormat> f) { f ? add(static_cast<std::int64_t>(*f)) : add_none(); }
  void add(c10::string_view text);
  void add(const c10::IValue& value, const ArgInfo& info);

  // Call once after the last argument: raises when the tensors are on different devices.
  void finish();

  OpInfo& op() const { return op_; }
  bool has_device() const { return device_ >= 0; }
  c10::DeviceIndex device() const { return device_; }
  bool cacheable() const { return cacheable_; }
  const Key& key() const { return key_; }
  c10::ArrayRef<c10::TensorImpl*> tensors() const { return tensors_; }
  c10::ArrayRef<Number> numbers() const { return numbers_; }
  const at::Generator& generator() const { return generator_; }

 private:
  // The first word of each argument in the key.
  enum Tag : std::int64_t {
    kUndefined = 1,
    kNone = 2,
    kFalse = 3,
    kTrue = 4,
    kInt = 5,
    kString = 6,
    kDevice = 7,
    kGenerator = 8,
    kTensors = 9,
    kOptionalTensors = 10,
    kInts = 11,
    kDoubles = 12,
    kBools = 13,
    kNumbers = 14,
    kTensor = 16
  };

  void add_none() { key_.push_back(kNone); }
  void add_double(double number);
  void add_number(const Number& number);
  void add_tensor(c10::TensorImpl* tensor);
  void add_list(const c10::IValue& list);

  OpInfo& op_;
  Key key_;
  c10::SmallVector<c10::TensorImpl*, 16> tensors_;
  c10::SmallVector<Number, 8> numbers_;
  at::Generator generator_;
  c10::DeviceIndex device_ = -1;
  bool cacheable_ = true;
  c10::TensorImpl* cpu_tensor_ = nullptr;  // one that may not stand beside a device tensor
};

// Where two tensors of a call share a storage; -1 when tensor `i` shares with none before it. Only of the first few
// tensors: kernels of longer lists treat their tensors one by one.
int shares_storage_with(c10::ArrayRef<c10::TensorImpl*> tensors, std::size_t i);

}  // namespace neuron::eager
