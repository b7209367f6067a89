#pragma once
// The memory of a program: buffers and the tensors in them. All sizes are places in a table of integers, so that one
// program serves many shapes.
#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

namespace neuron::program {

using IntRef = std::uint32_t;  // a place in the table of integers

struct Buffer {
  enum class Kind : std::uint8_t {
    kArgument,    // the memory of argument `index`, from the first element of that tensor on
    kOutput,      // a fresh block of the device; `value` is its size in bytes
    kHostOutput,  // the same in host memory
    kArena,       // `value` bytes into the block that all buffers of this kind share for the time of one run
    kBlock,       // a fresh block from step `first` to step `last`; `value` is its size in bytes
    kConstant,    // the memory of constant `index`, from its first element on
  };
  Kind kind;
  std::uint32_t index;  // of its kind
  IntRef value = 0;
  std::int32_t first = 0, last = 0;  // steps; kOutput: nothing is there before `first`
};

struct Tensor {
  std::uint32_t buffer;
  c10::ScalarType dtype;
  c10::SmallVector<IntRef, 5> sizes, strides;
  IntRef offset;  // in elements from the buffer's beginning
};

// What a program expects of an argument.
struct Argument {
  enum class Kind : std::uint8_t {
    kIgnored,  // anything, also no tensor
    kDevice,   // a tensor of the program's device
    kHost,     // a tensor of the CPU
  };
  Kind kind = Kind::kIgnored;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
};

struct Output {
  enum class Kind : std::uint8_t {
    kNone,
    kTensor,    // tensor `index`, over the memory of an output buffer or of an argument
    kArgument,  // argument `index` itself
    kConstant,  // constant `index` itself
  };
  Kind kind = Kind::kNone;
  std::uint32_t index = 0;
};

}  // namespace neuron::program
