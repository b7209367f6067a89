#pragma once
// The engines' own definitions of functions of rows.
#include <cstddef>

#include "engines/functions.h"

namespace neuron::engines {

// Whether the result has the columns of in[0]; a reduction's has one.
constexpr bool keeps_columns(RowFunction function) {
  switch (function) {
    case RowFunction::kSoftmax:
    case RowFunction::kLogSoftmax:
    case RowFunction::kSoftmaxBackward:
    case RowFunction::kLogSoftmaxBackward:
    case RowFunction::kLayerNorm:
      return true;
    default:
      return false;
  }
}

// Whether operand `i` has class 0.
constexpr bool is_per_row(RowFunction function, std::size_t i) {
  return function == RowFunction::kLayerNorm && (i == 1 || i == 2);
}

RowFn default_row_function(RowFunction function, Dtype dtype);

}  // namespace neuron::engines
