// ATen's functions without instruction set extensions; the build gives this file -ffp-contract=off.
#include "eager/aten_math/table.h"

#define CPU_CAPABILITY DEFAULT
#define CPU_CAPABILITY_DEFAULT
// clang-format off: each builds on those before.
#include "eager/aten_math/elements.inc"
#include "eager/aten_math/rows.inc"
#include "eager/aten_math/norm.inc"
// clang-format on

namespace neuron::eager {

AtenMathTable aten_math_default() {
  AtenMathTable table;
  add_elements(table);
  add_rows(table);
  add_norms(table);
  return table;
}

}  // namespace neuron::eager
