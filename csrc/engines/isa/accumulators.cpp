#include "engines/isa/accumulators.h"

#include "engines/isa/image.h"

namespace neuron::engines::isa {
namespace {

// The partition where a view begins; 0 where that is not known before the kernel runs.
std::int64_t first_partition(Core& core, const Operand& operand) {
  const Program& program = core.image().program;
  const View& view = program.views[static_cast<std::size_t>(operand.index)];
  const Storage& storage = program.storages[static_cast<std::size_t>(view.storage)];
  const auto bytes = static_cast<std::int64_t>(bytes_of(view.type));
  const std::int64_t row = storage.free * static_cast<std::int64_t>(bytes_of(storage.type)) / bytes;
  const std::int64_t base = storage.address_partition > 0 ? storage.address_partition : 0;
  return base + (row > 0 ? view.offset / row : 0);
}

}  // namespace

float* prepare(Core& core, std::array<float, kPartitions>& registers, const Operand& out, ReduceCommand command, Alu op,
               std::int64_t rows, const PerPartition& loaded) {
  const std::int64_t first = first_partition(core, out);
  float* const mine = registers.data() + (first + rows <= kPartitions ? first : 0);
  if (command == ReduceCommand::kIdle || command == ReduceCommand::kReduce) return mine;
  for (std::int64_t r = 0; r < rows; ++r)
    mine[r] = command == ReduceCommand::kLoadReduce ? loaded.at(r) : identity_of(op);
  return mine;
}

}  // namespace neuron::engines::isa
