#pragma once
// One NeuronCore while it runs a program: its memories as they are laid out for this program, its registers, and what
// each engine keeps between instructions. The functions of the engines (execute_*.cpp) work on it.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "engines/isa/program.h"
#include "engines/isa/threads.h"

namespace neuron::engines::isa {

// A view with addresses. Element (i0, ...) of type `type` lies at data + sum(stride * i). Dimension 0 is the partition
// on chip. Dynamic offsets have been added.
struct Tile {
  std::byte* data = nullptr;
  Type type = Type::kFloat32;
  bool dynamic = false;   // resolved anew for each instruction
  bool indirect = false;  // places are those of kIndirect
  int rank = 0;
  std::int64_t size[kMaxRank] = {};
  std::int64_t stride[kMaxRank] = {};  // bytes
  // For kVector and kIndirect views: where each element of the indexed dimension lies, in bytes from data; -1 is left
  // out. kVector: one per row of dimension 0. kIndirect: one per partition and element, row-major. Null otherwise.
  const std::int64_t* places = nullptr;

  std::int64_t partitions() const { return size[0]; }
  std::int64_t free() const {  // elements per partition
    std::int64_t n = 1;
    for (int i = 1; i < rank; ++i) n *= size[i];
    return n;
  }
  std::int64_t elements() const { return size[0] * free(); }
};

// An operand that may be a number or a column of them, one per partition: what tensor_scalar and activation take.
struct PerPartition {
  bool same = true;
  float value = 0;
  std::array<float, kPartitions> values;  // when not `same`
  float at(std::int64_t partition) const { return same ? value : values[static_cast<std::size_t>(partition)]; }
};

// What went wrong at run time; the bindings turn it into an error with the kernel's line.
struct ProgramFault : std::runtime_error {
  enum class Kind { kOutOfBounds, kBadIndex, kLoop, kDeadlock, kMismatch, kOther } kind;
  std::int32_t instruction = -1, program = -1;
  ProgramFault(Kind kind, const std::string& what) : std::runtime_error(what), kind(kind) {}
};

struct EngineState {
  std::array<float, kPartitions> scalar_accumulators{};  // of activation, activation_reduce, activate2
  std::array<float, kPartitions> vector_accumulators{};  // of exponential, range_select, select_reduce, ...
  std::array<std::array<std::uint32_t, 24>, kPartitions> vector_random{};  // XORWOW or LFSR state
  std::array<std::array<std::uint32_t, 6>, kPartitions> gpsimd_random{};
};

// What fresh PSUM holds: NaNs that no computation makes, so that "never written" can be told from a result.
constexpr std::uint32_t kPsumPoison = 0x7FC5A5A5;
constexpr std::uint16_t kPsumPoison16 = 0x7FE5;

class Core;
struct Image;

using Execute = void (*)(Core& core, const Instruction& instruction);

// Null where the interpreter itself does it (control, barriers).
Execute execute_of(Op op);

class Core {
 public:
  explicit Core(std::shared_ptr<const Image> image);
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;
  ~Core();

  // Addresses of a view's elements. What it refers to stays valid until the view is asked for again.
  // Throws ProgramFault where a dynamic offset is out of bounds.
  const Tile& tile(const Operand& operand) {
    Tile& tile = tiles_[static_cast<std::size_t>(operand.index)];
    if (tile.dynamic) [[unlikely]]
      resolve(operand.index, tile);
    return tile;
  }
  bool has(const Operand& operand) const { return operand.kind != Operand::Kind::kNone; }
  // A number, a register's value, or the elements of a [P, 1] view widened to fp32.
  PerPartition per_partition(const Operand& operand, std::int64_t partitions);
  std::int64_t integer(const Operand& operand);  // number, register, or the one element of a view

  EngineState& state() { return state_; }
  std::int64_t& reg(std::int32_t index) { return registers_[static_cast<std::size_t>(index)]; }
  const Image& image() const { return *image_; }

  // Before a run: registers and engines as after power-up, and where the tensors in HBM are (null: the machine's own).
  void reset(void* const* addresses);
  // Fills the memory of a storage with what stands for "not written".
  void poison(std::int32_t storage);

  bool skips_out_of_bounds = false;  // of the instruction being run: such elements are left out instead of a fault

  // Where the interpreter stands.
  std::size_t position = 0;
  struct Loop {
    std::int64_t value, upper, rounds;
  };
  std::vector<Loop> loops;  // that are being run, innermost last

 private:
  void resolve(std::int32_t view, Tile& tile);
  void resolve_scalar(std::int32_t view, Tile& tile);
  void resolve_vector(std::int32_t view, Tile& tile);
  void resolve_indirect(std::int32_t view, Tile& tile);
  std::vector<std::int64_t> indices(std::int32_t view, std::int64_t count, std::int64_t group);

  std::shared_ptr<const Image> image_;
  EngineState state_;
  std::vector<std::int64_t> registers_;
  std::vector<Tile> tiles_;
  std::vector<std::byte*> bases_;  // per storage
  std::unique_ptr<std::byte, void (*)(void*)> arena_;
  std::vector<std::vector<std::int64_t>> places_;  // per view that needs them
};

}  // namespace neuron::engines::isa
