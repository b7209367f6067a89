#pragma once
// How programs and stages are written down.
#include "engines/program.h"

namespace neuron::engines {

const char* name_of(Op op);
const char* name_of(Lane lane);
const char* name_of(Dtype dtype);
const char* name_of(Function function);
const char* name_of(RowFunction function);

}  // namespace neuron::engines
