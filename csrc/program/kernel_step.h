#pragma once
// A step of machine code that was made for the program.
#include <string>
#include <vector>

#include "program/layout.h"
#include "program/step.h"

namespace neuron::program {

// Computes the units [begin, end) of a range. `operands`: the first elements of its tensors; `scratch`: memory of its
// own, aligned to cache lines, whose contents are undefined.
using KernelFn = void (*)(char* const* operands, const std::int64_t* ints, char* scratch, std::int64_t begin,
                          std::int64_t end);

class KernelStep final : public Step {
 public:
  struct Parts {
    KernelFn function;
    std::vector<std::uint32_t> operands;  // tensors
    std::vector<IntRef> ints;
    IntRef units, grain;  // the whole range; the least that is worth a thread
    IntRef scratch;       // bytes per thread
  };
  KernelStep(Parts parts, std::string name, std::string label);

  std::unique_ptr<StepRun> instantiate(Frame& frame) const override;
  std::string name() const override { return name_; }

 private:
  friend class KernelRun;
  const Parts parts_;
  const std::string name_;
};

}  // namespace neuron::program
