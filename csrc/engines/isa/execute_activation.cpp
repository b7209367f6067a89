// Functions of the Scalar engine, and the exponential of the Vector engine.
#include "engines/isa/accumulators.h"
#include "engines/isa/execute.h"
#include "engines/isa/rows.h"

namespace neuron::engines::isa {
namespace {

// out = f(in), where f takes one row after the other or all at once.
void map(FunctionKernel kernel, Rows<float> out, Rows<const float> in, std::int64_t rows, std::int64_t n,
         const PerPartition* parameter = nullptr, std::int64_t row = 0) {
  const bool same = parameter == nullptr || parameter->same;
  if (same && out.stride == n && in.stride == n)
    return kernel(in.data, out.data, rows * n, parameter == nullptr ? 0 : parameter->value);
  for (std::int64_t r = 0; r < rows; ++r)
    kernel(in.data + r * in.stride, out.data + r * out.stride, n, parameter == nullptr ? 0 : parameter->at(row + r));
}

// What comes before and after the function of one block.
struct Reduction {
  ReduceCommand command;
  ReduceKernel kernel;
  float* registers;
  void take(const Rectangle& block, Rows<const float> values) const {
    if (accumulates(command)) kernel(values, registers + block.row, block.rows, block.n);
  }
};

FunctionKernel function_kernel(const Instruction& instruction, std::size_t attribute) {
  return row_kernels().function[index_of(function_attribute(instruction, attribute))];
}

}  // namespace

void execute_activation(Core& core, const Instruction& instruction) {
  const FunctionKernel function = function_kernel(instruction, 0);
  const Alu reduce_op = alu_attribute(instruction, 1, Alu::kAdd);
  const ReduceCommand command = command_attribute(instruction, 2);
  const Walk dst(core.tile(output(instruction, 0)));
  const Input data(core.tile(input(instruction, 0)), dst);
  require_equal_sizes(dst, data.walk());
  const Operand &bias_operand = input(instruction, 1), &scale_operand = input(instruction, 2);
  const PerPartition bias = column_operand(core, bias_operand, dst.rows());
  PerPartition scale;
  scale.value = 1;
  if (core.has(scale_operand)) scale = core.per_partition(scale_operand, dst.rows());
  const bool affine = !bias.same || bias.value != 0 || !scale.same || scale.value != 1;
  float* const registers = prepare(core, core.state().scalar_accumulators, output(instruction, 0), command, reduce_op,
                                   dst.rows(), PerPartition{});
  const Reduction reduction{command, reduce_kernel(reduce_op), registers};
  for_all_blocks(dst.rows(), dst.free(), [&](const Rectangle& block, Scratch& s) {
    Rows<const float> in = data->floats(block, s.values[0]);
    const Rows<float> out = dst.target(block, s.values[1]);
    if (affine) {
      const Rows<float> between{s.values[2], block.n};
      row_kernels().affine(between, in, column(scale, block.row), column(bias, block.row), block.rows, block.n);
      in = reading(between);
    }
    map(function, out, in, block.rows, block.n);
    reduction.take(block, reading(out));
    dst.put(block, reading(out));
  });
  put_column(core, output(instruction, 1), registers, dst.rows());
}

void execute_activate2(Core& core, const Instruction& instruction) {
  const FunctionKernel function = function_kernel(instruction, 0);
  const Alu op0 = alu_attribute(instruction, 1), op1 = alu_attribute(instruction, 2);
  const bool reverse0 = flag_attribute(instruction, 3), reverse1 = flag_attribute(instruction, 4);
  const Alu reduce_op = alu_attribute(instruction, 5, Alu::kAdd);
  const ReduceCommand command = command_attribute(instruction, 6);
  const Walk dst(core.tile(output(instruction, 0)));
  const Input data(core.tile(input(instruction, 0)), dst);
  require_equal_sizes(dst, data.walk());
  const PerPartition imm0 = column_operand(core, input(instruction, 1), dst.rows());
  const PerPartition imm1 = column_operand(core, input(instruction, 2), dst.rows());
  const PerPartition parameter = column_operand(core, input(instruction, 3), dst.rows());
  float* const registers = prepare(core, core.state().scalar_accumulators, output(instruction, 0), command, reduce_op,
                                   dst.rows(), PerPartition{});
  const Reduction reduction{command, reduce_kernel(reduce_op), registers};
  for_all_blocks(dst.rows(), dst.free(), [&](const Rectangle& block, Scratch& s) {
    Rows<const float> in = data->floats(block, s.values[0]);
    const Rows<float> between{s.values[2], block.n}, out = dst.target(block, s.values[1]);
    if (op0 != Alu::kBypass) {
      apply(op0, reverse0, between, in, column(imm0, block.row), block.rows, block.n);
      in = reading(between);
    }
    if (op1 != Alu::kBypass) {
      apply(op1, reverse1, between, in, column(imm1, block.row), block.rows, block.n);
      in = reading(between);
    }
    map(function, out, in, block.rows, block.n, &parameter, block.row);
    reduction.take(block, reading(out));
    dst.put(block, reading(out));
  });
  put_column(core, output(instruction, 1), registers, dst.rows());
}

void execute_exponential(Core& core, const Instruction& instruction) {
  const ReduceCommand command = command_attribute(instruction, 0);
  const FunctionKernel function = row_kernels().function[index_of(Function::kExp)];
  const Walk dst(core.tile(output(instruction, 0)));
  const Input src(core.tile(input(instruction, 0)), dst);
  require_equal_sizes(dst, src.walk());
  const PerPartition largest = column_operand(core, input(instruction, 1), dst.rows());
  float* const registers = prepare(core, core.state().vector_accumulators, output(instruction, 0), command, Alu::kAdd,
                                   dst.rows(), column_operand(core, input(instruction, 2), dst.rows()));
  const Reduction reduction{command, reduce_kernel(Alu::kAdd), registers};
  for_all_blocks(dst.rows(), dst.free(), [&](const Rectangle& block, Scratch& s) {
    const Rows<const float> in = src->floats(block, s.values[0]);
    const Rows<float> between{s.values[2], block.n}, out = dst.target(block, s.values[1]);
    apply(Alu::kSubtract, false, between, in, column(largest, block.row), block.rows, block.n);
    map(function, out, reading(between), block.rows, block.n);
    reduction.take(block, reading(out));
    dst.put(block, reading(out));
  });
  put_column(core, output(instruction, 1), registers, dst.rows());
}

}  // namespace neuron::engines::isa
