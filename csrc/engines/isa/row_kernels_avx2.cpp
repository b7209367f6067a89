// Row kernels for x86 with AVX2, FMA and F16C: the build gives this file their flags.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstdint>

#include "engines/isa/row_kernels.h"

namespace neuron::engines::isa {
namespace {
#include "engines/isa/row_table.inc"
}  // namespace

constinit const RowKernels avx2::kRowKernels = make_row_kernels();

}  // namespace neuron::engines::isa
#endif
