// Elementwise instructions of the Vector, Scalar and GpSimd engines that apply ALU operators.
#include <array>

#include "engines/isa/execute.h"
#include "engines/isa/rows.h"

namespace neuron::engines::isa {
namespace {

// One integer per row, or one for all.
struct IntegerColumn {
  bool same = true;
  std::array<std::int32_t, kPartitions> values{};
  Rows<const std::int32_t> from(std::int64_t row) const {
    return same ? Rows<const std::int32_t>{values.data(), 0} : Rows<const std::int32_t>{values.data() + row, 1};
  }
};

IntegerColumn integer_column(Core& core, const Operand& operand, std::int64_t rows) {
  IntegerColumn result;
  switch (operand.kind) {
    case Operand::Kind::kNone:
      break;
    case Operand::Kind::kNumber:
      result.values[0] = static_cast<std::int32_t>(static_cast<std::int64_t>(operand.number));
      break;
    case Operand::Kind::kRegister:
      result.values[0] = static_cast<std::int32_t>(core.integer(operand));
      break;
    case Operand::Kind::kView: {
      const Walk walk(core.tile(operand));
      const Rectangle block{0, walk.rows() < rows ? walk.rows() : rows, 0, 1};
      const Rows<const std::int32_t> found = walk.integers(block, scratch().integers[0]);
      result.same = walk.rows() == 1;
      for (std::int64_t r = 0; r < block.rows; ++r)
        result.values[static_cast<std::size_t>(r)] = found.data[r * found.stride];
      break;
    }
  }
  return result;
}

bool is_unsigned(Type type) {
  return type == Type::kUInt8 || type == Type::kUInt16 || type == Type::kUInt32 || type == Type::kBool;
}

// Patterns narrower than 32 bits hold their sign, or zeros, above; shifts to the right need the other where the type
// says otherwise.
Rows<const std::int32_t> shifted_patterns(Alu op, Type type, Rows<const std::int32_t> in, const Rectangle& block,
                                          std::int32_t* to) {
  const int above = 32 - 8 * static_cast<int>(bytes_of(type));
  const bool wants_zeros = op == Alu::kRightShift && !is_unsigned(type);
  const bool wants_sign = op == Alu::kArithmeticRightShift && is_unsigned(type);
  if (above <= 0 || (!wants_zeros && !wants_sign)) return in;
  for (std::int64_t r = 0; r < block.rows; ++r)
    for (std::int64_t i = 0; i < block.n; ++i) {
      const auto up = static_cast<std::uint32_t>(in.data[r * in.stride + i]) << above;
      to[r * block.n + i] =
          wants_zeros ? static_cast<std::int32_t>(up >> above) : static_cast<std::int32_t>(up) >> above;
    }
  return {to, block.n};
}

BinaryKernel<std::int32_t> integer_kernel(Alu op, Type type, Operands operands) {
  const auto kernel = row_kernels().integer[is_unsigned(type) ? 1 : 0][index_of(op)][operands];
  if (kernel == nullptr)
    throw ProgramFault(ProgramFault::Kind::kOther,
                       "operator " + std::string(kAluNames[index_of(op)]) + " does not work on integers");
  return kernel;
}

void integer_tensor_tensor(Core& core, const Instruction& instruction, Alu op) {
  const Walk dst(core.tile(output(instruction, 0)));
  const Input a(core.tile(input(instruction, 0)), dst), b(core.tile(input(instruction, 1)), dst);
  require_equal_sizes(dst, a.walk());
  require_equal_sizes(dst, b.walk());
  const auto kernel = integer_kernel(op, a->type(), kTiles);
  for_all_blocks(dst.rows(), dst.free(), [&](const Rectangle& block, Scratch& s) {
    const auto x = shifted_patterns(op, a->type(), a->integers(block, s.integers[0]), block, s.integers[3]);
    const auto y = b->integers(block, s.integers[1]);
    const Rows<std::int32_t> out = dst.integer_target(block, s.integers[2]);
    kernel(out, x, y, block.rows, block.n);
    dst.put_integers(block, {out.data, out.stride});
  });
}

void integer_tensor_scalar(Core& core, const Instruction& instruction, Alu op0, bool reverse0, Alu op1, bool reverse1) {
  const Walk dst(core.tile(output(instruction, 0)));
  const Input data(core.tile(input(instruction, 0)), dst);
  require_equal_sizes(dst, data.walk());
  const IntegerColumn operand0 = integer_column(core, input(instruction, 1), dst.rows());
  const IntegerColumn operand1 = integer_column(core, input(instruction, 2), dst.rows());
  const Type type = data->type();
  const auto step = [&](Alu op, bool reversed, Rows<std::int32_t> out, Rows<const std::int32_t> tile,
                        Rows<const std::int32_t> column, const Rectangle& block) {
    if (reversed) {
      integer_kernel(op, type, kColumnTile)(out, column, tile, block.rows, block.n);
    } else {
      integer_kernel(op, type, kTileColumn)(out, tile, column, block.rows, block.n);
    }
  };
  for_all_blocks(dst.rows(), dst.free(), [&](const Rectangle& block, Scratch& s) {
    auto in = shifted_patterns(op0, type, data->integers(block, s.integers[0]), block, s.integers[3]);
    const Rows<std::int32_t> out = dst.integer_target(block, s.integers[1]);
    step(op0, reverse0, out, in, operand0.from(block.row), block);
    if (op1 != Alu::kBypass) {
      in = shifted_patterns(op1, type, {out.data, out.stride}, block, s.integers[3]);
      step(op1, reverse1, out, in, operand1.from(block.row), block);
    }
    dst.put_integers(block, {out.data, out.stride});
  });
}

}  // namespace

void execute_tensor_tensor(Core& core, const Instruction& instruction) {
  const Alu op = alu_attribute(instruction, 0);
  if (is_bitwise(op) || flag_attribute(instruction, 1)) return integer_tensor_tensor(core, instruction, op);
  const Walk dst(core.tile(output(instruction, 0)));
  const Input a(core.tile(input(instruction, 0)), dst), b(core.tile(input(instruction, 1)), dst);
  require_equal_sizes(dst, a.walk());
  require_equal_sizes(dst, b.walk());
  const auto kernel = row_kernels().binary[index_of(op)][kTiles];
  for_all_blocks(dst.rows(), dst.free(), [&](const Rectangle& block, Scratch& s) {
    const Rows<const float> x = a->floats(block, s.values[0]), y = b->floats(block, s.values[1]);
    const Rows<float> out = dst.target(block, s.values[2]);
    kernel(out, x, y, block.rows, block.n);
    dst.put(block, reading(out));
  });
}

void execute_tensor_scalar(Core& core, const Instruction& instruction) {
  const Alu op0 = alu_attribute(instruction, 0), op1 = alu_attribute(instruction, 2);
  const bool reverse0 = flag_attribute(instruction, 1), reverse1 = flag_attribute(instruction, 3);
  if (is_bitwise(op0) || is_bitwise(op1)) return integer_tensor_scalar(core, instruction, op0, reverse0, op1, reverse1);
  const Walk dst(core.tile(output(instruction, 0)));
  const Input data(core.tile(input(instruction, 0)), dst);
  require_equal_sizes(dst, data.walk());
  const PerPartition operand0 = column_operand(core, input(instruction, 1), dst.rows());
  const PerPartition operand1 = column_operand(core, input(instruction, 2), dst.rows());
  const bool affine = op0 == Alu::kMultiply && op1 == Alu::kAdd;
  for_all_blocks(dst.rows(), dst.free(), [&](const Rectangle& block, Scratch& s) {
    const Rows<const float> in = data->floats(block, s.values[0]);
    const Rows<float> out = dst.target(block, s.values[1]);
    const Rows<const float> first = column(operand0, block.row), second = column(operand1, block.row);
    if (affine) {
      row_kernels().affine(out, in, first, second, block.rows, block.n);
    } else {
      apply(op0, reverse0, out, in, first, block.rows, block.n);
      if (op1 != Alu::kBypass) apply(op1, reverse1, out, reading(out), second, block.rows, block.n);
    }
    dst.put(block, reading(out));
  });
}

void execute_scalar_tensor_tensor(Core& core, const Instruction& instruction) {
  const Alu op0 = alu_attribute(instruction, 0), op1 = alu_attribute(instruction, 1);
  const bool reverse0 = flag_attribute(instruction, 2), reverse1 = flag_attribute(instruction, 3);
  const Walk dst(core.tile(output(instruction, 0)));
  const Input data(core.tile(input(instruction, 0)), dst), operand1(core.tile(input(instruction, 2)), dst);
  require_equal_sizes(dst, data.walk());
  require_equal_sizes(dst, operand1.walk());
  const PerPartition operand0 = column_operand(core, input(instruction, 1), dst.rows());
  const auto kernel = row_kernels().binary[index_of(op1)][kTiles];
  for_all_blocks(dst.rows(), dst.free(), [&](const Rectangle& block, Scratch& s) {
    const Rows<const float> in = data->floats(block, s.values[0]), other = operand1->floats(block, s.values[1]);
    // Not in the tile itself: the second operand may be there.
    const Rows<float> between{s.values[2], block.n}, out = dst.target(block, s.values[2]);
    apply(op0, reverse0, between, in, column(operand0, block.row), block.rows, block.n);
    if (reverse1) {
      kernel(out, other, reading(between), block.rows, block.n);
    } else {
      kernel(out, reading(between), other, block.rows, block.n);
    }
    dst.put(block, reading(out));
  });
}

void execute_reciprocal(Core& core, const Instruction& instruction) {
  const Walk dst(core.tile(output(instruction, 0)));
  const Input data(core.tile(input(instruction, 0)), dst);
  require_equal_sizes(dst, data.walk());
  const float none = 0;
  for_all_blocks(dst.rows(), dst.free(), [&](const Rectangle& block, Scratch& s) {
    const Rows<const float> in = data->floats(block, s.values[0]);
    const Rows<float> out = dst.target(block, s.values[1]);
    apply(Alu::kReciprocal, false, out, in, {&none, 0}, block.rows, block.n);
    dst.put(block, reading(out));
  });
}

}  // namespace neuron::engines::isa
