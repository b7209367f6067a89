#include "eager/fusion/fuser.h"

#include <algorithm>
#include <map>
#include <optional>

namespace neuron::eager::fusion {

namespace {

using engines::Access;
using engines::Dtype;
using engines::Instr;
using engines::Lane;
using engines::Op;

// Widths that are worth splitting a flat iteration into rows for, so that a broadcast operand is one run of columns.
constexpr std::int64_t kMinUsefulCols = 16;
// Results of this size have left the caches of most machines before anybody reads them.
constexpr std::int64_t kStreamedBytes = std::int64_t{8} << 20;

class RegionWriter {
 public:
  RegionWriter(const Window& window, std::int32_t region) : window_(window), region_(region) {
    program_.cols_classes = 1;
    geometry_.cols = {1};
    choose_rows();
  }

  void add(const PieceUse& use);
  FusedRegion take();

 private:
  // A value of the program, or a scalar of it.
  using Operand = engines::Operand;

  void choose_rows();
  std::uint8_t class_of(std::int64_t elements);
  void drop_unused();
  Operand emit(Instr instr, Lane lane, std::uint8_t cols);
  std::uint16_t access(std::uint32_t slot, const fusion::Operand& operand, Access::Kind kind, std::uint8_t cols);
  Operand read(std::uint32_t slot, const fusion::Operand& operand, std::int64_t elements);
  Operand load(std::uint32_t slot, const fusion::Operand& operand, Access::Kind kind, std::uint8_t cols);
  std::uint16_t scalar(Lane lane, std::int32_t binding);
  Operand as_value(Operand operand, Lane lane, std::uint8_t cols);

  const Window& window_;
  const std::int32_t region_;
  std::int64_t rows_ = 0;
  engines::Program program_;
  engines::Geometry geometry_;
  FusedRegion out_;

  struct Loaded {
    std::uint32_t slot;
    Access::Kind kind;
    std::uint8_t cols;
    const fusion::Operand* operand;
    Operand value;
  };
  std::vector<Loaded> loaded_;
  std::map<std::uint32_t, Operand> current_;  // slot -> value that the region has written to it
  std::map<std::uint32_t, const fusion::Operand*> written_;
  std::map<std::uint32_t, std::uint16_t> full_access_;  // slot -> its access element by element
  std::map<std::pair<std::uint32_t, std::uint16_t>, Operand> expanded_;
};

// A flat region may be cut into rows as it likes: so that what is the same for all rows is loaded as columns.
void RegionWriter::choose_rows() {
  rows_ = window_.rows_of(region_);
  const std::int64_t elements = window_.elements_of(region_);
  if (!rows_) {
    for (const auto& use : window_.pieces()) {
      if (window_.region_of(use.region) != region_) continue;
      for (const auto& operand : use.piece->operands) {
        if (operand.map != Map::kColumns && operand.map != Map::kRow) continue;
        const std::int64_t cols = elements / operand.rows;
        if (elements % operand.rows == 0 && cols >= kMinUsefulCols && cols <= Window::kMaxCols) rows_ = operand.rows;
      }
      if (rows_) break;
    }
  }
  if (!rows_) rows_ = elements;
  geometry_.rows = rows_;
}

std::uint8_t RegionWriter::class_of(std::int64_t elements) {
  const std::int64_t cols = elements / rows_;
  const auto it = std::find(geometry_.cols.begin(), geometry_.cols.end(), cols);
  if (it != geometry_.cols.end()) return static_cast<std::uint8_t>(it - geometry_.cols.begin());
  geometry_.cols.push_back(cols);
  program_.cols_classes = static_cast<std::uint8_t>(geometry_.cols.size());
  return static_cast<std::uint8_t>(geometry_.cols.size() - 1);
}

engines::Operand RegionWriter::emit(Instr instr, Lane lane, std::uint8_t cols) {
  instr.cols = cols;
  instr.out = static_cast<std::uint16_t>(program_.values.size());
  program_.values.push_back({lane, cols});
  program_.code.push_back(instr);
  out_.work += geometry_.rows * geometry_.cols[cols];
  return {Operand::Kind::kValue, instr.out};
}

std::uint16_t RegionWriter::scalar(Lane lane, std::int32_t binding) {
  program_.scalars.push_back(lane);
  out_.scalars.push_back(binding);
  return static_cast<std::uint16_t>(program_.scalars.size() - 1);
}

std::uint16_t RegionWriter::access(std::uint32_t slot, const fusion::Operand& operand, Access::Kind kind,
                                   std::uint8_t cols) {
  const bool full = kind == Access::Kind::kDense || (kind == Access::Kind::kStrided && operand.map == Map::kFull);
  if (full)
    if (const auto it = full_access_.find(slot); it != full_access_.end()) return it->second;
  const auto index = static_cast<std::uint16_t>(program_.accesses.size());
  Access a{kind, operand.dtype, cols};
  if (kind == Access::Kind::kUniform) a.scalar = scalar(engines::lane_of(operand.dtype), -1);
  program_.accesses.push_back(a);
  geometry_.strides.push_back(kind == Access::Kind::kStrided ? operand.strides : engines::Geometry::Strides{});
  out_.slots.push_back(slot);
  if (full) full_access_.emplace(slot, index);
  return index;
}

engines::Operand RegionWriter::load(std::uint32_t slot, const fusion::Operand& operand, Access::Kind kind,
                                    std::uint8_t cols) {
  for (const auto& l : loaded_)
    if (l.slot == slot && l.kind == kind && l.cols == cols &&
        (kind != Access::Kind::kStrided ||
         (l.operand->strides.sizes == operand.strides.sizes && l.operand->strides.strides == operand.strides.strides)))
      return l.value;
  const std::uint16_t a = access(slot, operand, kind, cols);
  Operand value;
  if (kind == Access::Kind::kUniform) {
    value = {Operand::Kind::kScalar, program_.accesses[a].scalar};
  } else {
    Instr instr{Op::kLoad};
    instr.lane = engines::lane_of(operand.dtype);
    instr.access = a;
    value = emit(instr, instr.lane, cols);
  }
  loaded_.push_back({slot, kind, cols, &operand, value});
  return value;
}

// The operand as the piece meets it, `elements` in all.
engines::Operand RegionWriter::read(std::uint32_t slot, const fusion::Operand& operand, std::int64_t elements) {
  const Lane lane = engines::lane_of(operand.dtype);
  const auto written = current_.find(slot);
  if (operand.map == Map::kFull) {
    if (written != current_.end()) return written->second;
    const auto kind = operand.dense ? Access::Kind::kDense : Access::Kind::kStrided;
    return load(slot, operand, kind, class_of(operand.elements));
  }
  const std::uint8_t cols = class_of(elements);
  if (operand.map == Map::kUniform) return load(slot, operand, Access::Kind::kUniform, 0);
  if (operand.map == Map::kRow && operand.rows == rows_) {
    const Operand row = written != current_.end() ? written->second : load(slot, operand, Access::Kind::kDense, 0);
    if (cols == 0) return row;
    const auto known = expanded_.find({row.index, cols});
    if (known != expanded_.end()) return known->second;
    Instr instr{Op::kExpand};
    instr.lane = lane;
    instr.in[0] = row;
    return expanded_[{row.index, cols}] = emit(instr, lane, cols);
  }
  if (operand.map == Map::kColumns && operand.rows == rows_ && cols != 0)
    return load(slot, operand, Access::Kind::kColumns, cols);
  return load(slot, operand, Access::Kind::kStrided, cols);
}

engines::Operand RegionWriter::as_value(Operand operand, Lane lane, std::uint8_t cols) {
  if (operand.kind != Operand::Kind::kScalar) return operand;
  Instr instr{Op::kExpand};
  instr.lane = lane;
  instr.in[0] = operand;
  return emit(instr, lane, cols);
}

void RegionWriter::add(const PieceUse& use) {
  const Piece& piece = *use.piece;
  if (out_.launches.empty() || out_.launches.back() != use.launch) out_.launches.push_back(use.launch);

  // Read before anything is written: an op sees its arguments as they were.
  std::int64_t elements = 0;
  for (const auto& step : piece.steps) elements = std::max(elements, step.elements);
  for (const auto& operand : piece.operands)
    if (operand.map == Map::kFull) elements = std::max(elements, operand.elements);
  std::vector<std::optional<Operand>> operands(piece.operands.size());
  const auto slot_of = [&](std::size_t i) { return window_.uses()[use.first_slot + i]; };
  for (std::size_t i = 0; i < piece.operands.size(); ++i)
    if (piece.operands[i].read) operands[i] = read(slot_of(i), piece.operands[i], elements);

  std::vector<Operand> numbers, steps;
  for (const auto& source : piece.numbers) {
    const auto binding = static_cast<std::int32_t>(out_.bindings.size());
    out_.bindings.push_back({use.launch, source});
    numbers.push_back({Operand::Kind::kScalar, scalar(source.lane, binding)});
  }
  const auto resolve = [&](const Ref& ref) -> Operand {
    switch (ref.kind) {
      case Ref::Kind::kStep:
        return steps[ref.index];
      case Ref::Kind::kOperand:
        return *operands[ref.index];
      case Ref::Kind::kNumber:
        return numbers[ref.index];
      default:
        return {};
    }
  };
  const auto lane_of = [&](const Operand& operand) {
    return operand.kind == Operand::Kind::kScalar ? program_.scalars[operand.index]
                                                  : program_.values[operand.index].lane;
  };
  for (const auto& step : piece.steps) {
    const std::uint8_t cols = class_of(step.elements);
    Instr instr{step.op};
    instr.lane = step.lane;
    instr.dtype = step.dtype;
    instr.function = step.function;
    bool has_value = false;
    std::size_t count = 0;
    for (std::size_t i = 0; i < step.in.size(); ++i) {
      instr.in[i] = resolve(step.in[i]);
      has_value |= instr.in[i].kind == Operand::Kind::kValue;
      count += instr.in[i].kind != Operand::Kind::kNone;
    }
    // Kernels want one tile at least, and the condition of a choice as one.
    const bool first_must_be_value = !has_value || count == 1 || step.op == Op::kSelect || step.op == Op::kRow;
    if (first_must_be_value && step.op != Op::kExpand) instr.in[0] = as_value(instr.in[0], lane_of(instr.in[0]), cols);
    if (step.op == Op::kCall || step.op == Op::kConcat)
      for (std::size_t i = 0; i < count; ++i) instr.in[i] = as_value(instr.in[i], lane_of(instr.in[i]), cols);
    steps.push_back(emit(instr, step.result, cols));
  }
  for (const auto& result : piece.results) {
    const auto& operand = piece.operands[result.operand];
    const std::uint32_t slot = slot_of(result.operand);
    Operand value = resolve(result.value);
    value = as_value(value, engines::lane_of(operand.dtype), class_of(operand.elements));
    current_[slot] = value;
    written_[slot] = &operand;
  }
}

// Leaves out what no stored value is made of.
void RegionWriter::drop_unused() {
  std::vector<bool> used(program_.values.size());
  std::vector<Instr> kept;
  for (auto instr = program_.code.rbegin(); instr != program_.code.rend(); ++instr) {
    if (instr->op != Op::kStore && !used[instr->out]) {
      out_.work -= geometry_.rows * geometry_.cols[instr->cols];
      continue;
    }
    for (const Operand& in : instr->in)
      if (in.kind == Operand::Kind::kValue) used[in.index] = true;
    kept.push_back(*instr);
  }
  std::reverse(kept.begin(), kept.end());
  program_.code = std::move(kept);
}

FusedRegion RegionWriter::take() {
  for (const auto& [slot, operand] : written_) {
    if (window_.slots()[slot].dead) {
      out_.bytes_not_written += operand->elements * static_cast<std::int64_t>(size_of(operand->dtype));
      continue;
    }
    const std::uint8_t cols = class_of(operand->elements);
    const bool is_read = full_access_.contains(slot);
    const bool large = operand->elements * static_cast<std::int64_t>(size_of(operand->dtype)) >= kStreamedBytes;
    const auto kind = !operand->dense     ? Access::Kind::kStrided
                      : large && !is_read ? Access::Kind::kStreamed
                                          : Access::Kind::kDense;
    Instr instr{Op::kStore};
    instr.lane = engines::lane_of(operand->dtype);
    instr.access = access(slot, *operand, kind, cols);
    instr.cols = cols;
    instr.in[0] = current_.at(slot);
    program_.accesses[instr.access].written = true;
    program_.code.push_back(instr);
  }
  drop_unused();
  out_.geometry = std::move(geometry_);
  const bool stores = std::any_of(program_.code.begin(), program_.code.end(),
                                  [](const Instr& instr) { return instr.op == Op::kStore; });
  if (!stores) return std::move(out_);  // nobody will see what it computes
  out_.program = &hot_program(std::move(program_));
  return std::move(out_);
}

}  // namespace

std::unique_ptr<WindowPlan> fuse(const Window& window) {
  auto plan = std::make_unique<WindowPlan>();
  plan->key = window.key();
  std::vector<std::int32_t> order;
  std::map<std::int32_t, RegionWriter> writers;
  for (const auto& use : window.pieces()) {
    const std::int32_t region = window.region_of(use.region);
    auto it = writers.find(region);
    if (it == writers.end()) {
      it = writers.try_emplace(region, window, region).first;
      order.push_back(region);
    }
    it->second.add(use);
  }
  for (const std::int32_t region : order) plan->regions.push_back(writers.at(region).take());
  return plan;
}

}  // namespace neuron::eager::fusion
