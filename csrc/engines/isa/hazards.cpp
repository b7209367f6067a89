#include "engines/isa/hazards.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "engines/isa/access.h"

namespace neuron::engines::isa {

using std::int32_t;
using std::int64_t;

namespace {

// Partitions of a memory that several storages lie in are this far apart: more bytes than any has.
constexpr int64_t kPitch = int64_t{1} << 20;

// The accesses to one memory that a later one may have to wait for, in buckets along its bytes.
class Memory {
 public:
  explicit Memory(int64_t bytes) : width_(std::max<int64_t>(64, (bytes + kBuckets - 1) / kBuckets)) {}

  // Calls found(instruction) for what `access` must wait for.
  template <class Found>
  void reach(int32_t instruction, const Access& access, bool writes, const Found& found) {
    ++stamp_;
    const auto scan = [&](std::vector<int32_t>& bucket) {
      std::size_t kept = 0;
      for (const int32_t r : bucket) {
        Record& record = records_[static_cast<std::size_t>(r)];
        if (record.gone) continue;
        bucket[kept++] = r;
        if (record.stamp == stamp_ || !(writes || record.writes) || record.instruction == instruction) continue;
        record.stamp = stamp_;
        if (!record.access.meets(access)) continue;
        found(record.instruction);
        if (writes && access.covers(record.access)) {
          record.gone = true;
          --kept;
        }
      }
      bucket.resize(kept);
    };
    // Readers do not ask about each other, and there may be many of them.
    for (auto* side : {&written_, &read_}) {
      if (side == &read_ && !writes) continue;
      scan(side->wide);
      const auto [first, last] = buckets(access);
      for (int64_t b = first; b < last && b < static_cast<int64_t>(side->buckets.size()); ++b)
        scan(side->buckets[static_cast<std::size_t>(b)]);
    }
  }

  void add(int32_t instruction, const Access& access, bool writes) {
    Side& side = writes ? written_ : read_;
    const auto number = static_cast<int32_t>(records_.size());
    records_.push_back({access, instruction, 0, writes, false});
    const auto [first, last] = buckets(access);
    if (last - first > kWide) {
      side.wide.push_back(number);
      return;
    }
    if (static_cast<int64_t>(side.buckets.size()) < last) side.buckets.resize(static_cast<std::size_t>(last));
    for (int64_t b = first; b < last; ++b) side.buckets[static_cast<std::size_t>(b)].push_back(number);
  }

 private:
  static constexpr int64_t kBuckets = 256, kWide = 8;
  struct Record {
    Access access;
    int32_t instruction;
    std::uint32_t stamp;
    bool writes, gone;
  };
  struct Side {
    std::vector<int32_t> wide;
    std::vector<std::vector<int32_t>> buckets;
  };

  std::pair<int64_t, int64_t> buckets(const Access& a) const {
    return {std::max<int64_t>(0, a.low) / width_, std::max<int64_t>(0, a.high + width_ - 1) / width_};
  }

  int64_t width_;
  std::uint32_t stamp_ = 0;
  std::vector<Record> records_;
  Side written_, read_;
};

// Registers: the last instruction that set each, and those that read it since.
struct Registers {
  explicit Registers(int32_t count) : written(static_cast<std::size_t>(count), -1), read(written.size()) {}
  std::vector<int32_t> written;
  std::vector<std::vector<int32_t>> read;
};

class Finder {
 public:
  Finder(const Image& image, const std::vector<Alias>& aliases)
      : image_(image), registers_(image.program.registers), places_(image.program.storages.size()) {
    std::map<std::pair<int, int64_t>, int64_t> known;  // memories by who shares them
    std::map<std::pair<int, int64_t>, int64_t> extent;
    const auto& storages = image.program.storages;
    const auto key = [&](std::size_t s) -> std::pair<int, int64_t> {
      if (aliases.empty()) return {0, image.plan.places[s].block};
      if (aliases[s].memory >= 0) return {1, aliases[s].memory};
      return {2, static_cast<int64_t>(s)};
    };
    for (std::size_t s = 0; s < storages.size(); ++s) {
      Place& place = places_[s];
      if (!aliases.empty() && aliases[s].memory >= 0) {
        place.row = aliases[s].row;
        place.byte = aliases[s].byte;
      } else if (aliases.empty()) {
        place.row = image.plan.places[s].row;
        place.byte = image.plan.places[s].byte;
      }
      int64_t& bytes = extent[key(s)];
      bytes = std::max(bytes, place.byte + row_bytes(storages[s]));
    }
    for (std::size_t s = 0; s < storages.size(); ++s) {
      const auto [it, fresh] = known.try_emplace(key(s), static_cast<int64_t>(memories_.size()));
      if (fresh) memories_.emplace_back(extent[key(s)]);
      places_[s].memory = static_cast<std::size_t>(it->second);
    }
    const std::size_t views = image.program.views.size();
    accesses_.reserve(views);
    for (std::size_t v = 0; v < views; ++v) accesses_.push_back(access(image.program.views[v]));
  }

  std::vector<std::vector<int32_t>> run() {
    const auto& instructions = image_.program.instructions;
    std::vector<std::vector<int32_t>> result(instructions.size());
    for (std::size_t i = 0; i < instructions.size(); ++i) {
      before_.assign(instructions[i].after.begin(), instructions[i].after.end());
      visit(static_cast<int32_t>(i), instructions[i]);
      std::sort(before_.begin(), before_.end());
      before_.erase(std::unique(before_.begin(), before_.end()), before_.end());
      std::erase_if(before_, [&](int32_t b) { return b < 0 || b >= static_cast<int32_t>(i); });
      result[i] = before_;
    }
    return result;
  }

 private:
  struct Place {
    std::size_t memory = 0;
    int64_t row = 0, byte = 0;
  };

  Access access(const View& view) const {
    const auto s = static_cast<std::size_t>(view.storage);
    const Storage& storage = image_.program.storages[s];
    const Place& place = places_[s];
    const bool chip = on_chip(storage);
    Geometry g;
    if (view.dynamic == View::Dynamic::kNone) {
      g = geometry(view, storage, chip ? kPitch : row_bytes(storage));
    } else {
      g = whole(storage);
    }
    if (chip) g.offset += place.row * kPitch + place.byte;
    return access_of(g, chip ? kPitch : 0);
  }

  static Geometry whole(const Storage& storage) {
    Geometry g;
    g.rank = 2;
    g.bytes = 1;
    g.size[0] = storage.partitions;
    g.stride[0] = on_chip(storage) ? kPitch : row_bytes(storage);
    g.size[1] = row_bytes(storage);
    g.stride[1] = 1;
    return g;
  }

  void wait(int32_t instruction) { before_.push_back(instruction); }

  void read_register(int32_t r) { wait(registers_.written[static_cast<std::size_t>(r)]); }

  void reach(int32_t i, int32_t v, bool writes) {
    const View& view = image_.program.views[static_cast<std::size_t>(v)];
    if (view.index >= 0) reach(i, view.index, false);
    if (view.index_register >= 0) read_register(view.index_register);
    memories_[places_[static_cast<std::size_t>(view.storage)].memory].reach(
        i, accesses_[static_cast<std::size_t>(v)], writes, [this](int32_t other) { wait(other); });
  }

  void add(int32_t i, int32_t v, bool writes) {
    const View& view = image_.program.views[static_cast<std::size_t>(v)];
    if (view.index >= 0) add(i, view.index, false);
    if (view.index_register >= 0) registers_.read[static_cast<std::size_t>(view.index_register)].push_back(i);
    memories_[places_[static_cast<std::size_t>(view.storage)].memory].add(i, accesses_[static_cast<std::size_t>(v)],
                                                                          writes);
  }

  void visit(int32_t i, const Instruction& instruction) {
    const auto& operands = instruction.operands;
    const bool meets =
        instruction.op == Op::kBarrier || instruction.op == Op::kSendRecv || instruction.op == Op::kCollective;
    for (std::size_t o = 0; o < operands.size(); ++o) {
      const bool writes = o < instruction.outputs;
      if (operands[o].kind == Operand::Kind::kView) reach(i, operands[o].index, writes);
      if (operands[o].kind != Operand::Kind::kRegister) continue;
      const auto r = static_cast<std::size_t>(operands[o].index);
      read_register(operands[o].index);
      if (writes) before_.insert(before_.end(), registers_.read[r].begin(), registers_.read[r].end());
    }
    if (meets)
      each_shared([&](Memory& memory, const Access& all) {
        memory.reach(i, all, true, [this](int32_t other) { wait(other); });
      });
    for (std::size_t o = 0; o < operands.size(); ++o) {
      const bool writes = o < instruction.outputs;
      if (operands[o].kind == Operand::Kind::kView) add(i, operands[o].index, writes);
      if (operands[o].kind != Operand::Kind::kRegister) continue;
      const auto r = static_cast<std::size_t>(operands[o].index);
      if (writes) {
        registers_.written[r] = i;
        registers_.read[r].clear();
      } else {
        registers_.read[r].push_back(i);
      }
    }
    if (meets) each_shared([&](Memory& memory, const Access& all) { memory.add(i, all, true); });
  }

  template <class Body>
  void each_shared(const Body& body) {
    for (std::size_t s = 0; s < places_.size(); ++s) {
      const Storage& storage = image_.program.storages[s];
      if (storage.region == Storage::Region::kSharedHbm)
        body(memories_[places_[s].memory], access_of(whole(storage), 0));
    }
  }

  const Image& image_;
  Registers registers_;
  std::vector<Place> places_;
  std::vector<Memory> memories_;
  std::vector<Access> accesses_;  // per view
  std::vector<int32_t> before_;
};

}  // namespace

std::vector<std::vector<int32_t>> dependencies(const Image& image, const std::vector<Alias>& aliases) {
  return Finder(image, aliases).run();
}

}  // namespace neuron::engines::isa
