#pragma once
// One range of rows, tile by tile, on the calling thread.
#include <atomic>
#include <cstdint>

#include "engines/plan.h"
#include "engines/run.h"

namespace neuron::engines {

struct TileRun {
  const Program& program;
  const Plan& plan;
  const std::atomic<StageFn>* code;  // per stage; null where there is none yet
  const Geometry& geometry;
  void* const* memory;
  const Scalar* scalars;
  std::int64_t rows;  // of the whole
  std::int64_t tile;  // rows of a tile
  int threads;
};

void run_tiles(const TileRun& run, std::int64_t begin, std::int64_t end);

}  // namespace neuron::engines
