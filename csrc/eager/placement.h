#pragma once
// Where CPU kernels put what they allocate while they run for the device. A switch in front of torch's CPU allocator,
// thread-local and off for everybody else:
//  - on the calling thread, in synchronous calls, memory comes from HBM, so that results need no copy;
//  - on a worker, an allocation of just the size of an expected output is given that output's block. Anything else is
//    a temporary and comes from host memory: HBM blocks are reused in the host's order, which runs ahead of the worker.
#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>

namespace neuron::eager {

// Puts the switch in front of the CPU allocator. Once, when the module is loaded.
void install_placement();

// Synchronous call on the calling thread: what is allocated in this scope lies in the HBM of `device`.
class HbmScope {
 public:
  explicit HbmScope(c10::DeviceIndex device);
  ~HbmScope();
  HbmScope(const HbmScope&) = delete;
  HbmScope& operator=(const HbmScope&) = delete;

 private:
  c10::DeviceIndex previous_;
};

// Launch on a worker: the blocks that outputs are expected in.
struct Expected {
  void* block;
  std::size_t bytes;
  bool taken;
  std::uint8_t passes = 0;  // allocations of this size that are temporaries, before the one of the output
};

class PlacementScope {
 public:
  PlacementScope(Expected* expected, std::size_t count);
  ~PlacementScope();
  PlacementScope(const PlacementScope&) = delete;
  PlacementScope& operator=(const PlacementScope&) = delete;
};

}  // namespace neuron::eager
