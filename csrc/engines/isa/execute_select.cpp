// Instructions that make numbers from places, and choose elements by them.
#include <limits>

#include "engines/isa/accumulators.h"
#include "engines/isa/execute.h"
#include "engines/isa/rows.h"

namespace neuron::engines::isa {
namespace {

// offset + partition * channel + sum(step * index), in 32-bit arithmetic that wraps, element after element of a row.
class Affine {
 public:
  Affine(Core& core, const Instruction& instruction, std::size_t pattern, std::size_t channel, const Operand& offset)
      : channel_(static_cast<std::uint32_t>(integer_attribute(instruction, channel))),
        offset_(core.has(offset) ? static_cast<std::uint32_t>(core.integer(offset)) : 0) {
    if (!has_attribute(instruction, pattern)) return;
    const auto* pairs = std::get_if<std::vector<std::int64_t>>(&instruction.attributes[pattern]);
    if (pairs == nullptr || pairs->size() % 2 != 0 || pairs->size() > 2 * kMaxRank)
      throw ProgramFault(ProgramFault::Kind::kOther, "a pattern is made of pairs (step, count)");
    rank_ = static_cast<int>(pairs->size() / 2);
    for (int d = 0; d < rank_; ++d) {
      step_[d] = static_cast<std::uint32_t>((*pairs)[static_cast<std::size_t>(2 * d)]);
      count_[d] = (*pairs)[static_cast<std::size_t>(2 * d + 1)];
      size_ *= count_[d];
    }
  }

  std::int64_t size() const { return size_; }

  void write(const Rectangle& block, std::int32_t* to) const {
    for (std::int64_t r = block.row; r < block.row + block.rows; ++r) {
      const std::uint32_t base = offset_ + static_cast<std::uint32_t>(r) * channel_;
      const std::int64_t run = rank_ > 0 ? count_[rank_ - 1] : 1;
      const std::uint32_t step = rank_ > 0 ? step_[rank_ - 1] : 0;
      std::int64_t inner = block.first % run, outer = block.first / run;
      for (std::int64_t left = block.n; left > 0; ++outer, inner = 0) {
        std::uint32_t start = base;
        std::int64_t rest = outer;
        for (int d = rank_ - 2; d >= 0; --d) {
          start += step_[d] * static_cast<std::uint32_t>(rest % count_[d]);
          rest /= count_[d];
        }
        const std::int64_t n = run - inner < left ? run - inner : left;
        for (std::int64_t i = 0; i < n; ++i)
          to[i] = static_cast<std::int32_t>(start + step * static_cast<std::uint32_t>(inner + i));
        to += n;
        left -= n;
      }
    }
  }

 private:
  std::uint32_t channel_, offset_;
  int rank_ = 0;
  std::uint32_t step_[kMaxRank] = {};
  std::int64_t count_[kMaxRank] = {};
  std::int64_t size_ = 1;
};

void require_size(const Affine& affine, const Walk& dst) {
  if (affine.size() != dst.free())
    throw ProgramFault(ProgramFault::Kind::kMismatch, "a pattern of " + std::to_string(affine.size()) +
                                                          " numbers for a tile of " + std::to_string(dst.free()) +
                                                          " elements per partition");
}

}  // namespace

void execute_iota(Core& core, const Instruction& instruction) {
  const Affine affine(core, instruction, 0, 1, input(instruction, 0));
  const Walk dst(core.tile(output(instruction, 0)));
  require_size(affine, dst);
  const bool exact = dst.type() == Type::kInt32 || dst.type() == Type::kUInt32;
  for_all_blocks(dst.rows(), dst.free(), [&](const Rectangle& block, Scratch& s) {
    const Rows<std::int32_t> numbers =
        exact ? dst.integer_target(block, s.integers[0]) : Rows<std::int32_t>{s.integers[0], block.n};
    for (std::int64_t r = 0; r < block.rows; ++r)
      affine.write({block.row + r, 1, block.first, block.n}, numbers.data + r * numbers.stride);
    if (exact) return dst.put_integers(block, {numbers.data, numbers.stride});
    row_kernels().widen[index_of(Type::kInt32)](numbers.data, s.values[0], block.rows * block.n);
    dst.put(block, {s.values[0], block.n});
  });
}

void execute_affine_select(Core& core, const Instruction& instruction) {
  const Affine affine(core, instruction, 0, 1, input(instruction, 1));
  const auto on_false = static_cast<float>(number_attribute(instruction, 2));
  const Alu op = alu_attribute(instruction, 3, Alu::kEqual);
  const Walk dst(core.tile(output(instruction, 0)));
  const Input data(core.tile(input(instruction, 0)), dst);
  require_equal_sizes(dst, data.walk());
  require_size(affine, dst);
  const auto compare = row_kernels().integer[0][index_of(op)][kTileColumn];
  const std::int32_t zero = 0;
  const bool bits = dst.type() == data->type() && bytes_of(dst.type()) <= 4;
  std::uint32_t false_bits = 0;
  if (bits) row_kernels().narrow[index_of(dst.type())](&on_false, &false_bits, 1);
  for_all_blocks(dst.rows(), dst.free(), [&](const Rectangle& block, Scratch& s) {
    const std::int64_t n = block.rows * block.n;
    affine.write(block, s.integers[0]);
    compare({s.integers[0], n}, {s.integers[0], n}, {&zero, 0}, 1, n);
    if (bits) {  // elements of the same type stay as they are
      row_kernels().truth[2](s.integers[0], s.mask, n);
      const auto in = data->integers(block, s.integers[1]);
      const Rows<std::int32_t> out = dst.integer_target(block, s.integers[2]);
      std::int32_t* other = s.integers[3];
      for (std::int64_t i = 0; i < block.n; ++i) other[i] = static_cast<std::int32_t>(false_bits);
      for (std::int64_t r = 0; r < block.rows; ++r)
        row_kernels().select[2](s.mask + r * block.n, in.data + r * in.stride, other, out.data + r * out.stride,
                                block.n);
      return dst.put_integers(block, {out.data, out.stride});
    }
    const auto in = data->floats(block, s.values[0]);
    const Rows<float> out = dst.target(block, s.values[1]);
    for (std::int64_t r = 0; r < block.rows; ++r)
      for (std::int64_t i = 0; i < block.n; ++i)
        out.data[r * out.stride + i] = s.integers[0][r * block.n + i] != 0 ? in.data[r * in.stride + i] : on_false;
    dst.put(block, reading(out));
  });
}

// Places in the row are compared with bounds in fp32.
void execute_range_select(Core& core, const Instruction& instruction) {
  const Alu op0 = alu_attribute(instruction, 0), op1 = alu_attribute(instruction, 1);
  const ReduceCommand command = command_attribute(instruction, 2);
  const Alu reduce_op = alu_attribute(instruction, 3, Alu::kMaximum);
  const double range_start = number_attribute(instruction, 4);
  const auto on_false =
      static_cast<float>(number_attribute(instruction, 5, -static_cast<double>(std::numeric_limits<float>::max())));
  const Walk dst(core.tile(output(instruction, 0)));
  const Input data(core.tile(input(instruction, 0)), dst);
  require_equal_sizes(dst, data.walk());
  const PerPartition bound0 = column_operand(core, input(instruction, 1), dst.rows());
  const PerPartition bound1 = column_operand(core, input(instruction, 2), dst.rows());
  float* const registers = prepare(core, core.state().vector_accumulators, output(instruction, 0), command, reduce_op,
                                   dst.rows(), PerPartition{});
  const ReduceKernel reduce = reduce_kernel(reduce_op);
  for_all_blocks(dst.rows(), dst.free(), [&](const Rectangle& block, Scratch& s) {
    float *places = s.values[2], *first = s.values[3], *second = s.values[4];
    const auto place0 = static_cast<float>(range_start + static_cast<double>(block.first));
    for (std::int64_t i = 0; i < block.n; ++i) places[i] = place0 + static_cast<float>(static_cast<std::int32_t>(i));
    apply(op0, false, {first, block.n}, {places, 0}, column(bound0, block.row), block.rows, block.n);
    apply(op1, false, {second, block.n}, {places, 0}, column(bound1, block.row), block.rows, block.n);
    const auto in = data->floats(block, s.values[0]);
    const Rows<float> out = dst.target(block, s.values[1]);
    for (std::int64_t r = 0; r < block.rows; ++r) {
      const float *x = in.data + r * in.stride, *f0 = first + r * block.n, *f1 = second + r * block.n;
      float* o = out.data + r * out.stride;
#pragma GCC ivdep
      for (std::int64_t i = 0; i < block.n; ++i) o[i] = f0[i] * f1[i] != 0.0f ? x[i] : on_false;
    }
    if (accumulates(command)) reduce(reading(out), registers + block.row, block.rows, block.n);
    dst.put(block, reading(out));
  });
  put_column(core, output(instruction, 1), registers, dst.rows());
}

void execute_select_reduce(Core& core, const Instruction& instruction) {
  const ReduceCommand command = command_attribute(instruction, 0);
  const Alu reduce_op = alu_attribute(instruction, 1, Alu::kMaximum);
  const bool reverse = flag_attribute(instruction, 2);
  const Walk dst(core.tile(output(instruction, 0)));
  const Input predicate(core.tile(input(instruction, 0)), dst), on_true(core.tile(input(instruction, 1)), dst);
  require_equal_sizes(dst, predicate.walk());
  require_equal_sizes(dst, on_true.walk());
  const PerPartition on_false = column_operand(core, input(instruction, 2), dst.rows());
  float* const registers = prepare(core, core.state().vector_accumulators, output(instruction, 0), command, reduce_op,
                                   dst.rows(), PerPartition{});
  const ReduceKernel reduce = reduce_kernel(reduce_op);
  for_all_blocks(dst.rows(), dst.free(), [&](const Rectangle& block, Scratch& s) {
    truth(predicate.walk(), block, s.mask, s.raw[0]);
    const auto in = on_true->floats(block, s.values[0]);
    const Rows<float> out = dst.target(block, s.values[1]);
    for (std::int64_t r = 0; r < block.rows; ++r) {
      const float* x = in.data + r * in.stride;
      const std::uint8_t* mask = s.mask + r * block.n;
      float* o = out.data + r * out.stride;
      const float other = on_false.at(block.row + r);
#pragma GCC ivdep
      for (std::int64_t i = 0; i < block.n; ++i) o[i] = (mask[i] != 0) != reverse ? x[i] : other;
    }
    if (accumulates(command)) reduce(reading(out), registers + block.row, block.rows, block.n);
    dst.put(block, reading(out));
  });
  put_column(core, output(instruction, 1), registers, dst.rows());
}

}  // namespace neuron::engines::isa
