#pragma once
// From a window to what runs instead of its launches: one tile program for each of its regions.
#include <memory>
#include <string>
#include <vector>

#include "eager/fusion/hot_programs.h"
#include "eager/fusion/window.h"
#include "engines/run.h"

namespace neuron::eager::fusion {

struct FusedRegion {
  struct ScalarBinding {
    std::uint32_t launch;
    NumberSource source;
  };
  HotProgram* program = nullptr;  // null: all its results are dead, nothing is run
  engines::Geometry geometry;
  std::vector<std::uint32_t> slots;   // per access
  std::vector<std::int32_t> scalars;  // per scalar: index of its binding, -1 for those of uniform accesses
  std::vector<ScalarBinding> bindings;
  std::int64_t bytes_not_written = 0;
  std::int64_t work = 0;                // elements of all its instructions
  std::vector<std::uint32_t> launches;  // of the window, for reports
};

struct WindowPlan {
  std::vector<std::int64_t> key;
  std::vector<FusedRegion> regions;
};

std::unique_ptr<WindowPlan> fuse(const Window& window);

}  // namespace neuron::eager::fusion
