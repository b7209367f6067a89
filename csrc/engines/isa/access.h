#pragma once
// One access to memory as it is compared with others.
#include <cstdint>

#include "engines/isa/views.h"

namespace neuron::engines::isa {

struct Access {
  // Rows and the bytes of each row that are touched at most. In HBM, rows are those of the view's longest stride.
  std::int64_t pitch = 0;  // bytes from row to row; accesses of different pitch have only `low` and `high` to compare
  std::int64_t row = 0, rows = 1, column = 0, columns = 0;
  std::int64_t low = 0, high = 0;  // bytes in HBM; columns on chip
  // Runs of `run` bytes at multiples of `spacing` from `phase`; spacing 0: one run.
  std::int64_t run = 0, spacing = 0, phase = 0;
  bool solid = false;  // every byte of the box is touched

  bool meets(const Access& other) const;
  bool covers(const Access& other) const;

 private:
  // The hull in rows of another pitch.
  Access in_rows_of(std::int64_t pitch) const;
};

// `pitch`: of the memory on chip, whose rows are partitions; 0 in HBM.
Access access_of(const Geometry& geometry, std::int64_t pitch);

}  // namespace neuron::engines::isa
