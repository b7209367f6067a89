#pragma once
// Which instructions an instruction must wait for: the last writers of what it reads, and the last writers and the
// readers since of what it writes. Accesses are compared as boxes of rows and columns and by where their strides put
// them, so tiles of one tensor that do not meet do not wait for each other.
#include <cstdint>
#include <vector>

#include "engines/isa/image.h"

namespace neuron::engines::isa {

// Where a storage lies among others: those of the same memory may share bytes. memory -1: it has bytes of its own.
struct Alias {
  int memory = -1;
  std::int64_t row = 0, byte = 0;  // partition, and byte within each partition
};

// Per instruction the numbers of earlier ones, ascending. `aliases`: per storage; empty: those that the kernel's own
// addresses make. What several cores do together waits for, and is waited for by, everything in shared HBM.
std::vector<std::vector<std::int32_t>> dependencies(const Image& image, const std::vector<Alias>& aliases);

}  // namespace neuron::engines::isa
