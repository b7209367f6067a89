#pragma once
// Where the tensors of a program lie in the simulator's memory. What lives at different times shares bytes; storages to
// which the kernel gave addresses lie as they would on the chip, and share whatever bytes they have in common.
#include <cstdint>
#include <utility>
#include <vector>

#include "engines/isa/program.h"

namespace neuron::engines::isa {

struct Lifetime {
  std::int32_t first = -1, last = -1;  // instructions; -1: not used
  bool used() const { return first >= 0; }
};

// Storages that share bytes because of their addresses are in one block; any other has a block of its own.
struct Block {
  std::int64_t offset = -1;          // in the arena; -1: memory that the caller brings
  std::int64_t rows = 1, pitch = 0;  // bytes of a row; a row is a partition, or a whole tensor in HBM
  Lifetime lifetime;
  std::int64_t bytes() const { return rows * pitch; }
};

struct MemoryPlan {
  std::vector<Block> blocks;
  struct Place {
    std::int32_t block = -1;
    std::int64_t row = 0, byte = 0;  // of the first byte in its block
  };
  std::vector<Place> places;        // per storage
  std::vector<Lifetime> lifetimes;  // per storage
  std::int64_t arena_bytes = 0;
};

// `brought[s]`: the caller always brings the memory of storage s, as it does for everything in shared HBM.
MemoryPlan plan_memory(const Program& program, const std::vector<std::uint8_t>& brought);

}  // namespace neuron::engines::isa
