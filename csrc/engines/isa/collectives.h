#pragma once
// What cores do together with their tensors, once all that take part have come.
#include <cstdint>
#include <string>
#include <vector>

#include "engines/isa/core.h"

namespace neuron::engines::isa {

// Elements of a tile of any layout, kept for a while.
class Buffer {
 public:
  explicit Buffer(const Tile& tile);
  // The elements from `first` on, as many as fit, to a tile: bit by bit where types agree, otherwise through fp32.
  void write(const Tile& tile, std::int64_t first = 0) const;

 private:
  Type type_;
  std::int64_t count_;
  std::vector<std::byte> bytes_;
};

// Part `part` of `parts` equal ones along a dimension.
Tile part_of(const Tile& tile, int dimension, std::int64_t part, std::int64_t parts);

// One core that takes part; `rank` is its place among the programs that run together.
struct Member {
  Core* core;
  const Instruction* instruction;
  std::int64_t rank;
};

// `members` in the order of their group; `pairs` (source, target) for "collective_permute".
void run_collective(const std::string& kind, const std::vector<Member>& members,
                    const std::vector<std::int64_t>& pairs);

}  // namespace neuron::engines::isa
