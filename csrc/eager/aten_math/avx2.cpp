// ATen's functions for CPUs with AVX2; the build gives this file -mavx2 -mfma -mf16c -ffp-contract=off.
#include "eager/aten_math/table.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define CPU_CAPABILITY AVX2
#define CPU_CAPABILITY_AVX2
// clang-format off: each builds on those before.
#include "eager/aten_math/elements.inc"
#include "eager/aten_math/onednn.inc"
#include "eager/aten_math/rows.inc"
#include "eager/aten_math/norm.inc"
// clang-format on

namespace neuron::eager {

AtenMathTable aten_math_avx2() {
  AtenMathTable table;
  add_elements(table);
  add_onednn(table);
  add_rows(table);
  add_norms(table);
  return table;
}

}  // namespace neuron::eager
#else
namespace neuron::eager {

AtenMathTable aten_math_avx2() { return {}; }

}  // namespace neuron::eager
#endif
