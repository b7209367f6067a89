#pragma once
// The tensor engine: matrix products of low-precision operands. Products are exact, sums are kept in fp32 as in PSUM,
// and the result is rounded once, on its way out. Panels of the operands are widened into scratch that stays in cache
// and multiplied there by an fp32 GEMM, which the floor above provides because torch ships the best one.
#include <cstdint>

#include "engines/number_formats.h"
#include "engines/parallel.h"

namespace neuron::engines {

// A stack of matrices. Strides count elements; 0 repeats the same elements.
struct Matrices {
  const void* data = nullptr;
  Format format = Format::kFloat32;
  std::int64_t batch_stride = 0, row_stride = 0, column_stride = 0;
};

// out[b] = alpha * row_scale x column_scale * (left[b] @ right[b]) + beta * addend[b]
struct Product {
  std::int64_t batch = 1, rows = 0, columns = 0, depth = 0;
  bool sum_over_batch = false;  // one output: the sum of the products of the batch
  Matrices left;                // rows x depth
  Matrices right;               // depth x columns
  Matrices addend;              // rows x columns; not read when beta is 0. May be the output itself
  Matrices out;                 // rows x columns, written; overlaps neither `left` nor `right`
  float alpha = 1, beta = 0;    // with alpha 0 the operands are not read, as in BLAS
  // Scales of the rows of `left` and the columns of `right`, one for all when the stride is 0; null means 1.
  const float* row_scale = nullptr;
  const float* column_scale = nullptr;
  std::int64_t row_scale_stride = 0, column_scale_stride = 0;
};

void multiply(const Product& product);

// c (rows x columns) = a (rows x depth) @ b (depth x columns) + beta * c, row-major, `a` and `b` stored transposed when
// so flagged. It is called from several threads at once.
using Sgemm = void (*)(bool transpose_a, bool transpose_b, std::int64_t rows, std::int64_t columns, std::int64_t depth,
                       const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c,
                       std::int64_t ldc);

// What the engine runs on: set once, before the first product. Without it, a GEMM and a pool of our own.
struct TensorEngineHost {
  Sgemm sgemm;
  ParallelFor parallel_for;
  int (*threads)();  // to use
};
void set_tensor_engine_host(const TensorEngineHost& host);
const TensorEngineHost& tensor_engine_host();

}  // namespace neuron::engines
