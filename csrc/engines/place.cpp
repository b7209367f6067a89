// Where values lie: in memory where that saves a copy, else in as few registers as their lives allow.
#include <algorithm>
#include <map>

#include "engines/plan.h"

namespace neuron::engines {
namespace {

constexpr std::int32_t kNever = -1;

class Placer {
 public:
  Placer(const Program& program, Plan& plan)
      : program_(program),
        plan_(plan),
        made_(program.values.size(), kNever),
        last_use_(program.values.size(), kNever),
        loaded_from_(program.values.size(), kNever),
        stored_at_(program.accesses.size(), kNever) {
    for (Group& group : plan.groups)
      for (auto* part : {&group.pre, &group.body, &group.post})
        for (Node& node : *part) nodes_.push_back(&node);
  }

  void run() {
    plan_.places.assign(program_.values.size(), {});
    find_lives();
    place_loads();
    place_stores();
    allocate();
  }

 private:
  const Instr& at(std::int32_t position) const { return nodes_[static_cast<std::size_t>(position)]->instr; }

  void find_lives() {
    for (std::int32_t p = 0; p < static_cast<std::int32_t>(nodes_.size()); ++p) {
      for (const Operand& in : at(p).in)
        if (in.kind == Operand::Kind::kValue) last_use_[in.index] = p;
      if (at(p).op == Op::kStore) {
        stored_at_[at(p).access] = p;
      } else {
        made_[at(p).out] = p;
        if (at(p).op == Op::kLoad) loaded_from_[at(p).out] = at(p).access;
      }
    }
  }

  // Loaded without a copy: memory that is not overwritten before the last look at it.
  void place_loads() {
    for (std::size_t v = 0; v < program_.values.size(); ++v) {
      if (loaded_from_[v] == kNever) continue;
      const auto access = static_cast<std::size_t>(loaded_from_[v]);
      if (!is_direct(program_.accesses[access])) continue;
      if (stored_at_[access] == kNever || last_use_[v] <= stored_at_[access])
        plan_.places[v] = {Place::Kind::kMemory, static_cast<std::uint16_t>(access)};
    }
  }

  // Made where it is stored: memory whose old elements nobody needs any more when the value comes to be.
  void place_stores() {
    for (std::size_t a = 0; a < program_.accesses.size(); ++a) {
      if (stored_at_[a] == kNever || !is_direct(program_.accesses[a])) continue;
      const Operand& stored = at(stored_at_[a]).in[0];
      if (stored.kind != Operand::Kind::kValue) continue;
      const std::size_t v = stored.index;
      if (plan_.places[v].kind != Place::Kind::kNone || keeps_register(v)) continue;
      if (program_.values[v].lane != lane_of(program_.accesses[a].dtype)) continue;
      if (old_elements_needed_until(a) <= last_moment(made_[v])) {
        plan_.places[v] = {Place::Kind::kMemory, static_cast<std::uint16_t>(a)};
      }
    }
  }

  // Its register is no other value's: columns are filled once for all tiles, and the register of what is gathered may
  // be memory itself, where a tile has no gaps.
  bool keeps_register(std::size_t v) const {
    if (loaded_from_[v] == kNever) return false;
    const Access::Kind kind = program_.accesses[static_cast<std::size_t>(loaded_from_[v])].kind;
    return kind == Access::Kind::kColumns || kind == Access::Kind::kStrided;
  }

  // The last position at which the operands of the op at `position` may still lie where its result goes: its own when
  // it works element by element, the one before otherwise.
  std::int32_t last_moment(std::int32_t position) const {
    return is_elementwise(at(position).op) ? position : position - 1;
  }

  std::int32_t old_elements_needed_until(std::size_t access) const {
    std::int32_t until = kNever;
    for (std::size_t v = 0; v < program_.values.size(); ++v) {
      if (loaded_from_[v] != static_cast<std::int32_t>(access)) continue;
      until = std::max(until, plan_.places[v].kind == Place::Kind::kMemory ? last_use_[v] : made_[v]);
    }
    return until;
  }

  bool needs_register(std::size_t v) const { return plan_.places[v].kind == Place::Kind::kNone; }

  std::uint16_t new_register(const Value& value) {
    plan_.registers.push_back({value.cols, value.lane});
    return static_cast<std::uint16_t>(plan_.registers.size() - 1);
  }

  void allocate() {
    // Registers are told apart by class and lane.
    std::map<std::pair<std::uint8_t, Lane>, std::vector<std::uint16_t>> free;
    const auto pool = [&](std::size_t v) -> std::vector<std::uint16_t>& {
      return free[{program_.values[v].cols, program_.values[v].lane}];
    };
    for (std::int32_t p = 0; p < static_cast<std::int32_t>(nodes_.size()); ++p) {
      const Instr& instr = at(p);
      const auto release = [&] {
        for (std::size_t i = 0; i < instr.in.size(); ++i) {
          const Operand& in = instr.in[i];
          if (in.kind != Operand::Kind::kValue || last_use_[in.index] != p || keeps_register(in.index)) continue;
          if (plan_.places[in.index].kind != Place::Kind::kRegister) continue;
          const bool seen = std::any_of(
              instr.in.begin(), instr.in.begin() + static_cast<std::ptrdiff_t>(i),
              [&](const Operand& other) { return other.kind == Operand::Kind::kValue && other.index == in.index; });
          if (!seen) pool(in.index).push_back(plan_.places[in.index].index);
        }
      };
      // An elementwise op may write over an operand that dies with it.
      if (is_elementwise(instr.op)) release();
      if (instr.op != Op::kStore && needs_register(instr.out)) {
        auto& candidates = pool(instr.out);
        std::uint16_t r;
        if (candidates.empty() || keeps_register(instr.out)) {
          r = new_register(program_.values[instr.out]);
        } else {
          r = candidates.back();
          candidates.pop_back();
        }
        plan_.places[instr.out] = {Place::Kind::kRegister, r};
        if (last_use_[instr.out] == kNever) pool(instr.out).push_back(r);
      }
      if (!is_elementwise(instr.op)) release();
    }
  }

  const Program& program_;
  Plan& plan_;
  std::vector<Node*> nodes_;
  std::vector<std::int32_t> made_, last_use_;  // positions in nodes_
  std::vector<std::int32_t> loaded_from_;      // access
  std::vector<std::int32_t> stored_at_;        // position, per access
};

}  // namespace

void place(const Program& program, Plan& plan) { Placer(program, plan).run(); }

}  // namespace neuron::engines
