// Kernels for x86 with AVX2, FMA and F16C: the build gives this file their flags.
#if defined(__x86_64__)
#include <immintrin.h>

#include "engines/kernels.h"

namespace neuron::engines {
namespace {
#include "engines/elements.inc"
#include "engines/f16c.inc"
#include "engines/tables.inc"
}  // namespace

constinit const Kernels avx2::kTable = make_table();

}  // namespace neuron::engines
#endif
