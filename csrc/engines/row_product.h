#pragma once
// A few fp32 rows times a matrix that is read once: the products of token-by-token inference.
#include <cstdint>

#include "engines/number_formats.h"

namespace neuron::engines {

constexpr std::int64_t kMaxProductRows = 8;

struct RowProduct {
  const float* left;  // rows x depth, contiguous
  std::int64_t rows;  // up to kMaxProductRows
  std::int64_t depth;
  const void* right;  // depth x columns; one of its strides is 1
  Format format;
  std::int64_t row_stride, column_stride;
  std::int64_t columns;
  float* sums;  // rows x columns, contiguous, written
};

void row_product(const RowProduct& p);

}  // namespace neuron::engines
