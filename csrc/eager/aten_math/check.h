#pragma once
// Compares candidates with ATen's kernels.
#include "eager/aten_math/table.h"

namespace neuron::eager {

bool same_bits_as_aten(engines::Function function, engines::Dtype dtype, const engines::ElementFunction& candidate);
bool same_bits_as_aten(engines::RowFunction function, engines::Dtype dtype, const AtenMathTable& candidate);

}  // namespace neuron::eager
