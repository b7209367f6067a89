#pragma once
// How instructions walk over their operands: in blocks that stay in the first cache, widened to fp32 where they are
// anything else, whatever the strides. A row is a partition; elements of a row are numbered in row-major order, so
// operands of equal element counts need not have equal shapes.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engines/isa/attributes.h"
#include "engines/isa/core.h"
#include "engines/isa/row_kernels.h"
#include "engines/isa/threads.h"

namespace neuron::engines::isa {

// Elements of a block: some rows, or a part of one.
constexpr std::int64_t kBlock = 2048;

// One rectangle of a tile: `rows` rows from `row`, `n` elements of each from `first`; at most kBlock elements.
struct Rectangle {
  std::int64_t row, rows, first, n;
};

// Memory of the calling thread for one block: values[i] holds its elements as fp32 or integers of 32 bits.
struct Scratch {
  static constexpr int kSlots = 6;
  alignas(64) float values[kSlots][kBlock];
  alignas(64) std::int32_t integers[kSlots][kBlock];
  alignas(64) std::byte raw[2][kBlock * 8];
  alignas(64) std::uint8_t mask[kBlock];
};
Scratch& scratch();

// A tile with dimensions merged where the elements of a row follow each other at one distance.
class Walk {
 public:
  explicit Walk(const Tile& tile);

  Type type() const { return type_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t free() const { return free_; }  // elements per row
  bool same_places(const Walk& other) const;

  // The block's bytes, as they are: in place where its rows are contiguous, else brought together in `to`. The stride
  // is in elements.
  Rows<const std::byte> bytes(const Rectangle& block, std::byte* to) const;
  void put_bytes(const Rectangle& block, const std::byte* dense) const;

  // The block as fp32, or as integers of 32 bits: in place where it is that, else in `to`.
  Rows<const float> floats(const Rectangle& block, float* to) const;
  Rows<const std::int32_t> integers(const Rectangle& block, std::int32_t* to) const;
  // In `to` unless rows follow each other without gaps.
  const float* dense_floats(const Rectangle& block, float* to) const;

  // Where to compute a block of results: the tile itself if it is contiguous fp32, else `to`; and how they get into the
  // tile, which does nothing for what is there.
  Rows<float> target(const Rectangle& block, float* to) const;
  void put(const Rectangle& block, Rows<const float> values) const;
  Rows<std::int32_t> integer_target(const Rectangle& block, std::int32_t* to) const;
  void put_integers(const Rectangle& block, Rows<const std::int32_t> values) const;

 private:
  friend bool overlap(const Walk& a, const Walk& b);
  bool contiguous() const { return places_ == nullptr && step_ == width_ && rank_ <= 1; }
  bool in_place(const Rectangle& block) const;
  std::byte* start(const Rectangle& block) const { return data_ + block.row * row_stride_ + block.first * width_; }
  template <class T, bool kIn>
  void move(const Rectangle& block, std::byte* dense) const;
  template <bool kIn>
  void move_any(const Rectangle& block, std::byte* dense) const;

  std::byte* data_;
  Type type_;
  bool indirect_;
  int rank_;  // of what is left of the free dimensions
  std::int64_t width_, rows_, row_stride_, free_, step_;
  std::int64_t size_[kMaxRank], stride_[kMaxRank];
  const std::int64_t* places_;
};

// Whether they share bytes; exact for rows of equal pitch, else on the safe side.
bool overlap(const Walk& a, const Walk& b);

// An input that is not changed by writing the output: itself, unless it overlaps `out` in another order.
class Input {
 public:
  Input(const Tile& in, const Walk& out);
  const Walk* operator->() const { return &walk_; }
  const Walk& walk() const { return walk_; }

 private:
  Walk walk_;
  std::vector<std::byte> copy_;
};

// Throws unless both have as many rows and elements per row.
void require_equal_sizes(const Walk& out, const Walk& in);

// A number or a column; 0 where there is no operand.
inline PerPartition column_operand(Core& core, const Operand& operand, std::int64_t rows) {
  return core.has(operand) ? core.per_partition(operand, rows) : PerPartition{};
}
inline Rows<const float> column(const PerPartition& values, std::int64_t row) {
  return values.same ? Rows<const float>{&values.value, 0} : Rows<const float>{values.values.data() + row, 1};
}

// mask[i] = the block's elements that are not 0, without gaps between rows; `raw` has room for the block's bytes.
void truth(const Walk& walk, const Rectangle& block, std::uint8_t* mask, std::byte* raw);

// (tile op column), or (column op tile) where reversed.
inline void apply(Alu op, bool reversed, Rows<float> out, Rows<const float> tile, Rows<const float> column,
                  std::int64_t rows, std::int64_t n) {
  const auto& kernels = row_kernels().binary[index_of(op)];
  if (reversed) {
    kernels[kColumnTile](out, column, tile, rows, n);
  } else {
    kernels[kTileColumn](out, tile, column, rows, n);
  }
}
inline Rows<const float> reading(Rows<float> rows) { return {rows.data, rows.stride}; }

// A column of fp32 accumulators or results, written as the tile's type.
void put_column(Core& core, const Operand& operand, const float* values, std::int64_t rows, bool negate = false);

// body(block) for all blocks of `n` elements in rows [begin, end).
template <class Body>
void for_blocks(std::int64_t begin, std::int64_t end, std::int64_t n, const Body& body) {
  if (n <= 0) return;
  if (n > kBlock) {
    for (std::int64_t row = begin; row < end; ++row)
      for (std::int64_t first = 0; first < n; first += kBlock)
        body(Rectangle{row, 1, first, n - first < kBlock ? n - first : kBlock});
    return;
  }
  const std::int64_t rows = kBlock / n;
  for (std::int64_t row = begin; row < end; row += rows)
    body(Rectangle{row, end - row < rows ? end - row : rows, 0, n});
}

// The same on threads where it is worth it: body(block, scratch).
template <class Body>
void for_all_blocks(std::int64_t rows, std::int64_t n, const Body& body) {
  split(rows, rows * n, [&](std::int64_t begin, std::int64_t end) {
    Scratch& s = scratch();
    for_blocks(begin, end, n, [&](const Rectangle& block) { body(block, s); });
  });
}

}  // namespace neuron::engines::isa
