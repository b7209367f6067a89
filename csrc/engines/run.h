#pragma once
// Runs tile programs: tile by tile, each small enough that all its registers stay in the caches.
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engines/parallel.h"
#include "engines/program.h"

namespace neuron::engines {

// Machine code of one stage. Pointers are those of Stage::operands in order; `rows x cols` elements each (an operand of
// kind kRow has `rows`, one of kind kColumns `cols`).
using StageFn = void (*)(void* const* operands, const Scalar* scalars, std::int64_t rows, std::int64_t cols);

// A program made ready: registers have their places, and runs of instructions that machine code could replace are known
// as stages.
class Executable {
 public:
  explicit Executable(Program program);
  ~Executable();
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;

  const Program& program() const { return program_; }

  // `memory` has one address per access (of its first element), `scalars` one entry per scalar; those of uniform
  // accesses are filled in here.
  void run(const Geometry& geometry, void* const* memory, const Scalar* scalars, ParallelFor parallel,
           int threads) const;

  // Stages as text (see stage_text in docs/engines.md): equal texts may share their code.
  std::size_t stages() const;
  std::string stage_text(std::size_t stage) const;
  // From any thread, at any time; `code` must live for good.
  void install(std::size_t stage, StageFn code);
  bool compiled() const;  // all stages are machine code

 private:
  struct Impl;
  Program program_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace neuron::engines
