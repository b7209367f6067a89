#pragma once
// A program: what runs on the device without Python, as one launch - steps over planned memory. Built once; a binding
// gives it its integers.
#include <ATen/core/Tensor.h>
#include <c10/util/DimVector.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "program/layout.h"
#include "program/step.h"

namespace neuron::program {

class Frame;

struct Description {
  std::string name;
  c10::DeviceIndex device = 0;
  bool synchronous = false;  // the host waits for each run, so that runs may touch the memory of CPU tensors
  std::uint32_t ints = 0;    // that a binding must have
  std::vector<Argument> arguments;
  std::vector<Buffer> buffers;  // the first ones are those of the arguments, in order
  std::vector<Tensor> tensors;
  std::vector<at::Tensor> constants;
  std::vector<std::unique_ptr<Step>> steps;
  std::vector<Output> outputs;
  struct Donated {
    std::uint32_t argument;
    std::int32_t last;  // step
  };
  std::vector<Donated> donated;  // arguments whose memory may be given back after a step, if nobody else has them
};

// What happens to memory while a run is prepared, in the order of the steps: what is given back after a step is there
// for those behind it.
struct MemoryEvent {
  enum class Kind : std::uint8_t { kAllocate, kReleaseBlock, kReleaseArgument } kind;
  std::uint32_t index;  // of the buffer; of the argument
};

class Program {
 public:
  explicit Program(Description description);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  const Description& description() const { return description_; }
  const Description* operator->() const { return &description_; }
  std::uint32_t fresh_outputs() const { return fresh_outputs_; }  // buffers of kinds kOutput and kHostOutput
  std::uint32_t host_values() const { return host_values_; }      // arguments whose value travels with the launch
  std::uint32_t blocks() const { return blocks_; }
  bool draws() const { return draws_; }
  const std::vector<MemoryEvent>& memory_events() const { return memory_events_; }
  // Whether preparing a run gives back memory that the run uses: nobody may launch in between.
  bool releases_early() const { return releases_early_; }

  // Frames are taken by workers for one run each. One that was last used with these integers is preferred.
  std::unique_ptr<Frame> take_frame(std::uint64_t binding);
  void give_back(std::unique_ptr<Frame> frame);

 private:
  const Description description_;
  void order_memory_events();

  std::uint32_t fresh_outputs_ = 0, host_values_ = 0, blocks_ = 0;
  bool draws_ = false, releases_early_ = false;
  std::vector<MemoryEvent> memory_events_;
  std::mutex frames_lock_;
  std::vector<std::unique_ptr<Frame>> frames_;  // not in use
};

// A program with integers, and what follows from them.
class Binding {
 public:
  // Raises when the integers do not fit the program: too few, negative sizes, tensors that leave their buffers.
  Binding(std::shared_ptr<Program> program, std::vector<std::int64_t> ints);

  struct Place {
    std::int64_t offset = 0, bytes = 0;  // from the buffer's beginning; to the end of the last element
  };
  struct Shape {
    c10::DimVector sizes, strides;
    bool contiguous;
  };

  Program& program() const { return *program_; }
  std::uint64_t id() const { return id_; }
  std::int64_t value(IntRef ref) const { return ints_[ref]; }
  const Place& place(std::size_t tensor) const { return places_[tensor]; }
  // Bytes before and behind the buffer's beginning that tensors reach.
  std::int64_t reaches_before(std::size_t buffer) const { return low_[buffer]; }
  std::int64_t reaches_to(std::size_t buffer) const { return high_[buffer]; }
  std::size_t arena_bytes() const { return arena_bytes_; }
  const Shape& output_shape(std::size_t output) const { return output_shapes_[output]; }
  Shape shape_of(const Tensor& tensor) const;

  // Launches that have not ended.
  std::atomic<std::uint64_t> in_flight{0};

 private:
  void check(std::size_t buffer) const;

  const std::shared_ptr<Program> program_;
  const std::uint64_t id_;
  const std::vector<std::int64_t> ints_;
  std::vector<Place> places_;
  std::vector<std::int64_t> low_, high_;
  std::vector<Shape> output_shapes_;
  std::size_t arena_bytes_ = 0;
};

// Bindings are destroyed on host threads, when no launch refers to them any more: a worker must not let go of objects
// that Python may have seen, since that takes the interpreter's lock.
std::shared_ptr<Binding> make_binding(std::shared_ptr<Program> program, std::vector<std::int64_t> ints);

}  // namespace neuron::program
