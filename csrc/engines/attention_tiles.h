#pragma once
// What attention by blocks is made of: products of tiles that stay in a core's cache, and the softmax of their rows.
// A BLAS call for each of these tiles would cost up to half as much again as the product itself.
#include <cstdint>

#include "engines/number_formats.h"

namespace neuron::engines {

// Right operands and results come in panels of so many columns.
constexpr std::int64_t kPanel = 16;
constexpr std::int64_t padded(std::int64_t columns) { return (columns + kPanel - 1) / kPanel * kPanel; }

// A matrix in memory; strides count elements.
struct Strided {
  const void* data;
  Format format;
  std::int64_t row, column;  // strides
};

// c (rows x columns) = a (rows x depth) @ b (depth x columns), or c + that. Columns of `c` up to padded(columns) are
// written too.
struct TileProduct {
  const float* a;
  std::int64_t a_row, a_depth;  // strides; one of them is 1
  const float* b;               // (k, j) is b[j / kPanel * b_panel + k * b_depth + j % kPanel]; all of a panel is read
  std::int64_t b_depth, b_panel;
  float* c;
  std::int64_t c_row;
  std::int64_t rows, columns, depth;
  bool add;
};
void multiply_tile(const TileProduct& product);

// The transpose of a matrix (rows x columns) as right operand: b_depth = kPanel, b_panel = columns * kPanel. The last
// panel is filled up with zeros. `lines`: kPanel * columns floats of scratch.
void pack_transposed(const Strided& m, std::int64_t rows, std::int64_t columns, float* panels, float* lines);

// The matrix times `scale`, in rows of `width` floats, filled up with zeros.
void widen_tile(const Strided& m, std::int64_t rows, std::int64_t columns, float scale, float* to, std::int64_t width);

// The tile times the factor of its row, rounded to the format of `m`, which is written.
void narrow_tile(const float* from, std::int64_t width, const float* factors, const Strided& m, std::int64_t rows,
                 std::int64_t columns);

// One step of a softmax that sees its rows tile by tile: scores become exp(score - maximum), and what stands for the
// tiles before, `sums` and the rows of `out`, moves to the new maximum. Maxima begin at minus infinity, sums at zero.
struct SoftmaxTile {
  float* scores;
  std::int64_t width;  // floats between rows of scores
  std::int64_t rows, columns;
  float *maxima, *sums;
  float* out;
  std::int64_t out_width;  // a multiple of kPanel
};
void softmax_tile(const SoftmaxTile& tile);

// Scores become exp(score - logsumexp of their row); zero where that is minus infinity.
void probabilities_tile(float* scores, std::int64_t width, std::int64_t rows, std::int64_t columns,
                        const float* logsumexp);

// gradients = probabilities * (gradients - shift of their row): the gradient of a softmax.
void softmax_gradient_tile(const float* probabilities, float* gradients, std::int64_t width, std::int64_t rows,
                           std::int64_t columns, const float* shifts);

// sums[i] = a[i] . b[i]
void dot_rows(const float* a, const float* b, std::int64_t width, std::int64_t rows, std::int64_t columns, float* sums);

}  // namespace neuron::engines
