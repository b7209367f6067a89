// Products in vectors of sixteen floats.
#if defined(__x86_64__)
#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>

#include "engines/isa/sgemm.h"

namespace neuron::engines::isa {
namespace {

constexpr int kLanes = 16, kRows = 12;
#include "engines/isa/sgemm.inc"

}  // namespace

namespace avx512 {
const Gemm kGemm = &blocked;
}

}  // namespace neuron::engines::isa
#endif
