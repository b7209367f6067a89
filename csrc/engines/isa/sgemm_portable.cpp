// Products in the vectors that every machine of the architecture has.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>

#include "engines/isa/sgemm.h"

namespace neuron::engines::isa {
namespace {

constexpr int kLanes = 4, kRows = 6;
#include "engines/isa/sgemm.inc"

}  // namespace

namespace portable {
const Gemm kGemm = &blocked;
}

}  // namespace neuron::engines::isa
