#pragma once
// The host's part of a run: arguments are looked at, results allocated, one launch is written into the current stream's
// queue.
#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <vector>

#include "driver/queue.h"
#include "program/program.h"

namespace neuron::eager {
struct LaunchSite;
}

namespace neuron::program {

// The memory of one run, taken before its launch.
class Run {
 public:
  // `arguments`: null where the program expects none. They must live until launch() has returned.
  Run(Binding& binding, c10::ArrayRef<c10::TensorImpl*> arguments);

  // Whether arguments should be let go of before the launch, by release_arguments().
  bool releases_arguments() const { return !description_.donated.empty(); }
  // What the host lets go of from now on is still read by this run.
  void announce_release() const;
  // Nobody but this run has the argument: its memory is given back as soon as the program allows.
  void own(std::size_t argument) { owned_[argument] = true; }

  // Raises when an argument is not what the program was built for. May wait: for room in the queue, for the end of the
  // run when the program is synchronous.
  void launch();
  // Output number `i`, of kind kTensor. Once each, after launch().
  at::Tensor output(std::size_t i) const;

 private:
  void check(std::size_t argument) const;
  void check_captures(const driver::Queue& queue) const;
  void take_memory();
  std::uint64_t submit(driver::Queue& queue, c10::GeneratorImpl* generator);

  Binding& binding_;
  const Description& description_;
  const c10::ArrayRef<c10::TensorImpl*> arguments_;
  c10::SmallVector<c10::intrusive_ptr<c10::StorageImpl>, 4> fresh_;  // of the output buffers
  c10::DataPtr arena_;
  c10::SmallVector<void*, 32> argument_bases_;
  c10::SmallVector<void*, 16> block_bases_;
  c10::SmallVector<bool, 32> owned_;  // by argument
  const eager::LaunchSite* site_;
};

struct Statistics {
  std::int64_t runs, steps;
};
Statistics statistics();

}  // namespace neuron::program
