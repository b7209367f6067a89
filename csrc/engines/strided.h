#pragma once
// Elements that lie anywhere in memory, brought together and spread out again.
#include <cstddef>
#include <cstdint>

#include "engines/program.h"

namespace neuron::engines {

// Elements [first, first + count) of the numbering of Geometry::Strides, of `element` bytes each: between `memory`, the
// address of the access's first element, and `packed`, which has no gaps.
void gather(void* packed, const void* memory, const Geometry::Strides& where, std::int64_t first, std::int64_t count,
            std::size_t element);
// Where these elements lie in `memory` already packed; null when they do not.
const void* packed_in_place(const void* memory, const Geometry::Strides& where, std::int64_t first, std::int64_t count,
                            std::size_t element);
void scatter(void* memory, const void* packed, const Geometry::Strides& where, std::int64_t first, std::int64_t count,
             std::size_t element);

// Copies to memory that will not be looked at soon, without bringing it into the caches first.
void store_past_caches(void* to, const void* from, std::size_t bytes);
// Makes such stores visible to other threads.
void finish_stores_past_caches();

}  // namespace neuron::engines
