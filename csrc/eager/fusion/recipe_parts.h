#pragma once
// What the recipes of single ops share.
#include "eager/fusion/builder.h"

namespace neuron::eager::fusion {

inline bool is_reduced(c10::ScalarType type) {
  return type == c10::ScalarType::BFloat16 || type == c10::ScalarType::Half;
}
inline bool is_floating(c10::ScalarType type) { return c10::isFloatingType(type); }

// Operands of one dimension or more and of the kernel's type are loaded; others enter the kernel as a scalar does.
// `rounded`: kernels of reduced types round that scalar to their type first; the others keep it in fp32.
inline Typed operand(Builder& b, int tensor, c10::ScalarType type, bool rounded) {
  const auto& meta = b.meta(tensor);
  if (!is_reduced(type) || !meta.sizes.empty()) return b.load_as(tensor, type);
  if (meta.on_cpu) {
    Typed value = b.load_as(tensor, type);
    return rounded ? b.rounded_number(value) : value;
  }
  Typed value = b.load(tensor);
  if (rounded) return b.convert(value, type);
  if (value.type == c10::ScalarType::Double) value = b.convert(value, c10::ScalarType::Float);
  if (!is_floating(value.type)) return b.convert(value, type);
  return {value.ref, type};
}

// Results of a piece: fresh output, or the first argument.
struct Target {
  Builder& b;
  bool in_place;
  c10::ScalarType type;

  Target(Builder& builder) : b(builder), in_place(builder.in_place()) {
    if (in_place) {
      b.begin(b.tensor(0));
      type = b.type(b.tensor(0));
    } else {
      b.begin_out();
      type = b.out_type();
    }
  }
  void store(Typed value) { in_place ? b.store(b.tensor(0), value) : b.store_out(value); }
};

}  // namespace neuron::eager::fusion
