// Row kernels for any machine.

#include <cstdint>

#include "engines/isa/row_kernels.h"

namespace neuron::engines::isa {
namespace {
#include "engines/isa/row_table.inc"
}  // namespace

constinit const RowKernels portable::kRowKernels = make_row_kernels();

}  // namespace neuron::engines::isa
