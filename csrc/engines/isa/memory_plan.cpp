#include "engines/isa/memory_plan.h"

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <tuple>
#include <unordered_map>

#include "engines/isa/views.h"

namespace neuron::engines::isa {

using std::int32_t;
using std::int64_t;

namespace {

constexpr int64_t kLine = 64;

int64_t rounded(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

// Eight sizes per power of two: blocks of nearly the same size can take each other's place exactly.
int64_t size_class(int64_t bytes) {
  const int64_t lines = std::max(kLine, rounded(bytes, kLine));
  const auto step = static_cast<int64_t>(std::bit_floor(static_cast<std::uint64_t>(lines))) / 8;
  return rounded(lines, std::max(kLine, step));
}

void use(std::vector<Lifetime>& lifetimes, int32_t storage, int32_t first, int32_t last) {
  Lifetime& l = lifetimes[static_cast<std::size_t>(storage)];
  l.first = l.used() ? std::min(l.first, first) : first;
  l.last = std::max(l.last, last);
}

std::vector<Lifetime> lifetimes_of(const Program& program) {
  std::vector<Lifetime> lifetimes(program.storages.size());
  std::vector<int32_t> open;  // loops around the instruction
  const auto count = static_cast<int32_t>(program.instructions.size());
  for (int32_t i = 0; i < count; ++i) {
    const Instruction& instruction = program.instructions[static_cast<std::size_t>(i)];
    const bool begins = instruction.op == Op::kLoopBegin || instruction.op == Op::kWhileBegin;
    if (begins) open.push_back(i);
    const auto touch = [&](int32_t view, const auto& self) -> void {
      const View& v = program.views[static_cast<std::size_t>(view)];
      const auto depth = static_cast<std::size_t>(program.storages[static_cast<std::size_t>(v.storage)].loops);
      if (depth < open.size()) {
        const int32_t loop = open[depth];
        use(lifetimes, v.storage, loop, program.instructions[static_cast<std::size_t>(loop)].partner);
      } else {
        use(lifetimes, v.storage, i, i);
      }
      if (v.index >= 0) self(v.index, self);
    };
    for (const Operand& operand : instruction.operands)
      if (operand.kind == Operand::Kind::kView) touch(operand.index, touch);
    if (instruction.op == Op::kLoopEnd || instruction.op == Op::kWhileEnd) open.pop_back();
  }
  return lifetimes;
}

// Storages with addresses whose bytes meet, directly or through others, found by a sweep along the bytes.
class Overlaps {
 public:
  explicit Overlaps(const Program& program) : program_(program), parent_(program.storages.size()) {
    std::iota(parent_.begin(), parent_.end(), 0);
    for (const auto region : {Storage::Region::kSbuf, Storage::Region::kPsum}) sweep(region);
  }
  int32_t root(int32_t s) {
    while (parent_[static_cast<std::size_t>(s)] != s)
      s = parent_[static_cast<std::size_t>(s)] =
          parent_[static_cast<std::size_t>(parent_[static_cast<std::size_t>(s)])];
    return s;
  }

 private:
  void sweep(Storage::Region region) {
    struct Box {
      int64_t begin, end, row, rows;
      int32_t storage;
    };
    std::vector<Box> boxes;
    std::map<std::tuple<int64_t, int64_t, int64_t, int64_t>, int32_t> seen;
    for (std::size_t s = 0; s < program_.storages.size(); ++s) {
      const Storage& storage = program_.storages[s];
      if (storage.region != region || storage.address_bytes < 0) continue;
      const Box box{storage.address_bytes, storage.address_bytes + row_bytes(storage), storage.address_partition,
                    storage.partitions, static_cast<int32_t>(s)};
      const auto [it, fresh] = seen.try_emplace({box.begin, box.end, box.row, box.rows}, box.storage);
      if (fresh)
        boxes.push_back(box);
      else
        parent_[s] = root(it->second);
    }
    std::sort(boxes.begin(), boxes.end(), [](const Box& a, const Box& b) { return a.begin < b.begin; });
    std::vector<const Box*> active;
    for (const Box& box : boxes) {
      std::erase_if(active, [&](const Box* other) { return other->end <= box.begin; });
      for (const Box* other : active)
        if (other->row < box.row + box.rows && box.row < other->row + other->rows)
          parent_[static_cast<std::size_t>(root(other->storage))] = root(box.storage);
      active.push_back(&box);
    }
  }

  const Program& program_;
  std::vector<int32_t> parent_;
};

void make_blocks(const Program& program, MemoryPlan& plan) {
  Overlaps overlaps(program);
  std::map<int32_t, std::vector<int32_t>> groups;
  const auto count = static_cast<int32_t>(program.storages.size());
  for (int32_t s = 0; s < count; ++s) {
    const Storage& storage = program.storages[static_cast<std::size_t>(s)];
    auto& place = plan.places[static_cast<std::size_t>(s)];
    if (on_chip(storage) && storage.address_bytes >= 0) {
      groups[overlaps.root(s)].push_back(s);
      continue;
    }
    place.block = static_cast<int32_t>(plan.blocks.size());
    Block block;
    block.rows = on_chip(storage) ? storage.partitions : 1;
    block.pitch = row_bytes(storage);
    block.lifetime = plan.lifetimes[static_cast<std::size_t>(s)];
    plan.blocks.push_back(block);
  }
  for (const auto& [root, members] : groups) {
    int64_t first_row = INT64_MAX, last_row = 0, first = INT64_MAX, last = 0;
    Block block;
    for (const int32_t s : members) {
      const Storage& storage = program.storages[static_cast<std::size_t>(s)];
      first_row = std::min(first_row, storage.address_partition);
      last_row = std::max(last_row, storage.address_partition + storage.partitions);
      first = std::min(first, storage.address_bytes);
      last = std::max(last, storage.address_bytes + row_bytes(storage));
      const Lifetime& l = plan.lifetimes[static_cast<std::size_t>(s)];
      if (!l.used()) continue;
      block.lifetime.first = block.lifetime.used() ? std::min(block.lifetime.first, l.first) : l.first;
      block.lifetime.last = std::max(block.lifetime.last, l.last);
    }
    block.rows = last_row - first_row;
    block.pitch = members.size() == 1 ? last - first : rounded(last - first, kLine);
    for (const int32_t s : members) {
      const Storage& storage = program.storages[static_cast<std::size_t>(s)];
      plan.places[static_cast<std::size_t>(s)] = {static_cast<int32_t>(plan.blocks.size()),
                                                  storage.address_partition - first_row, storage.address_bytes - first};
    }
    plan.blocks.push_back(block);
  }
}

// Memory given back last is handed out first: it is still in the cache.
void lay_out(const Program& program, const std::vector<std::uint8_t>& storage_brought, MemoryPlan& plan) {
  std::vector<std::vector<int32_t>> begins(program.instructions.size()), ends(program.instructions.size());
  std::vector<std::uint8_t> brought(plan.blocks.size(), 0);
  for (std::size_t s = 0; s < program.storages.size(); ++s)
    if (in_hbm(program.storages[s]) &&
        (program.storages[s].region == Storage::Region::kSharedHbm || storage_brought[s]))
      brought[static_cast<std::size_t>(plan.places[s].block)] = 1;
  for (std::size_t b = 0; b < plan.blocks.size(); ++b) {
    const Lifetime& l = plan.blocks[b].lifetime;
    if (!l.used() || brought[b]) continue;
    begins[static_cast<std::size_t>(l.first)].push_back(static_cast<int32_t>(b));
    ends[static_cast<std::size_t>(l.last)].push_back(static_cast<int32_t>(b));
  }
  std::unordered_map<int64_t, std::vector<int64_t>> free;
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    for (const int32_t b : begins[i]) {
      Block& block = plan.blocks[static_cast<std::size_t>(b)];
      const int64_t bytes = size_class(block.bytes());
      auto& stack = free[bytes];
      if (stack.empty()) {
        block.offset = plan.arena_bytes;
        plan.arena_bytes += bytes;
      } else {
        block.offset = stack.back();
        stack.pop_back();
      }
    }
    for (const int32_t b : ends[i]) {
      const Block& block = plan.blocks[static_cast<std::size_t>(b)];
      free[size_class(block.bytes())].push_back(block.offset);
    }
  }
}

}  // namespace

MemoryPlan plan_memory(const Program& program, const std::vector<std::uint8_t>& brought) {
  MemoryPlan plan;
  plan.lifetimes = lifetimes_of(program);
  plan.places.resize(program.storages.size());
  make_blocks(program, plan);
  lay_out(program, brought, plan);
  return plan;
}

}  // namespace neuron::engines::isa
