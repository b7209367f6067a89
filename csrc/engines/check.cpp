// The rules of program.h.
#include <stdexcept>
#include <string>

#include "engines/plan.h"
#include "engines/row_functions.h"

namespace neuron::engines {
namespace {

[[noreturn]] void refuse(std::size_t instr, const char* what) {
  throw std::invalid_argument("tile program, instruction " + std::to_string(instr) + ": " + what);
}

struct Arity {
  std::size_t least, most;
};

Arity arity_of(const Instr& instr) {
  switch (instr.op) {
    case Op::kLoad:
      return {0, 0};
    case Op::kAdd:
    case Op::kSub:
    case Op::kMul:
    case Op::kDiv:
    case Op::kMin:
    case Op::kMax:
    case Op::kEq:
    case Op::kNe:
    case Op::kLt:
    case Op::kLe:
    case Op::kAnd:
    case Op::kOr:
    case Op::kXor:
    case Op::kConcat:
      return {2, 2};
    case Op::kFma:
    case Op::kSelect:
      return {3, 3};
    case Op::kCall:
      return {1, 2};
    case Op::kRow:
      return {1, 5};
    default:
      return {1, 1};
  }
}

// Whether the kernels have the op on this lane, given the lanes and masks that they are looked up by.
bool has_kernel(const Instr& instr) {
  const Kernels& k = kernels();
  switch (instr.op) {
    case Op::kLoad:
    case Op::kStore:
    case Op::kRound:
    case Op::kCast:
    case Op::kExpand:
    case Op::kConcat:
      return true;
    case Op::kCall:
      return instr.function < static_cast<std::uint8_t>(Function::kCount) &&
             element_function(static_cast<Function>(instr.function), instr.dtype).fn != nullptr;
    case Op::kRow:
      return instr.function < static_cast<std::uint8_t>(RowFunction::kCount) &&
             row_function(static_cast<RowFunction>(instr.function), instr.dtype) != nullptr;
    default:
      return k.op[index_of(instr.op)][index_of(instr.lane)][0] != nullptr;
  }
}

class Checker {
 public:
  explicit Checker(const Program& program)
      : program_(program), defined_(program.values.size()), stored_(program.accesses.size()) {}

  void run() {
    if (program_.accesses.size() + program_.scalars.size() + program_.values.size() > UINT16_MAX)
      throw std::invalid_argument("tile program: too large");
    for (const Access& access : program_.accesses) {
      if (access.cols >= program_.cols_classes) throw std::invalid_argument("tile program: class out of range");
      if (access.kind == Access::Kind::kUniform && access.scalar >= program_.scalars.size())
        throw std::invalid_argument("tile program: a uniform access without its scalar");
      if (access.kind == Access::Kind::kRow && access.cols != 0)
        throw std::invalid_argument("tile program: a per-row access has class 0");
      if (access.written && (access.kind == Access::Kind::kColumns || access.kind == Access::Kind::kUniform))
        throw std::invalid_argument("tile program: an access that all rows share cannot be written");
      if (!access.written && access.kind == Access::Kind::kStreamed)
        throw std::invalid_argument("tile program: a streamed access is only written");
    }
    for (at_ = 0; at_ < program_.code.size(); ++at_) instruction(program_.code[at_]);
  }

 private:
  void operands(const Instr& instr) {
    const Arity arity = arity_of(instr);
    for (std::size_t i = 0; i < instr.in.size(); ++i) {
      const Operand& in = instr.in[i];
      if (in.kind == Operand::Kind::kNone) {
        if (i < arity.least) refuse(at_, "an operand is missing");
      } else if (i >= arity.most) {
        refuse(at_, "too many operands");
      } else if (in.kind == Operand::Kind::kScalar) {
        if (in.index >= program_.scalars.size()) refuse(at_, "no such scalar");
        if (instr.op == Op::kConcat) refuse(at_, "a scalar has no columns");
      } else if (in.index >= program_.values.size() || !defined_[in.index]) {
        refuse(at_, "a value is used before it is made");
      }
    }
  }

  void classes(const Instr& instr) {
    if (instr.cols >= program_.cols_classes) refuse(at_, "class out of range");
    if (instr.op == Op::kExpand && instr.cols == 0 && instr.in[0].kind == Operand::Kind::kValue)
      refuse(at_, "expands a value to class 0");
    if (instr.op == Op::kRow) return row_classes(instr);
    if (instr.op == Op::kConcat || instr.op == Op::kLoad) return;
    for (const Operand& in : instr.in)
      if (in.kind == Operand::Kind::kValue &&
          program_.values[in.index].cols != (instr.op == Op::kExpand ? 0 : instr.cols))
        refuse(at_, "operands of another class");
  }

  void row_classes(const Instr& instr) {
    if (instr.in[0].kind != Operand::Kind::kValue) refuse(at_, "a function of rows without rows");
    const std::uint8_t cols = program_.values[instr.in[0].index].cols;
    const auto function = static_cast<RowFunction>(instr.function);
    if (instr.cols != (keeps_columns(function) ? cols : 0)) refuse(at_, "the result has another class");
    for (std::size_t i = 1; i < instr.in.size(); ++i)
      if (instr.in[i].kind == Operand::Kind::kValue &&
          program_.values[instr.in[i].index].cols != (is_per_row(function, i) ? 0 : cols))
        refuse(at_, "operands of another class");
  }

  void lanes(const Instr& instr) {
    for (std::size_t i = 0; i < instr.in.size(); ++i) {
      const Operand& in = instr.in[i];
      if (in.kind == Operand::Kind::kNone) continue;
      const bool is_scalar = in.kind == Operand::Kind::kScalar;
      if (is_scalar && instr.op == Op::kRow) continue;  // the function knows
      if ((is_scalar ? program_.scalars[in.index] : program_.values[in.index].lane) != operand_lane(instr, i))
        refuse(at_, "an operand of another lane");
    }
    if (instr.op != Op::kStore && program_.values[instr.out].lane != result_lane(instr))
      refuse(at_, "a result of another lane");
  }

  Lane operand_lane(const Instr& instr, std::size_t i) const {
    switch (instr.op) {
      case Op::kSelect:
        return i == 0 ? Lane::kB8 : instr.lane;
      case Op::kRound:
      case Op::kCall:
      case Op::kRow:
        return lane_of(instr.dtype);
      case Op::kStore:
        return lane_of(program_.accesses[instr.access].dtype);
      case Op::kExpand:
      case Op::kConcat:
        return program_.values[instr.out].lane;
      default:
        return instr.lane;
    }
  }

  Lane result_lane(const Instr& instr) const {
    switch (instr.op) {
      case Op::kEq:
      case Op::kNe:
      case Op::kLt:
      case Op::kLe:
        return Lane::kB8;
      case Op::kLoad:
        return lane_of(program_.accesses[instr.access].dtype);
      case Op::kRound:
      case Op::kCall:
      case Op::kRow:
        return lane_of(instr.dtype);
      case Op::kCast:
      case Op::kExpand:
      case Op::kConcat:
        return program_.values[instr.out].lane;
      default:
        return instr.lane;
    }
  }

  void memory(const Instr& instr) {
    if (instr.access >= program_.accesses.size()) refuse(at_, "no such access");
    const Access& access = program_.accesses[instr.access];
    if (access.kind == Access::Kind::kUniform) refuse(at_, "a uniform access is a scalar");
    if (access.cols != instr.cols) refuse(at_, "the access has another class");
    if (instr.op == Op::kLoad) {
      if (stored_[instr.access]) refuse(at_, "loads what was stored before");
    } else {
      if (!access.written) refuse(at_, "stores to an access that is not marked as written");
      if (stored_[instr.access]) refuse(at_, "stores twice to one access");
      stored_[instr.access] = true;
    }
  }

  void instruction(const Instr& instr) {
    operands(instr);
    classes(instr);
    if (!has_kernel(instr)) refuse(at_, "no kernel for this lane, or no function for this type");
    if (instr.op == Op::kLoad || instr.op == Op::kStore) memory(instr);
    const bool makes_value = instr.op != Op::kStore;
    if (makes_value && (instr.out >= program_.values.size() || defined_[instr.out]))
      refuse(at_, "a value is made twice");
    lanes(instr);
    if (!makes_value) return;
    if (program_.values[instr.out].cols != instr.cols) refuse(at_, "the result has another class");
    defined_[instr.out] = true;
  }

  const Program& program_;
  std::vector<bool> defined_, stored_;
  std::size_t at_ = 0;
};

}  // namespace

void check(const Program& program) { Checker(program).run(); }

}  // namespace neuron::engines
