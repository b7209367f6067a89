// The tensor engine: products of stationary and moving tiles into PSUM, and transposes.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <new>

#include "engines/isa/copies.h"
#include "engines/isa/elements.h"
#include "engines/isa/execute.h"
#include "engines/isa/image.h"
#include "engines/isa/sgemm.h"
#include "engines/isa/views.h"

namespace neuron::engines::isa {

using std::int64_t;

namespace {

// Less work than this is done before another thread has woken.
constexpr int64_t kWorkWorthThreads = 1 << 20;
constexpr int64_t kFloat = sizeof(float);

// Memory of a thread that grows to what it has needed.
class Scratch {
 public:
  float* get(int64_t floats) {
    if (floats > size_) {
      const std::size_t bytes = (static_cast<std::size_t>(floats * kFloat) + 63) / 64 * 64;
      data_.reset(static_cast<float*>(std::aligned_alloc(64, bytes)));
      if (!data_) throw std::bad_alloc();
      size_ = floats;
    }
    return data_.get();
  }

 private:
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  std::unique_ptr<float, Free> data_;
  int64_t size_ = 0;
};

struct Workspace {
  Scratch stationary, moving, sums;
};
Workspace& workspace() {
  thread_local Workspace workspace;
  return workspace;
}

[[noreturn]] void mismatch(const std::string& what) { throw ProgramFault(ProgramFault::Kind::kMismatch, what); }

// A tile as a matrix of `depth x columns`.
struct Matrix {
  GemmOperand operand;
  int64_t depth, columns;
};

// Elements of free dimensions from `first` on lie at equal distances; their distance.
bool even(const Tile& t, int first, int64_t& distance) {
  if (t.places) return false;
  int64_t expected = 0;
  distance = static_cast<int64_t>(bytes_of(t.type));
  for (int d = t.rank - 1; d >= first; --d) {
    if (t.size[d] == 1) continue;
    if (expected == 0)
      distance = t.stride[d];
    else if (t.stride[d] != expected)
      return false;
    expected = t.stride[d] * t.size[d];
  }
  return true;
}

// Row after row of a tile, widened.
void widen_tile(const Tile& tile, float* to) {
  Cursor cursor(tile);
  for (int64_t left = tile.elements(); left > 0;) {
    const int64_t run = std::min(cursor.left(), left);
    if (const std::byte* at = cursor.pointer())
      widen_row(tile.type, at, cursor.step(), to, run);
    else
      std::fill_n(to, run, 0.0f);
    to += run;
    left -= run;
    cursor.advance(run);
  }
}

bool as_it_lies(Type type) { return type == Type::kFloat32 || type == Type::kTFloat32 || type == Type::kBFloat16; }

// The contraction runs over partitions, with `double_row` over dimension 1 as well.
Matrix matrix(const Tile& tile, bool double_row, Scratch& scratch) {
  Matrix m;
  m.depth = tile.size[0] * (double_row ? tile.size[1] : 1);
  m.columns = tile.elements() / std::max<int64_t>(1, m.depth);
  int64_t distance = 0;
  if (as_it_lies(tile.type) && !double_row && even(tile, 1, distance)) {
    m.operand = {tile.data, tile.type == Type::kBFloat16 ? Type::kBFloat16 : Type::kFloat32, tile.stride[0], distance};
    return m;
  }
  float* to = scratch.get(tile.elements());
  widen_tile(tile, to);
  m.operand = {reinterpret_cast<const std::byte*>(to), Type::kFloat32, m.columns * kFloat, kFloat};
  return m;
}

void product(const Matrix& stationary, const Matrix& moving, float* to, int64_t leading, bool add) {
  const int64_t rows = stationary.columns, columns = moving.columns, depth = stationary.depth;
  const auto part = [&](int64_t row, int64_t row_end, int64_t column, int64_t column_end) {
    GemmOperand left = stationary.operand, right = moving.operand;
    left.data += row * left.stride;
    right.data += column * right.stride;
    gemm(row_end - row, column_end - column, depth, left, right, to + row * leading + column, leading, add);
  };
  if (rows * columns * depth < kWorkWorthThreads || threads() < 2) return part(0, rows, 0, columns);
  // Whole register tiles for each thread, along the longer side.
  constexpr int64_t kGrain = 32;
  const bool by_columns = columns >= rows;
  const int64_t length = by_columns ? columns : rows;
  split((length + kGrain - 1) / kGrain, kElementsWorthThreads, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kGrain, last = std::min(length, end * kGrain);
    by_columns ? part(0, rows, first, last) : part(first, last, 0, columns);
  });
}

bool holds_poison(Type type, const std::byte* at) {
  if (type == Type::kFloat32) {
    std::uint32_t bits;
    std::memcpy(&bits, at, sizeof bits);
    return bits == kPsumPoison;
  }
  std::uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return bytes_of(type) == 2 && bits == kPsumPoison16;
}

// Sums into a target of any type and layout: what it holds is widened, added to, and rounded once.
void store(const float* sums, const Tile& to, Accumulate mode) {
  constexpr int64_t kChunk = 256;
  float held[kChunk];
  Cursor cursor(to);
  for (int64_t left = to.elements(); left > 0;) {
    const int64_t run = std::min({cursor.left(), left, kChunk});
    if (std::byte* at = cursor.pointer()) {
      const int64_t step = cursor.step();
      if (mode == Accumulate::kOverwrite) {
        narrow_row(to.type, sums, at, step, run);
      } else {
        widen_row(to.type, at, step, held, run);
        for (int64_t i = 0; i < run; ++i)
          held[i] = mode == Accumulate::kByPoison && holds_poison(to.type, at + i * step) ? sums[i] : held[i] + sums[i];
        narrow_row(to.type, held, at, step, run);
      }
    }
    sums += run;
    left -= run;
    cursor.advance(run);
  }
}

void accumulate(const Matrix& stationary, const Matrix& moving, const Tile& to, const Attribute& attribute) {
  if (stationary.depth != moving.depth)
    mismatch("a stationary tile of depth " + std::to_string(stationary.depth) + " and a moving one of " +
             std::to_string(moving.depth));
  if (to.size[0] != stationary.columns || to.free() != moving.columns)
    mismatch("a product of " + std::to_string(stationary.columns) + " x " + std::to_string(moving.columns) +
             " into a target of " + std::to_string(to.size[0]) + " x " + std::to_string(to.free()));
  const auto mode = static_cast<Accumulate>(std::get<int64_t>(attribute));
  int64_t distance = 0;
  if (to.type == Type::kFloat32 && mode != Accumulate::kByPoison && even(to, 1, distance) && distance == kFloat &&
      to.stride[0] % kFloat == 0)
    return product(stationary, moving, reinterpret_cast<float*>(to.data), to.stride[0] / kFloat,
                   mode == Accumulate::kAdd);
  float* sums = workspace().sums.get(to.elements());
  product(stationary, moving, sums, moving.columns, false);
  store(sums, to, mode);
}

// What the four elements of each container stand for.
const std::array<float, 256>& element_values(Type type) {
  static const auto tables = [] {
    std::array<std::array<float, 256>, 3> values;
    for (int i = 0; i < 256; ++i) {
      const auto byte = static_cast<std::byte>(i);
      values[0][static_cast<std::size_t>(i)] = float_at(Type::kFloat8E4M3FN, &byte);
      values[1][static_cast<std::size_t>(i)] = float_at(Type::kFloat8E5M2, &byte);
      constexpr float kFloat4[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
      values[2][static_cast<std::size_t>(i)] = i < 8 ? kFloat4[i] : i < 16 ? -kFloat4[i - 8] : 0;
    }
    return values;
  }();
  return tables[type == Type::kFloat8E4M3FNx4 ? 0 : type == Type::kFloat8E5M2x4 ? 1 : 2];
}

// Quantised elements times their scales. Row 4 p + q of the matrix is element q of the containers of partition p.
// Scales of the eight partitions from p on lie in partition (p / 32) * 32 + (p % 32) / 8.
Matrix dequantised(const Tile& tile, const Tile& scale, Scratch& scratch) {
  const int64_t partitions = tile.size[0], columns = tile.free();
  const auto& values = element_values(tile.type);
  const int bits = tile.type == Type::kFloat4E2M1FNx4 ? 4 : 8;
  const std::uint32_t mask = (1u << bits) - 1;
  float* to = scratch.get(4 * partitions * columns);
  Cursor cursor(tile);
  const auto scales = std::make_unique<float[]>(static_cast<std::size_t>(scale.elements()));
  Tile exponents = scale;
  exponents.type = Type::kUInt8;
  widen_tile(exponents, scales.get());
  const int64_t scale_columns = scale.free();
  if (scale_columns < columns)
    mismatch("scales for " + std::to_string(scale_columns) + " columns of " + std::to_string(columns));
  for (int64_t p = 0; p < partitions; ++p) {
    const int64_t row = p / 32 * 32 + p % 32 / 8;
    if (row >= scale.size[0]) mismatch("scales in " + std::to_string(scale.size[0]) + " partitions");
    for (int64_t c = 0; c < columns; ++c, cursor.advance(1)) {
      const std::byte* at = cursor.pointer();
      const auto container = at ? static_cast<std::uint32_t>(integer_at(tile.type, at)) : 0;
      const auto exponent = static_cast<int>(scales[static_cast<std::size_t>(row * scale_columns + c)]);
      const float factor = exponent == 255 ? std::nanf("") : std::ldexp(1.0f, exponent - 127);
      for (int q = 0; q < 4; ++q) to[(4 * p + q) * columns + c] = values[container >> (q * bits) & mask] * factor;
    }
  }
  return {{reinterpret_cast<const std::byte*>(to), Type::kFloat32, columns * kFloat, kFloat}, 4 * partitions, columns};
}

}  // namespace

namespace {

// The transpose mode of the engine: moving is a permutation, and what it picks from stationary passes bit for bit, NaN
// and infinities too. False when moving is anything else.
bool transpose_by(const Tile& moving, const Tile& stationary, const Tile& to) {
  const int64_t depth = moving.size[0], columns = moving.free();
  if (stationary.type != to.type || stationary.size[0] != depth || to.free() != columns) return false;
  std::vector<float> choice(static_cast<std::size_t>(depth * columns));
  widen_tile(moving, choice.data());
  std::vector<int64_t> chosen(static_cast<std::size_t>(columns), -1);
  for (int64_t row = 0; row < depth; ++row) {
    for (int64_t c = 0; c < columns; ++c) {
      const float value = choice[static_cast<std::size_t>(row * columns + c)];
      if (value == 0) continue;
      auto& place = chosen[static_cast<std::size_t>(c)];
      if (value != 1 || place >= 0) return false;
      place = row;
    }
  }
  const auto bytes = bytes_of(to.type);
  std::vector<const std::byte*> elements;
  Cursor from(stationary);
  for (int64_t i = 0, n = stationary.elements(); i < n; ++i, from.advance(1)) elements.push_back(from.pointer());
  Cursor target(to);
  const int64_t width = stationary.free();
  for (int64_t m = 0; m < width; ++m) {
    for (int64_t c = 0; c < columns; ++c, target.advance(1)) {
      const int64_t row = chosen[static_cast<std::size_t>(c)];
      const std::byte* element = row < 0 ? nullptr : elements[static_cast<std::size_t>(row * width + m)];
      if (element)
        std::memcpy(target.pointer(), element, bytes);
      else
        std::memset(target.pointer(), 0, bytes);
    }
  }
  return true;
}

bool is_set(const Instruction& instruction, std::size_t attribute) {
  if (attribute >= instruction.attributes.size()) return false;
  const auto* flag = std::get_if<int64_t>(&instruction.attributes[attribute]);
  return flag && *flag;
}

}  // namespace

void execute_matmul(Core& core, const Instruction& instruction) {
  const bool double_row = is_set(instruction, 1);
  if (is_set(instruction, 2) && transpose_by(core.tile(instruction.operands[2]), core.tile(instruction.operands[1]),
                                             core.tile(instruction.operands[0])))
    return;
  const Matrix stationary = matrix(core.tile(instruction.operands[1]), double_row, workspace().stationary);
  const Matrix moving = matrix(core.tile(instruction.operands[2]), double_row, workspace().moving);
  accumulate(stationary, moving, core.tile(instruction.operands[0]), instruction.attributes[0]);
}

void execute_matmul_mx(Core& core, const Instruction& instruction) {
  const auto tile = [&](std::size_t i) -> const Tile& { return core.tile(instruction.operands[i]); };
  const Matrix stationary = dequantised(tile(1), tile(3), workspace().stationary);
  const Matrix moving = dequantised(tile(2), tile(4), workspace().moving);
  accumulate(stationary, moving, tile(0), instruction.attributes[0]);
}

// Partitions and free elements change places; free dimensions count as one.
void execute_transpose(Core& core, const Instruction& instruction) {
  const Tile& to = core.tile(instruction.operands[0]);
  const Tile& from = core.tile(instruction.operands[1]);
  if (to.size[0] != from.free() || to.free() != from.size[0])
    mismatch("a transpose of " + std::to_string(from.size[0]) + " x " + std::to_string(from.free()) + " into " +
             std::to_string(to.size[0]) + " x " + std::to_string(to.free()));
  int64_t to_distance = 0, from_distance = 0;
  Tile flat = from;
  std::vector<std::byte> kept;
  if (!even(from, 1, from_distance) || overlaps_differently(to, from) || to.data == from.data) {
    // A contiguous copy first.
    const auto bytes = static_cast<int64_t>(bytes_of(from.type));
    kept.resize(static_cast<std::size_t>(from.elements() * bytes));
    flat.data = kept.data();
    flat.places = nullptr;
    flat.indirect = false;
    for (int64_t d = from.rank - 1, stride = bytes; d >= 0; stride *= from.size[d], --d) flat.stride[d] = stride;
    copy_tile(flat, from);
    from_distance = bytes;
  }
  Tile source;
  source.data = flat.data;
  source.type = from.type;
  source.rank = 2;
  source.size[0] = from.free();
  source.size[1] = from.size[0];
  source.stride[0] = from_distance;
  source.stride[1] = flat.stride[0];
  if (!even(to, 1, to_distance)) return copy_tile(to, source);
  Tile target = source;
  target.data = to.data;
  target.type = to.type;
  target.stride[0] = to.stride[0];
  target.stride[1] = to_distance;
  copy_tile(target, source);
}

}  // namespace neuron::engines::isa
