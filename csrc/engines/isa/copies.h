#pragma once
// Copies between tiles of any layout.
#include "engines/isa/core.h"

namespace neuron::engines::isa {

// Row-major element by element: bits where the types agree, otherwise through fp32. Shapes may differ, counts may not.
// Elements left out on either side stay as they are. Overlapping tiles are as if read before anything is written.
void copy_tile(const Tile& to, const Tile& from);

// `rows x columns` elements of `bytes` bytes with any strides (in bytes), in blocks that stay in the cache.
void copy_block(std::byte* to, std::int64_t to_row, std::int64_t to_column, const std::byte* from,
                std::int64_t from_row, std::int64_t from_column, std::int64_t rows, std::int64_t columns,
                std::int64_t bytes);

}  // namespace neuron::engines::isa
