#include "engines/isa/coverage.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "engines/isa/views.h"

namespace neuron::engines::isa {

using std::int32_t;
using std::int64_t;

namespace {

// Operations that may leave elements of their target as they were.
bool writes_in_part(const Instruction& instruction) {
  switch (instruction.op) {
    case Op::kTableCopy:
    case Op::kMaskedCopy:
    case Op::kCopyPredicated:
    case Op::kShuffle:
    case Op::kQuantizeMx:
    case Op::kLocalGather:
    case Op::kNonzeroWithCount:
    case Op::kCollective:
      return true;
    case Op::kDmaCopy:
    case Op::kDmaTranspose:
    case Op::kDmaCompute: {
      const auto* skips = std::get_if<int64_t>(&instruction.attributes.back());
      return skips && *skips;
    }
    default:
      return false;
  }
}

// Operands of which an instruction may need some elements only.
bool reads_in_part(const Instruction& instruction, std::size_t operand) {
  const std::size_t argument = operand - instruction.outputs;
  switch (instruction.op) {
    case Op::kMatmulMx:
      return argument >= 2;  // scales lie in a few partitions of each quadrant
    case Op::kTableCopy:
    case Op::kMaskedCopy:
    case Op::kShuffle:
    case Op::kLocalGather:
    case Op::kNGather:
    case Op::kNonzeroWithCount:
    case Op::kCollective:
      return true;
    default:
      return false;
  }
}

bool meets_others(Op op) { return op == Op::kBarrier || op == Op::kSendRecv || op == Op::kCollective; }

// What is known of a block: bytes that may have been written, and those that have been in any case.
struct Written {
  ByteSet possibly;
  ByteSet certain;
  bool differ = false;  // else `possibly` is both

  void add(const Geometry& g, bool surely) {
    if (!surely && !differ) {
      certain = possibly;
      differ = true;
    }
    possibly.add(g);
    if (surely && differ) certain.add(g);
  }
  void add_all_possibly() {
    if (!differ) certain = possibly;
    differ = true;
    possibly.add_all();
  }
  ByteSet& surely() { return differ ? certain : possibly; }
};

class Analysis {
 public:
  Analysis(Program& program, const MemoryPlan& plan, const std::vector<std::uint8_t>& known,
           const std::vector<std::uint8_t>& output)
      : program_(program),
        plan_(plan),
        known_(known),
        output_(output),
        shown_(program.storages.size(), 0),
        written_(shown_),
        marked_(shown_) {
    members_.resize(plan.blocks.size(), 0);
    for (const auto& place : plan.places) ++members_[static_cast<std::size_t>(place.block)];
    blocks_.resize(plan.blocks.size());
    std::vector<int64_t> unit(plan.blocks.size(), 0);
    for (std::size_t s = 0; s < program.storages.size(); ++s) {
      const auto b = static_cast<std::size_t>(plan.places[s].block);
      unit[b] = std::gcd(std::gcd(unit[b], plan.places[s].byte), plan.blocks[b].pitch);
    }
    for (const View& v : program.views) {
      const auto b = static_cast<std::size_t>(plan.places[static_cast<std::size_t>(v.storage)].block);
      unit[b] = std::gcd(unit[b], static_cast<int64_t>(bytes_of(v.type)));
    }
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      const Block& block = plan.blocks[b];
      blocks_[b].possibly = ByteSet(block.rows, std::max<int64_t>(1, block.pitch), std::max<int64_t>(1, unit[b]));
    }
    for (std::size_t s = 0; s < known.size(); ++s)
      if (known[s]) blocks_[static_cast<std::size_t>(plan.places[s].block)].possibly.add_all();
    sums_.resize(program.storages.size());
    for (const Instruction& i : program.instructions) {
      if (!is_sum(i)) continue;
      const int32_t s = storage_of(i.operands[0].index);
      if (members_[block_of(s)] > 1) sums_[static_cast<std::size_t>(s)] = fresh(s);
    }
  }

  Coverage run() {
    for (int32_t i = 0; i < static_cast<int32_t>(program_.instructions.size()); ++i) visit(i);
    for (std::size_t s = 0; s < shown_.size(); ++s) {
      const Block& block = plan_.blocks[block_of(static_cast<int32_t>(s))];
      if (shown_[s] && block.offset >= 0) result_.poison.emplace_back(block.lifetime.first, static_cast<int32_t>(s));
    }
    std::sort(result_.poison.begin(), result_.poison.end());
    for (std::size_t s = 0; s < output_.size(); ++s)
      if (output_[s] && !known_[s] && !written_[s]) result_.unwritten_storages.push_back(static_cast<int32_t>(s));
    return std::move(result_);
  }

 private:
  // Matmuls that are to find out by themselves whether they begin a sum.
  static bool is_sum(const Instruction& i) {
    return (i.op == Op::kMatmul || i.op == Op::kMatmulMx) && std::holds_alternative<std::monostate>(i.attributes[0]);
  }
  std::size_t block_of(int32_t s) const {
    return static_cast<std::size_t>(plan_.places[static_cast<std::size_t>(s)].block);
  }
  const View& view(int32_t v) const { return program_.views[static_cast<std::size_t>(v)]; }
  int32_t storage_of(int32_t v) const { return view(v).storage; }

  std::unique_ptr<Written> fresh(int32_t s) const {
    const Storage& storage = program_.storages[static_cast<std::size_t>(s)];
    auto written = std::make_unique<Written>();
    const Block& block = plan_.blocks[block_of(s)];
    written->possibly = ByteSet(storage.partitions, block.pitch, 1);
    return written;
  }

  // The view in its block; a dynamic one reaches all of its storage.
  Geometry reach(const View& v) const {
    const auto s = static_cast<std::size_t>(v.storage);
    const Storage& storage = program_.storages[s];
    const auto& place = plan_.places[s];
    const int64_t pitch = plan_.blocks[static_cast<std::size_t>(place.block)].pitch;
    Geometry g;
    if (v.dynamic == View::Dynamic::kNone) {
      g = geometry(v, storage, pitch);
    } else {
      g.rank = 2;
      g.bytes = 1;
      g.size[0] = storage.partitions;
      g.stride[0] = pitch;
      g.size[1] = row_bytes(storage);
      g.stride[1] = 1;
    }
    g.offset += place.row * pitch + place.byte;
    return g;
  }

  void read(int32_t i, int32_t operand, int32_t v, bool part) {
    const View& seen = view(v);
    if (seen.index >= 0) read(i, operand, seen.index, false);
    const std::size_t b = block_of(seen.storage);
    const Geometry g = reach(seen);
    Written& written = blocks_[b];
    const bool some = part || seen.dynamic != View::Dynamic::kNone;
    if (some ? !written.possibly.meets(g) : !written.possibly.contains(g))
      result_.unwritten_reads.push_back({i, operand, seen.storage});
    if (!written.surely().contains(g)) show(b, seen.storage);
  }

  // A read may see what was in the memory before: with several storages in a block, whichever it was.
  void show(std::size_t b, int32_t storage) {
    if (members_[b] == 1) {
      shown_[static_cast<std::size_t>(storage)] = 1;
      return;
    }
    if (shown_[static_cast<std::size_t>(storage)]) return;
    for (std::size_t s = 0; s < shown_.size(); ++s)
      if (block_of(static_cast<int32_t>(s)) == b) shown_[s] = 1;
  }

  void write(int32_t i, int32_t v) {
    const View& target = view(v);
    const Instruction& instruction = program_.instructions[static_cast<std::size_t>(i)];
    const Storage& storage = program_.storages[static_cast<std::size_t>(target.storage)];
    const bool surely =
        target.dynamic == View::Dynamic::kNone && !writes_in_part(instruction) && storage.loops >= uncertain_depth_;
    written_[static_cast<std::size_t>(target.storage)] = 1;
    blocks_[block_of(target.storage)].add(reach(target), surely);
    if (auto& own = sums_[static_cast<std::size_t>(target.storage)]) own->add(reach_alone(target), surely);
  }

  // As if the storage were alone in its block.
  Geometry reach_alone(const View& v) const {
    Geometry g = reach(v);
    const auto& place = plan_.places[static_cast<std::size_t>(v.storage)];
    g.offset -= place.row * plan_.blocks[static_cast<std::size_t>(place.block)].pitch + place.byte;
    return g;
  }

  void decide(int32_t i) {
    Instruction& instruction = program_.instructions[static_cast<std::size_t>(i)];
    Attribute& accumulate = instruction.attributes[0];
    const View& target = view(instruction.operands[0].index);
    if (!is_sum(instruction)) {
      const bool adds = std::get<int64_t>(accumulate) != 0;
      accumulate = static_cast<int64_t>(adds ? Accumulate::kAdd : Accumulate::kOverwrite);
      if (adds) read(i, 0, instruction.operands[0].index, false);
      return;
    }
    auto& own = sums_[static_cast<std::size_t>(target.storage)];
    Written& written = own ? *own : blocks_[block_of(target.storage)];
    const Geometry g = own ? reach_alone(target) : reach(target);
    const bool repeated =
        program_.storages[static_cast<std::size_t>(target.storage)].loops < static_cast<int32_t>(loops_.size());
    const bool moves = target.dynamic != View::Dynamic::kNone;
    auto mode = Accumulate::kByPoison;
    if (!moves && written.surely().contains(g))
      mode = Accumulate::kAdd;
    else if (!moves && !repeated && !written.possibly.meets(g))
      mode = Accumulate::kOverwrite;
    accumulate = static_cast<int64_t>(mode);
    if (mode != Accumulate::kByPoison) return;
    const auto s = static_cast<std::size_t>(target.storage);
    if (!own)
      shown_[s] = 1;
    else if (!std::exchange(marked_[s], 1))
      result_.poison.emplace_back(plan_.lifetimes[s].first, target.storage);
  }

  void visit(int32_t i) {
    const Instruction& instruction = program_.instructions[static_cast<std::size_t>(i)];
    const auto& operands = instruction.operands;
    if (instruction.op == Op::kLoopBegin || instruction.op == Op::kWhileBegin) {
      const bool runs = instruction.op == Op::kLoopBegin && operands[1].kind == Operand::Kind::kNumber &&
                        operands[2].kind == Operand::Kind::kNumber && operands[1].number < operands[2].number;
      loops_.push_back(runs);
    } else if (instruction.op == Op::kLoopEnd || instruction.op == Op::kWhileEnd) {
      loops_.pop_back();
    }
    uncertain_depth_ = 0;
    for (std::size_t d = 0; d < loops_.size(); ++d)
      if (!loops_[d]) uncertain_depth_ = static_cast<int32_t>(d) + 1;
    // A barrier names what it is about; it reads nothing.
    for (std::size_t o = instruction.outputs; o < operands.size() && instruction.op != Op::kBarrier; ++o)
      if (operands[o].kind == Operand::Kind::kView)
        read(i, static_cast<int32_t>(o), operands[o].index, reads_in_part(instruction, o));
    if (instruction.op == Op::kMatmul || instruction.op == Op::kMatmulMx) decide(i);
    for (std::size_t o = 0; o < instruction.outputs; ++o) {
      if (operands[o].kind != Operand::Kind::kView) continue;
      if (view(operands[o].index).index >= 0) read(i, static_cast<int32_t>(o), view(operands[o].index).index, false);
      write(i, operands[o].index);
    }
    if (!meets_others(instruction.op)) return;
    for (std::size_t s = 0; s < program_.storages.size(); ++s)
      if (program_.storages[s].region == Storage::Region::kSharedHbm)
        blocks_[block_of(static_cast<int32_t>(s))].add_all_possibly();
  }

  Program& program_;
  const MemoryPlan& plan_;
  const std::vector<std::uint8_t>&known_, &output_;
  std::vector<std::uint8_t> shown_;    // a read may show what the storage held when it was fresh
  std::vector<std::uint8_t> written_;  // some instruction writes to it
  std::vector<std::uint8_t> marked_;   // sums in it go by the poison
  std::vector<int32_t> members_;       // storages in each block
  std::vector<Written> blocks_;
  // Of storages that share bytes with others: sums start anew with each allocation, whatever the memory held.
  std::vector<std::unique_ptr<Written>> sums_;
  std::vector<bool> loops_;  // open ones; whether their bodies run at least once
  int32_t uncertain_depth_ = 0;
  Coverage result_;
};

}  // namespace

Coverage analyse_coverage(Program& program, const MemoryPlan& plan, const std::vector<std::uint8_t>& known,
                          const std::vector<std::uint8_t>& output) {
  return Analysis(program, plan, known, output).run();
}

}  // namespace neuron::engines::isa
