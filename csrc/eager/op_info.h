#pragma once
// What the launch path must know of an op, worked out once from its schema.
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <string>

#include "eager/plan.h"

namespace neuron::eager {

// How an op's CPU kernel is run on the device.
enum class Execution : std::uint8_t {
  kLaunch,       // asynchronously once its outputs' metadata is known
  kView,         // at once on the calling thread: only metadata is touched
  kSynchronous,  // on the calling thread after the queue has drained: its outputs depend on data, or it returns no
                 // tensor
};

struct ArgInfo {
  bool written = false;    // (a!) in the schema
  bool generator = false;  // Generator?
  bool number = false;     // Scalar or float: its value varies from call to call and is not part of the signature
};

struct OpInfo {
  explicit OpInfo(c10::OperatorHandle handle);

  c10::OperatorHandle handle;
  std::string name;  // "aten::add.Tensor"
  int arguments;
  int returns;
  c10::SmallVector<ArgInfo, 12> args;
  c10::SmallVector<std::int8_t, 4> return_arg;  // argument that a return is (in-place and out=), or -1
  Execution execution = Execution::kLaunch;
  bool runnable = false;        // there is a kernel for the CPU
  bool mutates = false;         // writes to an argument
  bool numbers_in_key = false;  // outputs' shapes may depend on numbers: factories and out= variants
  bool takes_generator = false;
  bool draws_unseeded = false;  // random, but takes no generator
  bool lists_returned = false;
  bool mixed_devices = false;  // CPU tensors are allowed beside the device's (indexing)
  bool recordable = false;     // can be a step of a program: a C++ kernel that gives tensors of predictable shapes

  PlanCache plans;
};

// The facts of an op; made at its first call, kept for good.
OpInfo& op_info(const c10::OperatorHandle& handle);
OpInfo& op_info(const char* name, const char* overload);

}  // namespace neuron::eager
