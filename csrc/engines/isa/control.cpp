// Registers of the sequencers.
#include <cstring>

#include "engines/isa/elements.h"
#include "engines/isa/execute.h"
#include "engines/isa/names.h"

namespace neuron::engines::isa {

using std::int64_t;

namespace {

// Registers have 32 bits and wrap; what was loaded from 64-bit integers keeps its width.
int64_t wrapped(int64_t value) { return static_cast<std::int32_t>(static_cast<std::uint32_t>(value)); }

int64_t apply(Alu op, int64_t a, int64_t b) {
  const auto ua = static_cast<std::uint64_t>(a), ub = static_cast<std::uint64_t>(b);
  const auto zero = [&] {
    if (b == 0) throw ProgramFault(ProgramFault::Kind::kOther, "a register is divided by 0");
  };
  switch (op) {
    case Alu::kBypass:
      return a;
    case Alu::kAdd:
      return static_cast<int64_t>(ua + ub);
    case Alu::kSubtract:
      return static_cast<int64_t>(ua - ub);
    case Alu::kMultiply:
      return static_cast<int64_t>(ua * ub);
    case Alu::kDivide: {  // towards minus infinity, as Python's //
      zero();
      if (b == -1) return static_cast<int64_t>(0 - ua);
      const int64_t quotient = a / b;
      return quotient - (a % b != 0 && (a < 0) != (b < 0));
    }
    case Alu::kMod: {
      zero();
      if (b == -1) return 0;
      const int64_t rest = a % b;
      return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
    }
    case Alu::kFmod:
      zero();
      return b == -1 ? 0 : a % b;
    case Alu::kMaximum:
      return a > b ? a : b;
    case Alu::kMinimum:
      return a < b ? a : b;
    case Alu::kEqual:
      return a == b;
    case Alu::kNotEqual:
      return a != b;
    case Alu::kGreater:
      return a > b;
    case Alu::kGreaterEqual:
      return a >= b;
    case Alu::kLess:
      return a < b;
    case Alu::kLessEqual:
      return a <= b;
    case Alu::kLogicalAnd:
      return a && b;
    case Alu::kLogicalOr:
      return a || b;
    case Alu::kLogicalXor:
      return !a != !b;
    case Alu::kBitwiseAnd:
      return a & b;
    case Alu::kBitwiseOr:
      return a | b;
    case Alu::kBitwiseXor:
      return a ^ b;
    case Alu::kInvert:
      return ~a;
    case Alu::kLeftShift:
      return b < 0 || b > 63 ? 0 : static_cast<int64_t>(ua << b);
    case Alu::kRightShift:
      if (b < 0 || b > 31) return 0;
      return static_cast<int64_t>(static_cast<std::uint32_t>(a) >> b);
    case Alu::kArithmeticRightShift:
      return a >> (b < 0 ? 0 : b > 63 ? 63 : b);
    case Alu::kAbs:
      return a < 0 ? static_cast<int64_t>(0 - ua) : a;
    default:
      throw ProgramFault(ProgramFault::Kind::kOther, "registers do not have the operator \"" +
                                                         std::string(kAluNames[static_cast<std::size_t>(op)]) + "\"");
  }
}

}  // namespace

void execute_register_move(Core& core, const Instruction& instruction) {
  core.reg(instruction.operands[0].index) = core.integer(instruction.operands[1]);
}

void execute_register_load(Core& core, const Instruction& instruction) {
  const Tile& tile = core.tile(instruction.operands[1]);
  const int64_t value = integer_at(tile.type, tile.data);
  core.reg(instruction.operands[0].index) = bytes_of(tile.type) == 8 ? value : wrapped(value);
}

void execute_register_store(Core& core, const Instruction& instruction) {
  const int64_t value = core.integer(instruction.operands[1]);
  const Tile& tile = core.tile(instruction.operands[0]);
  if (is_integer(tile.type)) {
    std::memcpy(tile.data, &value, bytes_of(tile.type));
    return;
  }
  const auto number = static_cast<float>(value);
  narrow_row(tile.type, &number, tile.data, static_cast<int64_t>(bytes_of(tile.type)), 1);
}

void execute_register_alu(Core& core, const Instruction& instruction) {
  const int64_t a = core.integer(instruction.operands[1]);
  const int64_t b = core.has(instruction.operands[2]) ? core.integer(instruction.operands[2]) : 0;
  const int64_t value = apply(static_cast<Alu>(std::get<int64_t>(instruction.attributes[0])), a, b);
  // Scalars of 64 bits say so.
  core.reg(instruction.operands[0].index) = instruction.attributes.size() > 1 ? value : wrapped(value);
}

}  // namespace neuron::engines::isa
