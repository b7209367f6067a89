// Cores that wait for each other: who goes on, and who is stuck.
#include <algorithm>

#include "engines/isa/collectives.h"
#include "engines/isa/machine.h"

namespace neuron::engines::isa {

using std::int64_t;

namespace {

using Waiting = std::vector<const Instruction*>;

int64_t number(const Instruction& instruction, std::size_t attribute) {
  const auto* value = std::get_if<int64_t>(&instruction.attributes[attribute]);
  return value ? *value : -1;
}

const std::vector<int64_t>& numbers(const Instruction& instruction, std::size_t attribute) {
  static const std::vector<int64_t> none;
  const auto* values = std::get_if<std::vector<int64_t>>(&instruction.attributes[attribute]);
  return values ? *values : none;
}

bool waits(const Waiting& waiting, int64_t rank, Op op) {
  return rank >= 0 && rank < static_cast<int64_t>(waiting.size()) && waiting[static_cast<std::size_t>(rank)] &&
         waiting[static_cast<std::size_t>(rank)]->op == op;
}

std::vector<int64_t> cores_of(const Instruction& barrier, std::size_t cores) {
  std::vector<int64_t> result = numbers(barrier, 0);
  if (result.empty())
    for (std::size_t i = 0; i < cores; ++i) result.push_back(static_cast<int64_t>(i));
  return result;
}

bool meet_barrier(Waiting& waiting, std::size_t i) {
  const auto cores = cores_of(*waiting[i], waiting.size());
  for (const int64_t other : cores) {
    if (!waits(waiting, other, Op::kBarrier)) return false;
    if (cores_of(*waiting[static_cast<std::size_t>(other)], waiting.size()) != cores) return false;
  }
  for (const int64_t other : cores) waiting[static_cast<std::size_t>(other)] = nullptr;
  waiting[i] = nullptr;
  return true;
}

// Exchanges go in chains: all whose partners have come, until nobody is missing.
bool meet_sendrecv(const std::vector<Core*>& cores, Waiting& waiting, std::size_t first) {
  std::vector<int64_t> chain{static_cast<int64_t>(first)};
  const int64_t pipe = number(*waiting[first], 2);
  const auto expects = [&](int64_t who, std::size_t attribute, int64_t whom) {
    return waits(waiting, who, Op::kSendRecv) && number(*waiting[static_cast<std::size_t>(who)], 2) == pipe &&
           number(*waiting[static_cast<std::size_t>(who)], attribute) == whom;
  };
  for (std::size_t k = 0; k < chain.size(); ++k) {
    const Instruction& mine = *waiting[static_cast<std::size_t>(chain[k])];
    const int64_t to = number(mine, 0), from = number(mine, 1);
    if (!expects(to, 1, chain[k]) || !expects(from, 0, chain[k])) return false;
    for (const int64_t other : {to, from})
      if (std::find(chain.begin(), chain.end(), other) == chain.end()) chain.push_back(other);
  }
  std::vector<Buffer> sent;
  for (const int64_t i : chain) {
    const auto c = static_cast<std::size_t>(i);
    sent.emplace_back(cores[c]->tile(waiting[c]->operands[1]));
  }
  for (std::size_t k = 0; k < chain.size(); ++k) {
    const auto to = static_cast<std::size_t>(number(*waiting[static_cast<std::size_t>(chain[k])], 0));
    const Tile& source =
        cores[static_cast<std::size_t>(chain[k])]->tile(waiting[static_cast<std::size_t>(chain[k])]->operands[1]);
    const Tile& target = cores[to]->tile(waiting[to]->operands[0]);
    if (source.elements() != target.elements())
      throw ProgramFault(ProgramFault::Kind::kMismatch, "a core sends " + std::to_string(source.elements()) +
                                                            " elements to one that expects " +
                                                            std::to_string(target.elements()));
    sent[k].write(target);
  }
  for (const int64_t i : chain) waiting[static_cast<std::size_t>(i)] = nullptr;
  return true;
}

const std::string& kind_of(const Instruction& collective) {
  static const std::string none;
  const auto* kind = std::get_if<std::string>(&collective.attributes[0]);
  return kind ? *kind : none;
}

// Lists with their lengths before them.
std::vector<std::vector<int64_t>> lists(const std::vector<int64_t>& flat) {
  std::vector<std::vector<int64_t>> result;
  for (std::size_t i = 0; i < flat.size(); i += static_cast<std::size_t>(flat[i]) + 1)
    result.emplace_back(
        flat.begin() + static_cast<std::ptrdiff_t>(i) + 1,
        flat.begin() + static_cast<std::ptrdiff_t>(std::min(flat.size(), i + 1 + static_cast<std::size_t>(flat[i]))));
  return result;
}

bool meet_collective(const std::vector<Core*>& cores, Waiting& waiting, std::size_t i) {
  const Instruction& mine = *waiting[i];
  const std::string& kind = kind_of(mine);
  std::vector<int64_t> ranks, pairs;
  const auto groups = lists(numbers(mine, 1));
  const auto self = static_cast<int64_t>(i);
  if (kind == "collective_permute") {
    for (const auto& pair : groups) pairs.insert(pairs.end(), pair.begin(), pair.end());
    ranks = pairs;
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  } else if (groups.empty()) {
    for (std::size_t r = 0; r < cores.size(); ++r) ranks.push_back(static_cast<int64_t>(r));
  } else {
    for (const auto& group : groups)
      if (std::find(group.begin(), group.end(), self) != group.end()) ranks = group;
  }
  if (std::find(ranks.begin(), ranks.end(), self) == ranks.end()) {
    waiting[i] = nullptr;  // the groups leave this core out
    return true;
  }
  std::vector<Member> members;
  for (const int64_t r : ranks) {
    if (!waits(waiting, r, Op::kCollective)) return false;
    const Instruction& other = *waiting[static_cast<std::size_t>(r)];
    if (kind_of(other) != kind || numbers(other, 1) != numbers(mine, 1)) return false;
    members.push_back({cores[static_cast<std::size_t>(r)], &other, r});
  }
  run_collective(kind, members, pairs);
  for (const int64_t r : ranks) waiting[static_cast<std::size_t>(r)] = nullptr;
  return true;
}

}  // namespace

bool meet(const std::vector<Core*>& cores, Waiting& waiting) {
  bool moved = false;
  for (std::size_t i = 0; i < cores.size(); ++i) {
    if (!waiting[i]) continue;
    try {
      if (waiting[i]->op == Op::kBarrier)
        moved |= meet_barrier(waiting, i);
      else if (waiting[i]->op == Op::kSendRecv)
        moved |= meet_sendrecv(cores, waiting, i);
      else
        moved |= meet_collective(cores, waiting, i);
    } catch (ProgramFault& fault) {
      fault.program = static_cast<std::int32_t>(i);
      fault.instruction = cores[i]->image().steps[cores[i]->position - 1].number;
      throw;
    }
  }
  return moved;
}

std::string who_waits(const Waiting& waiting) {
  std::string text;
  for (std::size_t i = 0; i < waiting.size(); ++i) {
    text += (i ? "; core " : "core ") + std::to_string(i);
    if (!waiting[i]) {
      text += " has finished";
    } else if (waiting[i]->op == Op::kBarrier) {
      text += " waits in a barrier for";
      for (const int64_t other : cores_of(*waiting[i], waiting.size()))
        if (other != static_cast<int64_t>(i)) text += " core " + std::to_string(other);
    } else if (waiting[i]->op == Op::kSendRecv) {
      text += " sends to core " + std::to_string(number(*waiting[i], 0)) + " and receives from core " +
              std::to_string(number(*waiting[i], 1)) + " in pipe " + std::to_string(number(*waiting[i], 2));
    } else {
      text += " waits in " + kind_of(*waiting[i]);
    }
  }
  return text;
}

}  // namespace neuron::engines::isa
