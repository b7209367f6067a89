// ATen's functions for CPUs with AVX-512; the build gives this file -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma
// -mf16c -ffp-contract=off.
#include "eager/aten_math/table.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__) && defined(__FMA__)
#define CPU_CAPABILITY AVX512
#define CPU_CAPABILITY_AVX512
// clang-format off: each builds on those before.
#include "eager/aten_math/elements.inc"
#include "eager/aten_math/rows.inc"
#include "eager/aten_math/norm.inc"
// clang-format on

namespace neuron::eager {

AtenMathTable aten_math_avx512() {
  AtenMathTable table;
  add_elements(table);
  add_rows(table);
  add_norms(table);
  return table;
}

}  // namespace neuron::eager
#else
namespace neuron::eager {

AtenMathTable aten_math_avx512() { return {}; }

}  // namespace neuron::eager
#endif
