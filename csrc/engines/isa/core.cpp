#include "engines/isa/core.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>

#include "engines/isa/elements.h"
#include "engines/isa/image.h"

namespace neuron::engines::isa {

using std::int32_t;
using std::int64_t;

namespace {

constexpr std::size_t kLine = 64;

std::byte* allocate(int64_t bytes) {
  const std::size_t size = (static_cast<std::size_t>(std::max<int64_t>(bytes, 1)) + kLine - 1) / kLine * kLine;
  void* memory = std::aligned_alloc(kLine, size);
  if (!memory) throw std::bad_alloc();
  return static_cast<std::byte*>(memory);
}

[[noreturn]] void out_of_bounds(int64_t value, int64_t limit) {
  throw ProgramFault(ProgramFault::Kind::kOutOfBounds,
                     "index " + std::to_string(value) + " is outside [0, " + std::to_string(limit) + ")");
}

template <class T>
void fill(std::byte* to, int64_t bytes, T value) {
  std::fill_n(reinterpret_cast<T*>(to), bytes / static_cast<int64_t>(sizeof(T)), value);
}

// NaN for floats, 4 for integers; PSUM has NaNs of its own.
void fill_poison(std::byte* to, int64_t bytes, Type type, bool psum) {
  constexpr std::uint32_t kNan32 = 0x7FC00000;
  switch (type) {
    case Type::kFloat32:
    case Type::kTFloat32:
      return fill<std::uint32_t>(to, bytes, psum ? kPsumPoison : kNan32);
    case Type::kBFloat16:
      return fill<std::uint16_t>(to, bytes, psum ? kPsumPoison16 : 0x7FC0);
    case Type::kFloat16:
      return fill<std::uint16_t>(to, bytes, psum ? kPsumPoison16 : 0x7E00);
    case Type::kFloat8E4M3:
    case Type::kFloat8E4M3FN:
    case Type::kFloat8E5M2:
      return fill<std::uint8_t>(to, bytes, 0x7F);
    case Type::kFloat8E8M0FNU:
      return fill<std::uint8_t>(to, bytes, 0xFF);
    case Type::kBool:
      return fill<std::uint8_t>(to, bytes, 1);
    default:
      break;
  }
  switch (bytes_of(type)) {
    case 8:
      return fill<std::uint64_t>(to, bytes, 4);
    case 4:
      return fill<std::uint32_t>(to, bytes, 4);
    case 2:
      return fill<std::uint16_t>(to, bytes, 4);
    default:
      return fill<std::uint8_t>(to, bytes, 4);
  }
}

}  // namespace

Core::Core(std::shared_ptr<const Image> image)
    : image_(std::move(image)),
      registers_(static_cast<std::size_t>(image_->program.registers)),
      tiles_(image_->tiles),
      bases_(image_->program.storages.size(), nullptr),
      arena_(allocate(image_->plan.arena_bytes), &std::free),
      places_(image_->tiles.size()) {
  const MemoryPlan& plan = image_->plan;
  for (std::size_t s = 0; s < bases_.size(); ++s) {
    const auto& place = plan.places[s];
    const Block& block = plan.blocks[static_cast<std::size_t>(place.block)];
    if (block.offset >= 0) bases_[s] = arena_.get() + block.offset + place.row * block.pitch + place.byte;
  }
  for (std::size_t v = 0; v < tiles_.size(); ++v) {
    std::byte* base = bases_[static_cast<std::size_t>(image_->program.views[v].storage)];
    if (base) tiles_[v].data = base + image_->offsets[v];
  }
}

Core::~Core() = default;

void Core::reset(void* const* addresses) {
  position = 0;
  loops.clear();
  skips_out_of_bounds = false;
  state_ = EngineState{};
  std::fill(registers_.begin(), registers_.end(), 0);
  const Program& program = image_->program;
  bool moved = false;
  for (std::size_t s = 0; s < bases_.size(); ++s) {
    if (on_chip(program.storages[s])) continue;
    const Block& block = image_->plan.blocks[static_cast<std::size_t>(image_->plan.places[s].block)];
    auto* base = static_cast<std::byte*>(addresses[s]);
    if (!base && block.offset >= 0) base = arena_.get() + block.offset;
    if (!base && block.lifetime.used())
      throw ProgramFault(ProgramFault::Kind::kOther, "tensor " + std::to_string(s) + " in HBM has no address");
    moved |= base != bases_[s];
    bases_[s] = base;
  }
  if (!moved) return;
  for (std::size_t v = 0; v < tiles_.size(); ++v) {
    const auto s = static_cast<std::size_t>(program.views[v].storage);
    if (!on_chip(program.storages[s])) tiles_[v].data = bases_[s] + image_->offsets[v];
  }
}

void Core::poison(int32_t storage) {
  const auto s = static_cast<std::size_t>(storage);
  const Storage& what = image_->program.storages[s];
  const Block& block = image_->plan.blocks[static_cast<std::size_t>(image_->plan.places[s].block)];
  const int64_t bytes = row_bytes(what);
  const bool psum = what.region == Storage::Region::kPsum;
  if (!on_chip(what) || block.pitch == bytes) return fill_poison(bases_[s], bytes * what.partitions, what.type, psum);
  for (int64_t p = 0; p < what.partitions; ++p) fill_poison(bases_[s] + p * block.pitch, bytes, what.type, psum);
}

int64_t Core::integer(const Operand& operand) {
  switch (operand.kind) {
    case Operand::Kind::kNumber:
      return static_cast<int64_t>(operand.number);
    case Operand::Kind::kRegister:
      return reg(operand.index);
    case Operand::Kind::kView: {
      const Tile& t = tile(operand);
      return integer_at(t.type, t.data);
    }
    default:
      throw ProgramFault(ProgramFault::Kind::kOther, "an operand is missing");
  }
}

PerPartition Core::per_partition(const Operand& operand, int64_t partitions) {
  PerPartition result;
  if (operand.kind == Operand::Kind::kNumber) {
    result.value = static_cast<float>(operand.number);
  } else if (operand.kind == Operand::Kind::kRegister) {
    result.value = static_cast<float>(reg(operand.index));
  } else {
    const Tile& t = tile(operand);
    if (t.size[0] == 1 && !t.places) {
      result.value = float_at(t.type, t.data);
      return result;
    }
    if (t.size[0] < partitions)
      throw ProgramFault(ProgramFault::Kind::kMismatch, "an operand has " + std::to_string(t.size[0]) +
                                                            " partitions where " + std::to_string(partitions) +
                                                            " are needed");
    result.same = false;
    for (int64_t p = 0; p < partitions; ++p) {
      const int64_t place = t.places ? t.places[p] : p * t.stride[0];
      result.values[static_cast<std::size_t>(p)] = place < 0 ? 0 : float_at(t.type, t.data + place);
    }
  }
  return result;
}

// Dynamic views.

void Core::resolve(int32_t view, Tile& tile) {
  switch (image_->program.views[static_cast<std::size_t>(view)].dynamic) {
    case View::Dynamic::kScalar:
      return resolve_scalar(view, tile);
    case View::Dynamic::kVector:
      return resolve_vector(view, tile);
    case View::Dynamic::kIndirect:
      return resolve_indirect(view, tile);
    case View::Dynamic::kNone:
      return;
  }
}

namespace {

// Whether a view that starts at byte `begin` of its storage stays inside of it; dimensions from `first` on count.
bool inside(const Tile& t, int first, int64_t begin, int64_t bytes) {
  int64_t low = begin, high = begin;
  for (int d = first; d < t.rank; ++d) {
    if (t.size[d] == 0) return true;
    const int64_t reach = t.stride[d] * (t.size[d] - 1);
    (reach < 0 ? low : high) += reach;
  }
  return low >= 0 && high + static_cast<int64_t>(bytes_of(t.type)) <= bytes;
}

}  // namespace

void Core::resolve_scalar(int32_t number, Tile& tile) {
  const auto v = static_cast<std::size_t>(number);
  const View& view = image_->program.views[v];
  const auto s = static_cast<std::size_t>(view.storage);
  const Storage& storage = image_->program.storages[s];
  Operand index;
  index.kind = view.index >= 0 ? Operand::Kind::kView : Operand::Kind::kRegister;
  index.index = view.index >= 0 ? view.index : view.index_register;
  const int64_t value = integer(index);
  tile.places = nullptr;
  const bool valid = value >= 0 && value < view.limit;
  if (!valid && !skips_out_of_bounds) out_of_bounds(value, view.limit);
  View moved = view;
  if (valid) moved.offset += view.step * value;
  const Block& block = image_->plan.blocks[static_cast<std::size_t>(image_->plan.places[s].block)];
  const int64_t pitch = on_chip(storage) ? block.pitch : row_bytes(storage);
  const Geometry g = geometry(moved, storage, pitch);
  const int64_t last = pitch * (storage.partitions - 1) + row_bytes(storage);
  if (valid && inside(tile, 0, g.offset, last)) {
    tile.data = bases_[s] + g.offset;
    return;
  }
  if (!skips_out_of_bounds)
    throw ProgramFault(ProgramFault::Kind::kOutOfBounds,
                       "index " + std::to_string(value) + " moves a view past the end of its tensor");
  places_[v].assign(static_cast<std::size_t>(tile.size[0]), -1);
  tile.data = bases_[s];
  tile.places = places_[v].data();
}

// The first `count` values of a view of indices, down its columns in groups of partitions.
std::vector<int64_t> Core::indices(int32_t view, int64_t count, int64_t group) {
  Operand operand;
  operand.kind = Operand::Kind::kView;
  operand.index = view;
  const Tile& t = tile(operand);
  if (group * t.free() < count)
    throw ProgramFault(ProgramFault::Kind::kMismatch,
                       std::to_string(group * t.free()) + " indices for " + std::to_string(count) + " elements");
  std::vector<int64_t> values(static_cast<std::size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    int64_t at = (i % group) * t.stride[0], column = i / group;
    for (int d = t.rank - 1; d > 0; --d) {
      at += column % t.size[d] * t.stride[d];
      column /= t.size[d];
    }
    values[static_cast<std::size_t>(i)] = integer_at(t.type, t.data + at);
  }
  return values;
}

void Core::resolve_vector(int32_t number, Tile& tile) {
  const auto v = static_cast<std::size_t>(number);
  const View& view = image_->program.views[v];
  const auto s = static_cast<std::size_t>(view.storage);
  const Storage& storage = image_->program.storages[s];
  const int64_t rows = tile.size[0], bytes = static_cast<int64_t>(bytes_of(tile.type));
  const int64_t partitions = image_->tiles[static_cast<std::size_t>(view.index)].size[0];
  const std::vector<int64_t> values = indices(view.index, rows, std::min(partitions, rows));
  places_[v].resize(static_cast<std::size_t>(rows));
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t value = values[static_cast<std::size_t>(r)];
    int64_t& place = places_[v][static_cast<std::size_t>(r)];
    place = (view.offset + view.step * value) * bytes;
    const bool valid = value >= 0 && value < view.limit;
    if (valid && inside(tile, 1, place, row_bytes(storage) * storage.partitions)) continue;
    if (!skips_out_of_bounds) out_of_bounds(value, view.limit);
    place = -1;
  }
  tile.data = bases_[s];
  tile.places = places_[v].data();
}

void Core::resolve_indirect(int32_t number, Tile& tile) {
  const auto v = static_cast<std::size_t>(number);
  const View& view = image_->program.views[v];
  const auto s = static_cast<std::size_t>(view.storage);
  const Storage& storage = image_->program.storages[s];
  const int64_t rows = tile.size[0], columns = tile.free(), bytes = static_cast<int64_t>(bytes_of(tile.type));
  const std::vector<int64_t> values = indices(view.index, columns, std::max<int64_t>(1, view.group));
  const int64_t first = image_->offsets[v], column = (view.offset * bytes) % row_bytes(storage);
  places_[v].resize(static_cast<std::size_t>(rows * columns));
  for (int64_t c = 0; c < columns; ++c) {
    const int64_t value = values[static_cast<std::size_t>(c)], move = view.step * value * bytes;
    const bool valid = value >= 0 && value < view.limit && column + move + bytes <= row_bytes(storage);
    if (!valid && !skips_out_of_bounds) out_of_bounds(value, view.limit);
    for (int64_t r = 0; r < rows; ++r)
      places_[v][static_cast<std::size_t>(r * columns + c)] = valid ? first + r * tile.stride[0] + move : -1;
  }
  tile.data = bases_[s];
  tile.places = places_[v].data();
}

}  // namespace neuron::engines::isa
