#pragma once
// The numbers of launches, as the scalars of the tile program that runs instead of them.
#include "eager/execute.h"
#include "eager/fusion/recipe.h"
#include "engines/run.h"

namespace neuron::eager::fusion {

engines::Scalar scalar(const NumberSource& source, OpPayload& payload);

}  // namespace neuron::eager::fusion
