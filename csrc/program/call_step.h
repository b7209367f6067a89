#pragma once
// A step that calls the CPU kernel of an ATen op, or the kernel that takes its place for the device.
#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

#include "eager/op_info.h"
#include "program/layout.h"
#include "program/step.h"

namespace neuron::program {

struct CallArgument {
  enum class Kind : std::uint8_t {
    kConstant,
    kTensor,
    kTensorList,
    kOptionalTensorList,
    kInt,          // an integer of the table
    kIntList,      // integers of the table
    kIntAsFloat,   // an integer where the op takes a floating point number
    kIntAsTensor,  // an integer where the op takes a tensor, as a number of Python would be given
    kGenerator,    // the device's own
  };
  Kind kind = Kind::kConstant;
  c10::IValue constant;
  std::vector<std::int32_t> tensors;  // -1: none
  std::vector<IntRef> ints;
};

class CallStep final : public Step {
 public:
  static constexpr std::int32_t kNotWanted = -1;

  // `arguments` in the order of the schema of `op`. `results`: the tensors that receive the returns in order, lists
  // flattened; kNotWanted for those that nobody needs, and for arguments that are returned.
  CallStep(eager::OpInfo& op, std::vector<CallArgument> arguments, std::vector<std::int32_t> results,
           std::string label);

  std::unique_ptr<StepRun> instantiate(Frame& frame) const override;
  bool draws() const override { return op_.takes_generator; }
  std::string name() const override { return op_.name; }

 private:
  friend class CallRun;
  eager::OpInfo& op_;
  const std::vector<CallArgument> arguments_;
  const std::vector<std::int32_t> results_;
  std::vector<std::uint32_t> written_;  // tensors that the op writes to
};

// The op that a step calls for an op of a graph: the op itself, or one that gives what eager execution gives on the
// device - with the device's random numbers. Its arguments are those of `op` by name, and perhaps a generator. Null
// when the op cannot be a step.
eager::OpInfo* op_for_step(const char* name, const char* overload);

}  // namespace neuron::program
