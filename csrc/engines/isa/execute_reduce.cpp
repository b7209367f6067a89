// Reductions along rows and over partitions.
#include "engines/isa/accumulators.h"
#include "engines/isa/execute.h"
#include "engines/isa/rows.h"

namespace neuron::engines::isa {
namespace {

std::int32_t fold_bits(Alu op, std::int32_t a, std::int32_t b) {
  switch (op) {
    case Alu::kBitwiseAnd:
      return a & b;
    case Alu::kBitwiseOr:
      return a | b;
    case Alu::kBitwiseXor:
      return a ^ b;
    default:
      throw ProgramFault(ProgramFault::Kind::kOther,
                         "operator " + std::string(kAluNames[index_of(op)]) + " does not reduce");
  }
}

void reduce_bits(const Walk& dst, const Walk& data, Alu op, std::int64_t group) {
  for_all_blocks(dst.rows(), dst.free(), [&](const Rectangle& block, Scratch& s) {
    for (std::int64_t r = 0; r < block.rows; ++r)
      for (std::int64_t o = 0; o < block.n; ++o) {
        std::int32_t result = 0;
        for (std::int64_t i = 0; i < group; i += kBlock) {
          const std::int64_t n = group - i < kBlock ? group - i : kBlock;
          const auto in = data.integers({block.row + r, 1, (block.first + o) * group + i, n}, s.integers[0]);
          if (i == 0) result = in.data[0];
          for (std::int64_t k = i == 0 ? 1 : 0; k < n; ++k) result = fold_bits(op, result, in.data[k]);
        }
        s.integers[1][r * block.n + o] = result;
      }
    dst.put_integers(block, {s.integers[1], block.n});
  });
}

// results[g] = the reduction of elements [g * group, (g + 1) * group) from `first` on, for `count` groups of each row.
void reduce_groups(const Walk& data, Alu op, ReduceKernel kernel, const Rectangle& groups, std::int64_t group,
                   float* results, float* room) {
  const bool from_first = op == Alu::kSubtract;  // has no identity: starts with the first element
  const std::int64_t all = groups.rows * groups.n;
  for (std::int64_t g = 0; g < all; ++g) results[g] = identity_of(op);
  if (group <= kBlock) {
    const auto in = data.floats({groups.row, groups.rows, groups.first * group, groups.n * group}, room);
    const auto reduce = [&](const float* from, float* to, std::int64_t count) {
      if (from_first) {
        for (std::int64_t g = 0; g < count; ++g) to[g] = from[g * group];
        kernel({from + 1, group}, to, count, group - 1);
      } else {
        kernel({from, group}, to, count, group);
      }
    };
    if (groups.n == 1 && !from_first) return kernel(in, results, groups.rows, group);
    if (in.stride == groups.n * group) return reduce(in.data, results, all);
    for (std::int64_t r = 0; r < groups.rows; ++r) reduce(in.data + r * in.stride, results + r * groups.n, groups.n);
    return;
  }
  for (std::int64_t g = 0; g < all; ++g)
    for (std::int64_t i = 0; i < group; i += kBlock) {
      const std::int64_t n = group - i < kBlock ? group - i : kBlock;
      const Rectangle part{groups.row + g / groups.n, 1, (groups.first + g % groups.n) * group + i, n};
      const auto in = data.floats(part, room);
      const bool skip = from_first && i == 0;
      if (skip) results[g] = in.data[0];
      kernel({in.data + (skip ? 1 : 0), n}, results + g, 1, n - (skip ? 1 : 0));
    }
}

}  // namespace

void execute_tensor_reduce(Core& core, const Instruction& instruction) {
  const Alu op = alu_attribute(instruction, 0);
  const Tile& source = core.tile(input(instruction, 0));
  const Walk dst(core.tile(output(instruction, 0)));
  const Input data(source, dst);
  std::int64_t group = 1;
  for (std::int64_t i = 0; i < integer_attribute(instruction, 1); ++i) group *= source.size[source.rank - 1 - i];
  if (data->rows() != dst.rows() || data->free() != dst.free() * group)
    throw ProgramFault(ProgramFault::Kind::kMismatch, "a reduction of " + std::to_string(data->free()) +
                                                          " elements in groups of " + std::to_string(group) +
                                                          " does not give " + std::to_string(dst.free()));
  if (group == 0 || dst.free() == 0) return;
  if (is_bitwise(op)) return reduce_bits(dst, data.walk(), op, group);
  const ReduceKernel kernel = reduce_kernel(op);
  const bool negate = flag_attribute(instruction, 2);
  // Blocks of results whose operands fill a block, too.
  const std::int64_t outer = dst.free(), row = outer * group;
  const std::int64_t rows = row < kBlock ? kBlock / row : 1;
  std::int64_t groups = group < kBlock ? kBlock / group : 1;
  if (groups > outer) groups = outer;
  split(dst.rows(), dst.rows() * row, [&](std::int64_t begin, std::int64_t end) {
    Scratch& s = scratch();
    for (std::int64_t r = begin; r < end; r += rows)
      for (std::int64_t o = 0; o < outer; o += groups) {
        const Rectangle block{r, end - r < rows ? end - r : rows, o, outer - o < groups ? outer - o : groups};
        float* results = s.values[1];
        reduce_groups(data.walk(), op, kernel, block, group, results, s.values[0]);
        if (negate)
          for (std::int64_t i = 0; i < block.rows * block.n; ++i) results[i] = -results[i];
        dst.put(block, {results, block.n});
      }
  });
}

void execute_tensor_scalar_reduce(Core& core, const Instruction& instruction) {
  const Alu op0 = alu_attribute(instruction, 0), reduce_op = alu_attribute(instruction, 2, Alu::kAdd);
  const bool reverse0 = flag_attribute(instruction, 1);
  const ReduceCommand command = command_attribute(instruction, 3);
  const Walk dst(core.tile(output(instruction, 0)));
  const Input data(core.tile(input(instruction, 0)), dst);
  require_equal_sizes(dst, data.walk());
  const PerPartition operand0 = column_operand(core, input(instruction, 1), dst.rows());
  float* const registers = prepare(core, core.state().vector_accumulators, output(instruction, 0), command, reduce_op,
                                   dst.rows(), column_operand(core, input(instruction, 2), dst.rows()));
  const ReduceKernel reduce = reduce_kernel(reduce_op);
  for_all_blocks(dst.rows(), dst.free(), [&](const Rectangle& block, Scratch& s) {
    const Rows<const float> in = data->floats(block, s.values[0]);
    const Rows<float> out = dst.target(block, s.values[1]);
    apply(op0, reverse0, out, in, column(operand0, block.row), block.rows, block.n);
    if (accumulates(command)) reduce(reading(out), registers + block.row, block.rows, block.n);
    dst.put(block, reading(out));
  });
  put_column(core, output(instruction, 1), registers, dst.rows(), flag_attribute(instruction, 4));
}

void execute_partition_reduce(Core& core, const Instruction& instruction) {
  const Alu op = alu_attribute(instruction, 0);
  const Walk dst(core.tile(output(instruction, 0)));
  const Input data(core.tile(input(instruction, 0)), dst);
  if (dst.rows() != 1 || dst.free() != data->free())
    throw ProgramFault(ProgramFault::Kind::kMismatch, "a reduction over partitions gives one partition of " +
                                                          std::to_string(data->free()) + " elements");
  const std::int64_t n = dst.free(), rows = data->rows(), blocks = (n + kBlock - 1) / kBlock;
  const bool bits = is_bitwise(op), average = op == Alu::kAverage;
  const auto fold = row_kernels().binary[index_of(average ? Alu::kAdd : op)][kTiles];
  if (!bits && fold == nullptr) reduce_kernel(Alu::kBypass);  // throws
  split(blocks, rows * n, [&](std::int64_t begin, std::int64_t end) {
    Scratch& s = scratch();
    for (std::int64_t b = begin; b < end; ++b) {
      const std::int64_t first = b * kBlock, count = n - first < kBlock ? n - first : kBlock;
      for (std::int64_t r = 0; r < rows; ++r) {
        const Rectangle block{r, 1, first, count};
        if (bits) {
          const auto in = data->integers(block, s.integers[0]);
          for (std::int64_t i = 0; i < count; ++i)
            s.integers[1][i] = r == 0 ? in.data[i] : fold_bits(op, s.integers[1][i], in.data[i]);
          continue;
        }
        const auto in = data->floats(block, s.values[0]);
        if (r == 0) {
          for (std::int64_t i = 0; i < count; ++i) s.values[1][i] = in.data[i];
        } else {
          fold({s.values[1], count}, {s.values[1], count}, in, 1, count);
        }
      }
      if (average)
        for (std::int64_t i = 0; i < count; ++i) s.values[1][i] /= static_cast<float>(rows);
      if (bits) {
        dst.put_integers({0, 1, first, count}, {s.integers[1], count});
      } else {
        dst.put({0, 1, first, count}, {s.values[1], count});
      }
    }
  });
}

}  // namespace neuron::engines::isa
