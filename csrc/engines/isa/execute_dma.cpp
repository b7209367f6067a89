// What the DMA engines do: copies of any layout, transposes, gathers and scatters, and sums on the way.
#include <algorithm>
#include <vector>

#include "engines/isa/collectives.h"
#include "engines/isa/copies.h"
#include "engines/isa/elements.h"
#include "engines/isa/execute.h"
#include "engines/isa/image.h"
#include "engines/isa/names.h"
#include "engines/isa/views.h"

namespace neuron::engines::isa {

using std::int64_t;

namespace {

[[noreturn]] void mismatch(const std::string& what) { throw ProgramFault(ProgramFault::Kind::kMismatch, what); }

// While it lives, indices out of bounds leave elements out, if the instruction says so.
class Skipping {
 public:
  Skipping(Core& core, const Attribute& attribute) : core_(core) {
    const auto* flag = std::get_if<int64_t>(&attribute);
    core.skips_out_of_bounds = flag && *flag;
  }
  ~Skipping() { core_.skips_out_of_bounds = false; }
  Skipping(const Skipping&) = delete;
  Skipping& operator=(const Skipping&) = delete;

 private:
  Core& core_;
};

std::vector<int64_t> axes_of(const Attribute& attribute, int rank) {
  if (const auto* axes = std::get_if<std::vector<int64_t>>(&attribute)) return *axes;
  if (rank == 4) return {3, 1, 2, 0};
  std::vector<int64_t> reversed;
  for (int d = rank - 1; d >= 0; --d) reversed.push_back(d);
  return reversed;
}

float combined(Alu op, float a, float b) {
  switch (op) {
    case Alu::kAdd:
      return a + b;
    case Alu::kSubtract:
      return a - b;
    case Alu::kMultiply:
      return a * b;
    case Alu::kMaximum:
      return a > b || a != a ? a : b;
    case Alu::kMinimum:
      return a < b || a != a ? a : b;
    default:
      throw ProgramFault(ProgramFault::Kind::kOther,
                         "DMA engines do not compute \"" + std::string(kAluNames[static_cast<std::size_t>(op)]) + "\"");
  }
}

// The elements of a view one by one, or those of a table of element numbers of its storage.
class Elements {
 public:
  Elements(Core& core, const Operand& operand, const Attribute& attribute)
      : tile_(core.tile(operand)), table_(std::get_if<std::vector<int64_t>>(&attribute)), cursor_(tile_) {
    const auto v = static_cast<std::size_t>(operand.index);
    const Image& image = core.image();
    const auto s = static_cast<std::size_t>(image.program.views[v].storage);
    const Storage& storage = image.program.storages[s];
    base_ = tile_.data - image.offsets[v];
    bytes_ = static_cast<int64_t>(bytes_of(tile_.type));
    row_ = row_bytes(storage) / bytes_;
    limit_ = row_ * storage.partitions;
    pitch_ = on_chip(storage) ? image.plan.blocks[static_cast<std::size_t>(image.plan.places[s].block)].pitch
                              : row_bytes(storage);
  }
  Type type() const { return tile_.type; }
  int64_t count() const { return table_ ? static_cast<int64_t>(table_->size()) : tile_.elements(); }
  // Element i; null when it is left out. Without a table, to be called for one i after the other.
  std::byte* at(int64_t i) {
    if (!table_) {
      std::byte* pointer = cursor_.pointer();
      cursor_.advance(1);
      return pointer;
    }
    const int64_t number = (*table_)[static_cast<std::size_t>(i)];
    if (number < 0) return nullptr;
    if (number >= limit_)
      throw ProgramFault(ProgramFault::Kind::kOutOfBounds, "element " + std::to_string(number) + " of a tensor of " +
                                                               std::to_string(limit_) + " elements");
    return base_ + number / row_ * pitch_ + number % row_ * bytes_;
  }

 private:
  const Tile& tile_;
  const std::vector<int64_t>* table_;
  Cursor cursor_;
  std::byte* base_;
  int64_t bytes_, row_, limit_, pitch_;
};

void copy_element(Type to_type, std::byte* to, Type from_type, const std::byte* from) {
  const auto bytes = static_cast<int64_t>(bytes_of(to_type));
  if (to_type == from_type) {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
    return;
  }
  const float value = float_at(from_type, from);
  narrow_row(to_type, &value, to, bytes, 1);
}

}  // namespace

void execute_dma_copy(Core& core, const Instruction& instruction) {
  const Skipping skipping(core, instruction.attributes[0]);
  copy_tile(core.tile(instruction.operands[0]), core.tile(instruction.operands[1]));
}

void execute_dma_transpose(Core& core, const Instruction& instruction) {
  const Skipping skipping(core, instruction.attributes[1]);
  const Tile& from = core.tile(instruction.operands[1]);
  const Tile& to = core.tile(instruction.operands[0]);
  const std::vector<int64_t> axes = axes_of(instruction.attributes[0], from.rank);
  if (to.rank != from.rank || static_cast<int>(axes.size()) != from.rank || to.places)
    mismatch("a transpose from " + std::to_string(from.rank) + " to " + std::to_string(to.rank) + " dimensions");
  // The target seen in the order of the source's dimensions.
  Tile seen = to;
  for (int d = 0; d < to.rank; ++d) {
    const auto axis = static_cast<std::size_t>(axes[static_cast<std::size_t>(d)]);
    if (axis >= axes.size() || to.size[d] != from.size[axis])
      mismatch("dimension " + std::to_string(d) + " of the target of a transpose has " + std::to_string(to.size[d]) +
               " elements");
    seen.size[axis] = to.size[d];
    seen.stride[axis] = to.stride[d];
  }
  copy_tile(seen, from);
}

void execute_dma_compute(Core& core, const Instruction& instruction) {
  const Skipping skipping(core, instruction.attributes[2]);
  const auto op = static_cast<Alu>(std::get<int64_t>(instruction.attributes[0]));
  std::vector<double> scales;
  if (const auto* numbers = std::get_if<std::vector<double>>(&instruction.attributes[1])) scales = *numbers;
  if (const auto* numbers = std::get_if<std::vector<int64_t>>(&instruction.attributes[1]))
    scales.assign(numbers->begin(), numbers->end());
  const Tile& to = core.tile(instruction.operands[0]);
  const auto count = static_cast<std::size_t>(to.elements());
  std::vector<float> sums(count), row(count);
  std::vector<std::uint8_t> left_out(count, 0);
  for (std::size_t k = instruction.outputs; k < instruction.operands.size(); ++k) {
    const Tile& from = core.tile(instruction.operands[k]);
    if (static_cast<std::size_t>(from.elements()) != count)
      mismatch("sources of " + std::to_string(from.elements()) + " elements for a target of " + std::to_string(count));
    const std::size_t source = k - instruction.outputs;
    const float scale = source < scales.size() ? static_cast<float>(scales[source]) : 1.0f;
    Cursor cursor(from);
    for (std::size_t i = 0; i < count;) {
      const auto run = static_cast<std::size_t>(std::min(cursor.left(), static_cast<int64_t>(count - i)));
      if (const std::byte* at = cursor.pointer())
        widen_row(from.type, at, cursor.step(), &row[i], static_cast<int64_t>(run));
      else
        std::fill_n(left_out.begin() + static_cast<std::ptrdiff_t>(i), run, 1);
      i += run;
      cursor.advance(static_cast<int64_t>(run));
    }
    for (std::size_t i = 0; i < count; ++i)
      sums[i] = source == 0 ? row[i] * scale : combined(op, sums[i], row[i] * scale);
  }
  Cursor cursor(to);
  for (std::size_t i = 0; i < count;) {
    auto run = std::min(cursor.left(), static_cast<int64_t>(count - i));
    const std::uint8_t out = left_out[i];
    const auto change = std::find(left_out.begin() + static_cast<std::ptrdiff_t>(i),
                                  left_out.begin() + static_cast<std::ptrdiff_t>(i) + run, !out);
    run = change - (left_out.begin() + static_cast<std::ptrdiff_t>(i));
    std::byte* at = cursor.pointer();
    if (at && !out) narrow_row(to.type, &sums[i], at, cursor.step(), run);
    i += static_cast<std::size_t>(run);
    cursor.advance(run);
  }
}

void execute_table_copy(Core& core, const Instruction& instruction) {
  Elements to(core, instruction.operands[0], instruction.attributes[0]);
  Elements from(core, instruction.operands[1], instruction.attributes[1]);
  if (to.count() != from.count())
    mismatch(std::to_string(to.count()) + " elements are to take " + std::to_string(from.count()));
  for (int64_t i = 0, n = to.count(); i < n; ++i) {
    std::byte* target = to.at(i);
    const std::byte* source = from.at(i);
    if (target && source) copy_element(to.type(), target, from.type(), source);
  }
}

void execute_masked_copy(Core& core, const Instruction& instruction) {
  const Tile& to = core.tile(instruction.operands[0]);
  const Tile& from = core.tile(instruction.operands[1]);
  const auto* mask = std::get_if<std::vector<std::uint8_t>>(&instruction.attributes[0]);
  if (!mask || static_cast<int64_t>(mask->size()) != to.elements() || from.elements() != to.elements())
    mismatch("the mask, the source and the target of a copy differ in elements");
  Cursor target(to), source(from);
  for (const std::uint8_t copied : *mask) {
    if (std::byte* t = target.pointer(), *s = source.pointer(); copied && t && s)
      copy_element(to.type, t, from.type, s);
    target.advance(1);
    source.advance(1);
  }
}

}  // namespace neuron::engines::isa
