#pragma once
// Tile programs by content: windows whose regions do the same share one, whatever their shapes; those that take much
// time are offered to the compiler.
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "engines/run.h"

namespace neuron::eager::fusion {

class HotProgram {
 public:
  explicit HotProgram(engines::Program program) : executable_(std::move(program)) {}

  const engines::Executable& executable() const { return executable_; }

  // `work` elements of instructions were run.
  void count(std::int64_t work) {
    const std::int64_t before = work_.load(std::memory_order_relaxed);
    work_.store(before + work, std::memory_order_relaxed);
    if (before < kHot && before + work >= kHot) [[unlikely]]
      offer();
  }

 private:
  friend HotProgram& hot_program(engines::Program program);
  // About 20 ms of tile kernels; compiling costs about as much, on another core.
  static constexpr std::int64_t kHot = std::int64_t{32} << 20;

  void offer();

  engines::Executable executable_;
  std::atomic<std::int64_t> work_{0};
};

// Lives for good.
HotProgram& hot_program(engines::Program program);

// -- The compiler's side --
// Called from a worker when a program is hot, until it returns true; it must not block.
void set_compiler_starter(bool (*start)());
// A stage that wants to be compiled and its number; waits for one.
std::optional<std::pair<int, std::string>> next_stage_to_compile(double timeout_seconds);
// Makes a waiting next_stage_to_compile() return.
void wake_compiler();
void install_stage(int stage, engines::StageFn code);

}  // namespace neuron::eager::fusion
