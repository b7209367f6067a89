// Stages: which groups machine code could replace, and their text.
#include <algorithm>
#include <map>
#include <set>

#include "engines/names.h"
#include "engines/plan.h"

namespace neuron::engines {
namespace {

class StageWriter {
 public:
  StageWriter(const Program& program, const Plan& plan, const Group& group, const std::set<std::uint16_t>& used_outside)
      : program_(program), plan_(plan), group_(group), used_outside_(used_outside) {
    stage_.cols = group.cols;
  }

  Stage write() {
    for (const Node& node : group_.body) instruction(node.instr);
    std::string head;
    for (std::size_t i = 0; i < stage_.operands.size(); ++i) {
      const StageOperand& operand = stage_.operands[i];
      constexpr const char* kKinds[] = {"dense", "row", "columns"};
      head += "operand " + std::to_string(i) + " " + name_of(operand.dtype) + " " +
              kKinds[static_cast<std::size_t>(operand.kind)] +
              (operand.read ? (operand.written ? " inout\n" : " in\n") : " out\n");
    }
    for (const std::uint16_t scalar : scalars_)
      head += "scalar " + std::to_string(scalar) + " " + name_of(program_.scalars[scalar]) + "\n";
    stage_.text = head + text_;
    return stage_;
  }

 private:
  using Kind = StageOperand::Kind;

  StageOperand& operand(Kind kind, Dtype dtype, Slot slot) {
    for (StageOperand& known : stage_.operands)
      if (known.kind == kind && known.dtype == dtype && known.slot == slot) return known;
    stage_.operands.push_back({kind, dtype, slot});
    return stage_.operands.back();
  }

  std::string number(const StageOperand& operand) const { return std::to_string(&operand - stage_.operands.data()); }

  static Dtype dtype_of(Lane lane) {
    switch (lane) {
      case Lane::kF32:
        return Dtype::kF32;
      case Lane::kF64:
        return Dtype::kF64;
      case Lane::kI64:
        return Dtype::kI64;
      default:
        return Dtype::kBool;
    }
  }

  std::uint32_t load(StageOperand& from) {
    from.read = true;
    text_ += "%" + std::to_string(next_) + " = load " + name_of(lane_of(from.dtype)) + " @" + number(from) + "\n";
    return next_++;
  }

  void store(StageOperand& to, const std::string& what) {
    to.written = true;
    text_ += "store @" + number(to) + " " + what + "\n";
  }

  StageOperand& access_operand(std::uint16_t access) {
    const Access& a = program_.accesses[access];
    return operand(a.kind == Access::Kind::kColumns ? Kind::kColumns : Kind::kDense, a.dtype,
                   plan_.access_slot(access));
  }

  // The number of a value in the text; one that comes from outside is loaded first.
  std::uint32_t value(std::uint16_t index) {
    if (const auto known = numbers_.find(index); known != numbers_.end()) return known->second;
    const Value& v = program_.values[index];
    const Kind kind = v.cols != group_.cols ? Kind::kRow : Kind::kDense;
    const std::uint32_t n = load(outside_operand(index, kind));
    numbers_[index] = n;
    return n;
  }

  StageOperand& outside_operand(std::uint16_t index, Kind kind) {
    // Registers of kColumns accesses are the tile kernels' business: machine code reads the access.
    for (const ColumnsFill& fill : plan_.columns)
      if (fill.out == plan_.slot_of(program_, {Operand::Kind::kValue, index}))
        return access_operand(static_cast<std::uint16_t>(fill.in - plan_.access_slot(0)));
    return operand(kind, dtype_of(program_.values[index].lane),
                   plan_.slot_of(program_, {Operand::Kind::kValue, index}));
  }

  std::string text_of(const Operand& in) {
    if (in.kind == Operand::Kind::kValue) return "%" + std::to_string(value(in.index));
    scalars_.insert(in.index);
    return "$" + std::to_string(in.index);
  }

  void define(const Instr& instr, std::uint32_t n) {
    numbers_[instr.out] = n;
    // A value that is made in the memory where it is stored is out with that, whether the store is here or later.
    if (used_outside_.count(instr.out) || plan_.places[instr.out].kind == Place::Kind::kMemory)
      store(operand(Kind::kDense, dtype_of(program_.values[instr.out].lane),
                    plan_.slot_of(program_, {Operand::Kind::kValue, instr.out})),
            "%" + std::to_string(n));
  }

  void instruction(const Instr& instr) {
    switch (instr.op) {
      case Op::kLoad: {
        const Access& access = program_.accesses[instr.access];
        const bool in_place = is_direct(access) && plan_.places[instr.out].kind == Place::Kind::kMemory &&
                              plan_.places[instr.out].index == instr.access;
        if (in_place || access.kind == Access::Kind::kColumns) return;  // loaded where it is used
        return define(instr, load(access_operand(instr.access)));
      }
      case Op::kStore: {
        const Operand& in = instr.in[0];
        if (in.kind == Operand::Kind::kValue) {
          const Place& place = plan_.places[in.index];
          if (place.kind == Place::Kind::kMemory && place.index == instr.access) return;
        }
        const std::string what = text_of(in);
        return store(access_operand(instr.access), what);
      }
      case Op::kExpand: {
        if (instr.in[0].kind == Operand::Kind::kValue) return define(instr, value(instr.in[0].index));
        break;  // a scalar: said as a cast of the lane to itself
      }
      default:
        break;
    }
    std::string operands;
    for (const Operand& in : instr.in) {
      if (in.kind == Operand::Kind::kNone) break;
      operands += " " + text_of(in);
    }
    text_ += "%" + std::to_string(next_) + " = ";
    switch (instr.op) {
      case Op::kExpand:
        text_ += std::string("cast ") + name_of(program_.values[instr.out].lane) + " " +
                 name_of(program_.values[instr.out].lane);
        break;
      case Op::kCast:
        text_ += std::string("cast ") + name_of(instr.lane) + " " +
                 (is_cast_through_i32(program_, instr) ? "i32" : name_of(program_.values[instr.out].lane));
        break;
      case Op::kRound:
        text_ += std::string("round ") + name_of(instr.dtype);
        break;
      default:
        text_ += std::string(name_of(instr.op)) + " " + name_of(instr.lane);
    }
    text_ += operands + "\n";
    define(instr, next_++);
  }

  const Program& program_;
  const Plan& plan_;
  const Group& group_;
  const std::set<std::uint16_t>& used_outside_;
  Stage stage_;
  std::string text_;
  std::uint32_t next_ = 0;
  std::map<std::uint16_t, std::uint32_t> numbers_;
  std::set<std::uint16_t> scalars_;
};

bool is_worth_compiling(const Group& group) {
  return group.elementwise &&
         std::any_of(group.body.begin(), group.body.end(), [](const Node& n) { return is_elementwise(n.instr.op); });
}

// Values that nodes outside the body of `group` use.
std::set<std::uint16_t> used_outside(const Plan& plan, const Group& group) {
  std::set<std::uint16_t> values;
  for (const Group& other : plan.groups)
    for (const auto* part : {&other.pre, &other.body, &other.post}) {
      if (part == &group.body) continue;
      for (const Node& node : *part)
        for (const Operand& in : node.instr.in)
          if (in.kind == Operand::Kind::kValue) values.insert(in.index);
    }
  return values;
}

void mark_columns(Plan& plan) {
  for (const Block& block : plan.blocks)
    for (std::uint32_t i = block.pre; i < block.end; ++i) {
      if (block.stage >= 0 && i >= block.body && i < block.post) continue;
      for (ColumnsFill& fill : plan.columns)
        fill.outside_stages |= std::count(std::begin(plan.steps[i].in), std::end(plan.steps[i].in), fill.out) > 0;
    }
}

}  // namespace

void write_stages(const Program& program, Plan& plan) {
  for (std::size_t g = 0; g < plan.groups.size(); ++g) {
    if (!is_worth_compiling(plan.groups[g])) continue;
    const std::set<std::uint16_t> outside = used_outside(plan, plan.groups[g]);
    plan.blocks[g].stage = static_cast<std::int32_t>(plan.stages.size());
    plan.stages.push_back(StageWriter(program, plan, plan.groups[g], outside).write());
  }
  mark_columns(plan);
  const auto needs_no_register = [&](const StageOperand& operand) {
    return operand.slot >= plan.registers.size() && operand.kind != StageOperand::Kind::kRow;
  };
  plan.whole_range = plan.groups.size() == 1 && plan.stages.size() == 1 && plan.groups[0].pre.empty() &&
                     plan.groups[0].post.empty() &&
                     std::all_of(plan.stages[0].operands.begin(), plan.stages[0].operands.end(), needs_no_register);
}

}  // namespace neuron::engines
