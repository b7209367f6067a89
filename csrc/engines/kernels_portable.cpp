// Kernels for any machine.
#include "engines/kernels.h"

namespace neuron::engines {
namespace {
#include "engines/elements.inc"
#include "engines/tables.inc"
}  // namespace

constinit const Kernels portable::kTable = make_table();

}  // namespace neuron::engines
