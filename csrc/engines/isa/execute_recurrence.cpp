// Instructions whose elements depend on the one before: scans and running reductions.
#include "engines/isa/accumulators.h"
#include "engines/isa/execute.h"
#include "engines/isa/rows.h"

namespace neuron::engines::isa {
namespace {

// Rows that go together, and how far at a time: several rows hide the time that a step takes. They are brought close
// to each other first: rows at multiples of 4 KiB would push one another out of the first cache.
constexpr std::int64_t kTogether = 8, kStretch = kBlock / kTogether;

template <class Body>
void for_all_stretches(std::int64_t rows, std::int64_t n, const Body& body) {
  const std::int64_t together = n < kStretch && n > 0 ? kBlock / n : kTogether;
  split(rows, rows * n, [&](std::int64_t begin, std::int64_t end) {
    Scratch& s = scratch();
    for (std::int64_t row = begin; row < end; row += together)
      for (std::int64_t first = 0; first < n; first += kStretch)
        body(Rectangle{row, end - row < together ? end - row : together, first,
                       n - first < kStretch ? n - first : kStretch},
             s);
  });
}

// Pairs of operators without a loop of their own.
void any_scan(Alu op0, bool reverse0, Alu op1, bool reverse1, Rows<float> out, Rows<const float> a, Rows<const float> b,
              float* state, std::int64_t rows, std::int64_t n) {
  const auto f0 = row_kernels().scalar[index_of(op0)], f1 = row_kernels().scalar[index_of(op1)];
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t i = 0; i < n; ++i) {
      const float x = a.data[r * a.stride + i], y = b.data[r * b.stride + i];
      const float between = reverse0 ? f0(state[r], x) : f0(x, state[r]);
      out.data[r * out.stride + i] = state[r] = reverse1 ? f1(y, between) : f1(between, y);
    }
}

}  // namespace

void execute_scan(Core& core, const Instruction& instruction) {
  const Alu op0 = alu_attribute(instruction, 0), op1 = alu_attribute(instruction, 1);
  const auto commutes = [](Alu op) {
    return op == Alu::kAdd || op == Alu::kMultiply || op == Alu::kMaximum || op == Alu::kMinimum;
  };
  const bool reverse0 = flag_attribute(instruction, 2) && !commutes(op0);
  const bool reverse1 = flag_attribute(instruction, 3) && !commutes(op1);
  const Walk dst(core.tile(output(instruction, 0)));
  const Input data0(core.tile(input(instruction, 0)), dst), data1(core.tile(input(instruction, 1)), dst);
  require_equal_sizes(dst, data0.walk());
  require_equal_sizes(dst, data1.walk());
  const PerPartition initial = column_operand(core, input(instruction, 2), dst.rows());
  std::array<float, kPartitions> state;
  for (std::int64_t r = 0; r < dst.rows(); ++r) state[static_cast<std::size_t>(r)] = initial.at(r);
  const ScanKernel kernel = reverse0 || reverse1 ? nullptr : row_kernels().scan[index_of(op0)][index_of(op1)];
  for_all_stretches(dst.rows(), dst.free(), [&](const Rectangle& block, Scratch& s) {
    const Rows<const float> a{data0->dense_floats(block, s.values[0]), block.n};
    const Rows<const float> b{data1->dense_floats(block, s.values[1]), block.n};
    const Rows<float> out{s.values[2], block.n};
    if (kernel != nullptr) {
      kernel(out, a, b, state.data() + block.row, block.rows, block.n);
    } else {
      any_scan(op0, reverse0, op1, reverse1, out, a, b, state.data() + block.row, block.rows, block.n);
    }
    dst.put(block, reading(out));
  });
}

void execute_tensor_scalar_cumulative(Core& core, const Instruction& instruction) {
  const Alu op0 = alu_attribute(instruction, 0), op1 = alu_attribute(instruction, 1);
  const Walk dst(core.tile(output(instruction, 0)));
  const Input src(core.tile(input(instruction, 0)), dst);
  require_equal_sizes(dst, src.walk());
  const PerPartition imm0 = column_operand(core, input(instruction, 1), dst.rows());
  float* const registers =
      prepare(core, core.state().vector_accumulators, output(instruction, 0), command_attribute(instruction, 2), op1,
              dst.rows(), column_operand(core, input(instruction, 2), dst.rows()));
  const ScanKernel kernel = row_kernels().cumulate[index_of(op1)];
  for_all_stretches(dst.rows(), dst.free(), [&](const Rectangle& block, Scratch& s) {
    const auto in = src->floats(block, s.values[0]);
    const Rows<float> between{s.values[1], block.n}, out{s.values[1], block.n};
    apply(op0, false, between, in, column(imm0, block.row), block.rows, block.n);
    kernel(out, reading(between), reading(between), registers + block.row, block.rows, block.n);
    dst.put(block, reading(out));
  });
}

}  // namespace neuron::engines::isa
