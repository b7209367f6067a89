#pragma once
// Bit-exact stand-ins for ATen's CPU functions, for the tile programs of the engines.
#include <cstdint>

#include "engines/program.h"

namespace neuron::eager {

// Takes the engines' own functions of floating-point types out. Those below that ATen's bits are known of come in when
// they are asked for. To be called once, before any of the others.
void register_aten_functions();

// Whether `function` may stand in for ATen's kernel where that one would be called on `elements` elements of `dtype`.
// `contiguous`: operands and result are row-major and nothing is broadcast. The first question about a function and a
// type finds the candidate that gives the bits of ATen's kernel on this machine, by comparison on some thousand
// values (a millisecond or so), and registers it with the engines. From any thread; not within an ATen kernel.
bool aten_element_exact(engines::Function function, engines::Dtype dtype, std::int64_t elements, bool contiguous);

// The same for functions over the last dimension of contiguous tensors, which ATen runs on `threads` threads.
bool aten_row_exact(engines::RowFunction function, engines::Dtype dtype, std::int64_t rows, std::int64_t cols,
                    int threads);

}  // namespace neuron::eager
