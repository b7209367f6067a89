#pragma once
// Which bytes of a block of memory have been written, and what follows from it for a whole program: which reads find
// nothing, which fresh tensors must be poisoned because a read might show it, and which matmuls start a sum.
#include <cstdint>
#include <utility>
#include <vector>

#include "engines/isa/memory_plan.h"
#include "engines/isa/program.h"
#include "engines/isa/views.h"

namespace neuron::engines::isa {

// A set of bytes of `rows` rows of `pitch` bytes, in units of `unit` bytes. While only whole columns are added, as
// tiles that span all partitions do, one row stands for all.
class ByteSet {
 public:
  ByteSet() = default;
  ByteSet(std::int64_t rows, std::int64_t pitch, std::int64_t unit) : rows_(rows), pitch_(pitch), unit_(unit) {}
  void add(const Geometry& geometry);  // in bytes from the beginning of the block
  void add_all() { full_ = true; }
  bool contains(const Geometry& geometry);
  bool meets(const Geometry& geometry);
  bool empty() const { return !full_ && bits_.empty(); }

 private:
  bool within_rows(const Geometry& geometry) const;
  bool all_rows(const Geometry& geometry) const;
  void expand();
  template <class Body>
  bool words(const Geometry& geometry, bool one_row, const Body& body) const;

  std::int64_t rows_ = 0, pitch_ = 0, unit_ = 1;
  bool full_ = false, by_columns_ = true;
  std::vector<std::uint64_t> bits_;
};

// Reads of elements that nothing can have written before.
struct UnwrittenRead {
  std::int32_t instruction, operand, storage;
};

// How a matmul treats what its target holds: its attribute "accumulate" once the program is made.
enum class Accumulate : std::int64_t {
  kOverwrite,
  kAdd,
  kByPoison,  // elements that hold the poison of PSUM are overwritten, others added to
};

struct Coverage {
  // Storages to fill with poison, each before the instruction with which its memory begins to live.
  std::vector<std::pair<std::int32_t, std::int32_t>> poison;  // instruction, storage
  std::vector<UnwrittenRead> unwritten_reads;
  std::vector<std::int32_t> unwritten_storages;
};

// Decides the attribute "accumulate" of the matmuls of `program`, see Accumulate.
Coverage analyse_coverage(Program& program, const MemoryPlan& plan, const std::vector<std::uint8_t>& known,
                          const std::vector<std::uint8_t>& output);

}  // namespace neuron::engines::isa
