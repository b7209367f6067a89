// Nodes with places become steps: a kernel and the slots it works on.
#include <algorithm>
#include <map>
#include <tuple>

#include "engines/plan.h"

namespace neuron::engines {
namespace {

class Lowerer {
 public:
  Lowerer(const Program& program, Plan& plan) : program_(program), plan_(plan), kernels_(kernels()) {}

  void run() {
    reserve_scratch();
    for (const Group& group : plan_.groups) {
      Block block{};
      block.cols = group.cols;
      block.pre = position();
      for (const Node& node : group.pre) lower(node);
      block.body = position();
      for (std::size_t i = 0; i < group.body.size(); ++i) {
        if (i + 1 < group.body.size() && lower_rounded(group.body[i], group.body[i + 1]))
          ++i;
        else
          lower(group.body[i]);
      }
      block.post = position();
      for (const Node& node : group.post) lower(node);
      block.end = position();
      plan_.blocks.push_back(block);
    }
    for (std::size_t a = 0; a < program_.accesses.size(); ++a) {
      const Access::Kind kind = program_.accesses[a].kind;
      if (kind == Access::Kind::kDense || kind == Access::Kind::kRow)
        plan_.moving.push_back(static_cast<std::uint16_t>(a));
      else if (kind == Access::Kind::kUniform)
        plan_.uniform.push_back(static_cast<std::uint16_t>(a));
    }
  }

 private:
  std::uint32_t position() const { return static_cast<std::uint32_t>(plan_.steps.size()); }

  Slot slot(const Operand& operand) const { return plan_.slot_of(program_, operand); }

  Slot slot_of_value(std::size_t value) const {
    return slot({Operand::Kind::kValue, static_cast<std::uint16_t>(value)});
  }

  static std::uint8_t mask_of(const Instr& instr) {
    unsigned mask = 0;
    for (std::size_t i = 0; i < instr.in.size(); ++i)
      if (instr.in[i].kind == Operand::Kind::kScalar) mask |= 1u << i;
    return static_cast<std::uint8_t>(mask);
  }

  // Functions take arrays only. Slots are numbered after registers, so these have to be there before the first step.
  void reserve_scratch() {
    for (const Group& group : plan_.groups)
      for (const Node& node : group.body) {
        if (node.instr.op != Op::kCall) continue;
        for (std::uint8_t i = 0; i < 2; ++i) {
          if (node.instr.in[i].kind != Operand::Kind::kScalar) continue;
          const auto key = std::make_tuple(node.cols, lane_of(node.instr.dtype), i);
          if (scratch_.emplace(key, static_cast<Slot>(plan_.registers.size())).second)
            plan_.registers.push_back({node.cols, lane_of(node.instr.dtype)});
        }
      }
  }

  Kernel kernel_of(const Instr& instr, std::uint8_t mask) const {
    switch (instr.op) {
      case Op::kRound:
        return kernels_.round[index_of(instr.dtype)][mask];
      case Op::kCast:
        return is_cast_through_i32(program_, instr)
                   ? kernels_.cast_through_i32[index_of(instr.lane)][mask]
                   : kernels_.cast[index_of(instr.lane)][index_of(program_.values[instr.out].lane)][mask];
      default:
        return kernels_.op[index_of(instr.op)][index_of(instr.lane)][mask];
    }
  }

  Step step_of(const Node& node) const {
    Step step;
    step.cols = node.cols;
    step.scalar_mask = mask_of(node.instr);
    for (std::size_t i = 0; i < node.instr.in.size(); ++i) {
      if (node.instr.in[i].kind == Operand::Kind::kNone) continue;
      step.in[i] = slot(node.instr.in[i]);
      step.given = static_cast<std::uint8_t>(step.given | 1u << i);
    }
    if (node.instr.op != Op::kStore) step.out = slot_of_value(node.instr.out);
    return step;
  }

  // A value that is rounded at once and not used otherwise.
  bool lower_rounded(const Node& node, const Node& next) {
    if (next.instr.op != Op::kRound || next.instr.dtype != Dtype::kBF16 || node.instr.lane != Lane::kF32) return false;
    if (!is_elementwise(node.instr.op) || next.instr.in[0].kind != Operand::Kind::kValue ||
        next.instr.in[0].index != node.instr.out || uses_of(node.instr.out) != 1)
      return false;
    const Kernel kernel = kernels_.rounded_bf16[index_of(node.instr.op)][mask_of(node.instr)];
    if (kernel == nullptr) return false;
    Step step = step_of(node);
    step.kernel = kernel;
    step.out = slot_of_value(next.instr.out);
    plan_.steps.push_back(step);
    return true;
  }

  std::size_t uses_of(std::size_t value) const {
    std::size_t count = 0;
    for (const Group& group : plan_.groups)
      for (const auto* part : {&group.pre, &group.body, &group.post})
        for (const Node& node : *part)
          count += static_cast<std::size_t>(
              std::count_if(node.instr.in.begin(), node.instr.in.end(),
                            [&](const Operand& in) { return in.kind == Operand::Kind::kValue && in.index == value; }));
    return count;
  }

  void lower(const Node& node) {
    const Instr& instr = node.instr;
    if (instr.op == Op::kLoad) return load(node);
    if (instr.op == Op::kStore) return store(node);
    Step step = step_of(node);
    const std::size_t element = size_of(program_.values[instr.out].lane);
    step.element = static_cast<std::uint8_t>(element);
    switch (instr.op) {
      case Op::kExpand: {
        step.kind = Step::Kind::kExpand;
        const Lane lane = program_.values[instr.out].lane;
        step.kernel = kernels_.cast[index_of(lane)][index_of(lane)][1];
        break;
      }
      case Op::kConcat:
        step.kind = Step::Kind::kConcat;
        for (std::size_t i = 0; i < 2; ++i) step.cols_of[i] = program_.values[instr.in[i].index].cols;
        break;
      case Op::kCall:
        step.kind = Step::Kind::kCall;
        step.lane = lane_of(instr.dtype);
        step.function = &element_function(static_cast<Function>(instr.function), instr.dtype);
        step.kernel = kernels_.cast[index_of(step.lane)][index_of(step.lane)][1];
        for (std::uint8_t i = 0; i < 2; ++i)
          if (step.scalar_mask & (1u << i)) step.scratch[i] = scratch_.at({node.cols, step.lane, i});
        break;
      case Op::kRow:
        step.kind = Step::Kind::kRow;
        step.row = row_function(static_cast<RowFunction>(instr.function), instr.dtype);
        break;
      default:
        step.kernel = kernel_of(instr, step.scalar_mask);
    }
    plan_.steps.push_back(step);
  }

  void load(const Node& node) {
    const Instr& instr = node.instr;
    const Access& access = program_.accesses[instr.access];
    const Place& place = plan_.places[instr.out];
    if (place.kind == Place::Kind::kMemory && place.index == instr.access) return;
    Step step = step_of(node);
    step.in[0] = plan_.access_slot(instr.access);
    step.index = instr.access;
    step.element = static_cast<std::uint8_t>(size_of(access.dtype));
    step.kernel = kernels_.load[index_of(access.dtype)];
    if (access.kind == Access::Kind::kColumns) {
      plan_.columns.push_back(
          {step.out, step.in[0], node.cols, static_cast<std::uint8_t>(size_of(lane_of(access.dtype))), step.kernel});
      return;
    }
    if (access.kind == Access::Kind::kStrided) gather_or_scatter(step, Step::Kind::kGather, access);
    plan_.steps.push_back(step);
  }

  void store(const Node& node) {
    const Instr& instr = node.instr;
    const Access& access = program_.accesses[instr.access];
    if (instr.in[0].kind == Operand::Kind::kValue) {
      const Place& place = plan_.places[instr.in[0].index];
      if (place.kind == Place::Kind::kMemory && place.index == instr.access) return;
    }
    Step step = step_of(node);
    step.out = plan_.access_slot(instr.access);
    step.index = instr.access;
    step.element = static_cast<std::uint8_t>(size_of(access.dtype));
    step.kernel = kernels_.store[index_of(access.dtype)][step.scalar_mask];
    if (access.kind == Access::Kind::kStrided || access.kind == Access::Kind::kStreamed)
      gather_or_scatter(step, Step::Kind::kScatter, access);
    plan_.steps.push_back(step);
  }

  void gather_or_scatter(Step& step, Step::Kind kind, const Access& access) {
    step.kind = kind;
    step.lane = lane_of(access.dtype);
    // A scalar is spread out in the scratch space, whatever its type.
    if (is_lane(access.dtype) && step.scalar_mask == 0) {
      step.kernel = nullptr;
    } else {
      plan_.scratch_element = std::max(plan_.scratch_element, size_of(access.dtype));
    }
  }

  const Program& program_;
  Plan& plan_;
  const Kernels& kernels_;
  std::map<std::tuple<std::uint8_t, Lane, std::uint8_t>, Slot> scratch_;
};

}  // namespace

bool is_cast_through_i32(const Program& program, const Instr& instr) {
  return instr.op == Op::kCast && instr.dtype == Dtype::kI32 && program.values[instr.out].lane == Lane::kI64 &&
         (instr.lane == Lane::kF32 || instr.lane == Lane::kF64);
}

Slot Plan::slot_of(const Program& program, const Operand& operand) const {
  if (operand.kind == Operand::Kind::kScalar) return scalar_slot(program, operand.index);
  const Place& where = places[operand.index];
  return where.kind == Place::Kind::kMemory ? access_slot(where.index) : register_slot(where.index);
}

void lower(const Program& program, Plan& plan) { Lowerer(program, plan).run(); }

}  // namespace neuron::engines
