#pragma once
// The state of one run: where each buffer lies, and the objects that steps compute on. Frames are used again by later
// runs, which only point them at other memory.
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <memory>
#include <vector>

#include "program/program.h"

namespace neuron::eager {
struct LaunchSite;
}

namespace neuron::program {

class Frame {
 public:
  explicit Frame(Program& program);

  // `bases`: of the arguments, of the fresh outputs, of the arena, of the blocks. They stay in place until the run has
  // ended.
  void prepare(const Binding& binding, void* const* bases, const at::Generator& generator);
  // `site`: the line that launched the run, null where unknown.
  void run(const eager::LaunchSite* site);

  // For steps.
  const Binding& binding() const { return *binding_; }
  std::int64_t value(IntRef ref) const { return binding_->value(ref); }
  char* address(std::uint32_t tensor) const { return addresses_[tensor]; }  // of its first element
  const at::Generator& generator() const { return generator_; }             // the CPU generator behind the device's
  // A CPU-labelled tensor over the same bytes, the same object in all runs. For instantiate(): it has its sizes from
  // rebind() on, and its memory from run() on.
  const at::Tensor& alias(std::uint32_t tensor);
  // Raises when a kernel has given the alias another storage or other sizes, which others would not see.
  void check_alias(std::uint32_t tensor, const std::string& op) const;

  const Tensor& tensor(std::uint32_t tensor) const { return program_->tensors[tensor]; }

  std::uint64_t last_binding() const { return last_binding_; }

 private:
  void point(std::uint32_t buffer, char* base);

  Program& program_;
  const Binding* binding_ = nullptr;
  std::uint64_t last_binding_ = 0;
  at::Generator generator_;
  std::vector<char*> bases_;                                    // by buffer
  std::vector<char*> addresses_;                                // by tensor
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> storages_;  // by buffer; null where no alias lies
  std::vector<at::Tensor> aliases_;                             // by tensor; undefined where no step wants one
  std::vector<std::unique_ptr<StepRun>> steps_;
};

}  // namespace neuron::program
