// The order of work: groups of instructions on one class of columns, as long as dependencies allow.
#include <algorithm>
#include <utility>

#include "engines/plan.h"

namespace neuron::engines {
namespace {

// Loads and expansions cost nothing where they can be left out, so they go to whoever needs them first.
bool is_lazy(Op op) { return op == Op::kLoad || op == Op::kExpand; }

bool uses(const Instr& instr, std::size_t value) {
  return std::any_of(instr.in.begin(), instr.in.end(),
                     [&](const Operand& in) { return in.kind == Operand::Kind::kValue && in.index == value; });
}

class Scheduler {
 public:
  explicit Scheduler(Program& program) : program_(program), code_(program.code), maker_(program.values.size()) {
    for (std::size_t i = 0; i < code_.size(); ++i)
      if (code_[i].op != Op::kStore) maker_[code_[i].out] = i;
  }

  std::vector<Group> run() {
    depend();
    form_groups();
    for (std::size_t i = 0; i < code_.size(); ++i)
      if (code_[i].op == Op::kExpand) place_expansion(code_[i]);
    // Backwards, as each goes in front of what is there.
    for (std::size_t i = code_.size(); i-- > 0;)
      if (code_[i].op == Op::kLoad) place_load(code_[i]);
    for (Group& group : groups_) split_stores(group);
    return std::move(groups_);
  }

 private:
  std::uint8_t class_of(const Instr& instr) const {
    if (instr.op == Op::kRow && instr.in[0].kind == Operand::Kind::kValue)
      return program_.values[instr.in[0].index].cols;
    return instr.cols;
  }

  // Loaded and stored by steps of their own, outside of stages.
  bool is_strided(const Instr& instr) const {
    const Access::Kind kind = program_.accesses[instr.access].kind;
    return kind == Access::Kind::kStrided || kind == Access::Kind::kStreamed;
  }

  // What instruction `i` must wait for, seen through lazy ones.
  void depend_on(std::size_t i, std::size_t value) {
    const Instr& made_by = code_[maker_[value]];
    if (!is_lazy(made_by.op)) {
      before_[i].push_back(maker_[value]);
    } else if (made_by.op == Op::kExpand && made_by.in[0].kind == Operand::Kind::kValue) {
      depend_on(i, made_by.in[0].index);
    }
  }

  bool reads(const Instr& instr, std::size_t access) const {
    for (const Operand& in : instr.in) {
      if (in.kind != Operand::Kind::kValue) continue;
      const Instr& made_by = code_[maker_[in.index]];
      if (made_by.op == Op::kLoad && made_by.access == access) return true;
      if (made_by.op == Op::kExpand && reads(made_by, access)) return true;
    }
    return false;
  }

  void depend() {
    before_.resize(code_.size());
    for (std::size_t i = 0; i < code_.size(); ++i) {
      if (is_lazy(code_[i].op)) continue;
      for (const Operand& in : code_[i].in)
        if (in.kind == Operand::Kind::kValue) depend_on(i, in.index);
      if (code_[i].op != Op::kStore) continue;
      // In-place results wait for the readers of what they overwrite, or those would need a copy of it.
      for (std::size_t j = 0; j < i; ++j)
        if (!is_lazy(code_[j].op) && reads(code_[j], code_[i].access)) before_[i].push_back(j);
    }
  }

  void form_groups() {
    std::vector<bool> done(code_.size());
    std::size_t left = 0;
    for (std::size_t i = 0; i < code_.size(); ++i) {
      done[i] = is_lazy(code_[i].op);
      left += !done[i];
    }
    const auto ready = [&](std::size_t i) {
      return !done[i] && std::all_of(before_[i].begin(), before_[i].end(), [&](std::size_t j) { return done[j]; });
    };
    while (left > 0) {
      std::size_t first = 0;
      while (!ready(first)) ++first;
      Group group;
      group.elementwise = is_elementwise(code_[first].op) || code_[first].op == Op::kStore;
      group.cols = class_of(code_[first]);
      for (std::size_t i = first; i < code_.size(); ++i) {
        if (!ready(i)) continue;
        const bool fits = i == first || (group.elementwise && class_of(code_[i]) == group.cols &&
                                         (is_elementwise(code_[i].op) || code_[i].op == Op::kStore));
        if (!fits) continue;
        group.body.push_back({code_[i], group.cols});
        done[i] = true;
        --left;
      }
      groups_.push_back(std::move(group));
    }
  }

  // One expansion for each group that needs it: machine code reads the per-row value itself.
  void place_expansion(const Instr& instr) {
    bool first = true;
    for (Group& group : groups_) {
      const auto user =
          std::find_if(group.body.begin(), group.body.end(), [&](const Node& n) { return uses(n.instr, instr.out); });
      if (user == group.body.end()) continue;
      Instr copy = instr;
      if (!first) {
        copy.out = static_cast<std::uint16_t>(program_.values.size());
        program_.values.push_back(program_.values[instr.out]);
        for (auto node = user; node != group.body.end(); ++node)
          for (Operand& in : node->instr.in)
            if (in.kind == Operand::Kind::kValue && in.index == instr.out) in.index = copy.out;
      }
      first = false;
      if (group.elementwise)
        group.body.insert(user, {copy, instr.cols});
      else
        group.pre.push_back({copy, instr.cols});
    }
  }

  void place_load(const Instr& instr) {
    for (Group& group : groups_) {
      const bool in_pre =
          std::any_of(group.pre.begin(), group.pre.end(), [&](const Node& n) { return uses(n.instr, instr.out); });
      // The store is a user too: the last moment at which the old elements are there.
      const auto user = std::find_if(group.body.begin(), group.body.end(), [&](const Node& n) {
        return uses(n.instr, instr.out) || (n.instr.op == Op::kStore && n.instr.access == instr.access);
      });
      if (!in_pre && user == group.body.end()) continue;
      const Node node{instr, instr.cols};
      if (in_pre || !group.elementwise || group.cols != instr.cols || is_strided(instr))
        group.pre.insert(group.pre.begin(), node);
      else
        group.body.insert(user, node);
      return;
    }
  }

  void split_stores(Group& group) {
    const auto scattered = std::stable_partition(group.body.begin(), group.body.end(), [&](const Node& n) {
      return n.instr.op != Op::kStore || !is_strided(n.instr);
    });
    group.post.assign(scattered, group.body.end());
    group.body.erase(scattered, group.body.end());
  }

  Program& program_;
  const std::vector<Instr> code_;
  std::vector<std::size_t> maker_;  // per value
  std::vector<std::vector<std::size_t>> before_;
  std::vector<Group> groups_;
};

}  // namespace

bool is_direct(const Access& access) {
  return (access.kind == Access::Kind::kDense || access.kind == Access::Kind::kRow) && is_lane(access.dtype);
}

bool is_elementwise(Op op) {
  switch (op) {
    case Op::kLoad:
    case Op::kStore:
    case Op::kCall:
    case Op::kExpand:
    case Op::kConcat:
    case Op::kRow:
      return false;
    default:
      return true;
  }
}

std::vector<Group> schedule(Program& program) { return Scheduler(program).run(); }

}  // namespace neuron::engines
