#pragma once
// The functions behind Op::kCall and Op::kRow. The engines bring portable ones; a higher floor that must reproduce the
// bits of another library registers its own before the first run.
#include <cstdint>

#include "engines/program.h"

namespace neuron::engines {

// `n` elements of the lane of `dtype`; `b` is null for functions of one argument. In place (out == a) is allowed.
using ElementFn = void (*)(void* out, const void* a, const void* b, std::int64_t n);

struct ElementFunction {
  ElementFn fn = nullptr;
  // Kernels that work on whole vectors and do the remainder of each thread's range with scalar code may give other bits
  // there. When `remainder` is set, it is what the elements of the remainder get: ranges are those of a loop over the
  // whole tensor that is cut for `threads` at `grain` elements, and the remainder of a range is what is left after as
  // many steps of `step` elements as fit.
  ElementFn remainder = nullptr;
  std::int64_t step = 1;
  std::int64_t (*grain)(std::int64_t elements, int threads) = nullptr;
};

// `rows x cols` elements. `in` and `out` point to tiles; class-0 operands have one element per row; absent operands
// and scalars are null in `in`. `scalars` are the scalar operands in order.
using RowFn = void (*)(void* out, const void* const* in, const Scalar* scalars, std::int64_t rows, std::int64_t cols);

void register_function(Function function, Dtype dtype, const ElementFunction& entry);
void register_function(RowFunction function, Dtype dtype, RowFn fn);

// Null entries (fn == nullptr) when there is none for the type.
const ElementFunction& element_function(Function function, Dtype dtype);
RowFn row_function(RowFunction function, Dtype dtype);

}  // namespace neuron::engines
