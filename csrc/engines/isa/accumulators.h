#pragma once
// The registers, one per partition, in which the Vector and the Scalar engine reduce what an instruction writes.
#include <array>
#include <limits>

#include "engines/isa/rows.h"

namespace neuron::engines::isa {

// What changes nothing when `op` reduces it.
constexpr float identity_of(Alu op) {
  switch (op) {
    case Alu::kMultiply:
    case Alu::kLogicalAnd:
      return 1;
    case Alu::kMaximum:
      return -std::numeric_limits<float>::infinity();
    case Alu::kMinimum:
    case Alu::kAbsMin:
      return std::numeric_limits<float>::infinity();
    default:
      return 0;
  }
}

constexpr bool accumulates(ReduceCommand command) { return command >= ReduceCommand::kReduce; }

// The registers of the partitions that `out` has, as they are before the first element of the instruction.
float* prepare(Core& core, std::array<float, kPartitions>& registers, const Operand& out, ReduceCommand command, Alu op,
               std::int64_t rows, const PerPartition& loaded);

inline ReduceKernel reduce_kernel(Alu op) {
  const ReduceKernel kernel = row_kernels().reduce[index_of(op)];
  if (kernel == nullptr)
    throw ProgramFault(ProgramFault::Kind::kOther,
                       "operator " + std::string(kAluNames[index_of(op)]) + " does not reduce");
  return kernel;
}

}  // namespace neuron::engines::isa
