#pragma once
// A step of attention by blocks (engines/flex_attention.h), forward or backward.
#include <vector>

#include "program/kernel_step.h"
#include "program/layout.h"
#include "program/step.h"

namespace neuron::program {

class FlexStep final : public Step {
 public:
  // What tensors are for. Block lists are int32; logsumexp, its gradient and maxima are fp32.
  enum Role : std::uint8_t {
    kQuery,
    kKey,
    kValue,
    kOut,
    kLogsumexp,
    kMaxima,
    kPartialCounts,
    kPartialIndices,
    kFullCounts,
    kFullIndices,
    kGradOut,
    kGradLogsumexp,
    kGradQuery,
    kGradKey,
    kGradValue,
    kRoles,
  };
  static constexpr std::int32_t kNone = -1;

  // Machine code for tiles: TileCode of the engine.
  struct Code {
    KernelFn function = nullptr;
    std::vector<std::uint32_t> captured;  // tensors
    std::vector<IntRef> ints;
  };
  struct Parts {
    bool backward = false;
    float scale = 1;
    std::vector<std::int32_t> tensors;  // by role; kNone where there is none
    IntRef query_block = 0, key_block = 0;
    Code change_partial, change_full, pull_partial, pull_full;
  };
  FlexStep(Parts parts, std::string label);

  std::unique_ptr<StepRun> instantiate(Frame& frame) const override;
  std::string name() const override { return parts_.backward ? "flex_attention_backward" : "flex_attention"; }

 private:
  friend class FlexRun;
  const Parts parts_;
};

}  // namespace neuron::program
