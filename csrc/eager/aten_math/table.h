#pragma once
// What each CPU capability of ATen brings: one table per instruction set, made of the same source.
#include <array>
#include <cstddef>

#include "engines/functions.h"

namespace neuron::eager {

// Floating-point types come first in engines::Dtype.
inline constexpr std::size_t kFloatDtypes = 4;

struct AtenMathTable {
  using Function = engines::Function;
  using RowFunction = engines::RowFunction;
  using Dtype = engines::Dtype;

  std::array<std::array<engines::ElementFunction, kFloatDtypes>, static_cast<std::size_t>(Function::kCount)> elements{};
  std::array<std::array<engines::RowFn, kFloatDtypes>, static_cast<std::size_t>(RowFunction::kCount)> rows{};

  const engines::ElementFunction& at(Function function, Dtype dtype) const {
    return elements[static_cast<std::size_t>(function)][static_cast<std::size_t>(dtype)];
  }
  engines::RowFn at(RowFunction function, Dtype dtype) const {
    return rows[static_cast<std::size_t>(function)][static_cast<std::size_t>(dtype)];
  }
  engines::ElementFunction& at(Function function, Dtype dtype) {
    return elements[static_cast<std::size_t>(function)][static_cast<std::size_t>(dtype)];
  }
  engines::RowFn& at(RowFunction function, Dtype dtype) {
    return rows[static_cast<std::size_t>(function)][static_cast<std::size_t>(dtype)];
  }
};

// Empty when the build has no code for the capability.
AtenMathTable aten_math_default();
AtenMathTable aten_math_avx2();
AtenMathTable aten_math_avx512();

}  // namespace neuron::eager
