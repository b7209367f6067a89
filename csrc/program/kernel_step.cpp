#include "program/kernel_step.h"

#include <ATen/Parallel.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <new>

#include "eager/threads.h"
#include "program/frame.h"

namespace neuron::program {

namespace {

constexpr std::size_t kCacheLine = 64;

// Memory of the calling thread, which grows and stays.
char* scratch_memory(std::size_t bytes) {
  struct Memory {
    char* data = nullptr;
    std::size_t bytes = 0;
    ~Memory() { ::operator delete(data, std::align_val_t(kCacheLine)); }
  };
  thread_local Memory memory;
  if (memory.bytes < bytes) {
    ::operator delete(memory.data, std::align_val_t(kCacheLine));
    memory = {nullptr, 0};
    memory.data = static_cast<char*>(::operator new(bytes, std::align_val_t(kCacheLine)));
    memory.bytes = bytes;
  }
  return memory.data;
}

}  // namespace

class KernelRun final : public StepRun {
 public:
  explicit KernelRun(const KernelStep& step)
      : step_(step), operands_(step.parts_.operands.size()), ints_(step.parts_.ints.size()) {}

  void rebind(Frame& frame) override {
    const auto& parts = step_.parts_;
    for (std::size_t i = 0; i < ints_.size(); ++i) ints_[i] = frame.value(parts.ints[i]);
    units_ = frame.value(parts.units);
    grain_ = std::max<std::int64_t>(frame.value(parts.grain), 1);
    scratch_ = static_cast<std::size_t>(std::max<std::int64_t>(frame.value(parts.scratch), 0));
  }

  void run(Frame& frame) override {
    if (units_ <= 0) return;
    for (std::size_t i = 0; i < operands_.size(); ++i) operands_[i] = frame.address(step_.parts_.operands[i]);
    pieces_ = std::clamp<std::int64_t>(units_ / grain_, 1, at::get_num_threads());
    if (pieces_ == 1) return range(0, units_);
    eager::parallel_for(
        pieces_, 1, static_cast<int>(pieces_),
        [](void* context, std::int64_t begin, std::int64_t end) {
          auto& self = *static_cast<KernelRun*>(context);
          self.range(self.begins(begin), self.begins(end));
        },
        this);
  }

  std::string describe(Frame&, std::string_view) const override { return step_.name_; }

 private:
  // Even pieces, so that no thread waits for one with a remainder.
  std::int64_t begins(std::int64_t piece) const { return units_ / pieces_ * piece + std::min(piece, units_ % pieces_); }
  void range(std::int64_t begin, std::int64_t end) {
    step_.parts_.function(operands_.data(), ints_.data(), scratch_ ? scratch_memory(scratch_) : nullptr, begin, end);
  }

  const KernelStep& step_;
  std::vector<char*> operands_;
  std::vector<std::int64_t> ints_;
  std::int64_t units_ = 0, grain_ = 1, pieces_ = 1;
  std::size_t scratch_ = 0;
};

KernelStep::KernelStep(Parts parts, std::string name, std::string label)
    : Step(std::move(label)), parts_(std::move(parts)), name_(std::move(name)) {}

std::unique_ptr<StepRun> KernelStep::instantiate(Frame&) const { return std::make_unique<KernelRun>(*this); }

}  // namespace neuron::program
