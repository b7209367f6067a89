#pragma once
// What the forward and the backward of attention by blocks share: the walk over tiles.
#include <algorithm>

#include "engines/flex_attention.h"

namespace neuron::engines::flex {

// Tiles of scores, and what goes with them, stay in a core's L2.
constexpr std::int64_t kQueryTile = 128, kKeyTile = 128;

// The tiles of queries: mask blocks, cut where they are large.
class QueryTiles {
 public:
  explicit QueryTiles(const FlexAttention& a)
      : queries_(a.queries),
        block_(std::min(a.query_block, std::max<std::int64_t>(a.queries, 1))),
        per_block_((block_ + kQueryTile - 1) / kQueryTile) {}

  std::int64_t count() const { return (queries_ + block_ - 1) / block_ * per_block_; }
  struct Tile {
    std::int64_t block, first, rows;  // rows may be 0
  };
  Tile tile(std::int64_t i) const {
    const std::int64_t block = i / per_block_, first = block * block_ + i % per_block_ * kQueryTile;
    return {block, first,
            std::max<std::int64_t>(0, std::min({first + kQueryTile, (block + 1) * block_, queries_}) - first)};
  }

 private:
  std::int64_t queries_, block_, per_block_;
};

// Calls visit(first key, keys) for the tiles of a list. Neighbours in the list share tiles.
template <class Visit>
void for_tiles_of(const FlexAttention& a, const BlockLists& lists, std::int64_t b, std::int64_t h, std::int64_t block,
                  std::int64_t most, const Visit& visit) {
  if (!lists.counts || block >= lists.rows) return;
  b %= lists.batches;
  h %= lists.heads;
  const auto* s = lists.count_strides;
  const auto* t = lists.index_strides;
  const std::int64_t count = std::min<std::int64_t>(lists.counts[b * s[0] + h * s[1] + block * s[2]], lists.columns);
  const auto* indices = lists.indices + b * t[0] + h * t[1] + block * t[2];
  std::int64_t first = 0, end = 0;
  const auto flush = [&] {
    for (; first < end; first += most) visit(first, std::min(most, end - first));
  };
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t index = indices[i * t[3]];
    if (index < 0 || index > (a.keys - 1) / a.key_block) continue;
    const std::int64_t begin = index * a.key_block;
    if (begin != end) {
      flush();
      first = begin;
    }
    end = std::min(begin + a.key_block, a.keys);
  }
  flush();
}

// Calls visit(first key, keys, whether the mask has a say) for all tiles that a block of queries looks at.
template <class Visit>
void for_key_tiles(const FlexAttention& a, std::int64_t b, std::int64_t h, std::int64_t block, std::int64_t most,
                   const Visit& visit) {
  for_tiles_of(a, a.full, b, h, block, most, [&](std::int64_t k, std::int64_t n) { visit(k, n, false); });
  for_tiles_of(a, a.partial, b, h, block, most, [&](std::int64_t k, std::int64_t n) { visit(k, n, true); });
}

// Where a tile lies.
struct TilePlace {
  std::int64_t batch, head, query, key, rows, columns, width;
};

// A thread's own arguments of tile code.
class TileCall {
 public:
  explicit TileCall(const TileCode& code) : function_(code.function), operands_(3), ints_(7) {
    operands_.insert(operands_.end(), code.captured.begin(), code.captured.end());
    ints_.insert(ints_.end(), code.ints.begin(), code.ints.end());
  }
  explicit operator bool() const { return function_ != nullptr; }

  void operator()(const TilePlace& at, const float* scores, const float* gradients, float* result) {
    operands_[0] = reinterpret_cast<char*>(const_cast<float*>(scores));
    operands_[1] = reinterpret_cast<char*>(const_cast<float*>(gradients));
    operands_[2] = reinterpret_cast<char*>(result);
    const std::int64_t numbers[] = {at.batch, at.head, at.query, at.key, at.rows, at.columns, at.width};
    std::copy(std::begin(numbers), std::end(numbers), ints_.begin());
    function_(operands_.data(), ints_.data(), nullptr, 0, at.rows);
  }

 private:
  TileCode::Function function_;
  std::vector<char*> operands_;
  std::vector<std::int64_t> ints_;
};

// Takes pieces of one block of floats, each aligned to cache lines. Made with null it only counts.
class Pieces {
 public:
  explicit Pieces(float* base) : base_(base) {}
  float* take(std::int64_t floats) {
    float* piece = base_ ? base_ + used_ : nullptr;
    used_ += (floats + 15) / 16 * 16;
    return piece;
  }
  std::size_t bytes() const { return static_cast<std::size_t>(used_) * sizeof(float); }

 private:
  float* base_;
  std::int64_t used_ = 0;
};

// A matrix of keys or values as right operand of a product along the keys.
struct RightRows {
  const float* data;
  std::int64_t depth_stride, panel_stride;
};

// Taken where it lies if it can be; `room` has keys * padded(columns) floats.
RightRows right_rows(const Strided& m, std::int64_t keys, std::int64_t columns, float* room);

// How many threads `items` are worth that do `work` multiplications together, at most.
int threads_for(std::int64_t items, std::int64_t work);
// Calls work(context) on so many threads at once.
void on_threads(int threads, void (*work)(void*), void* context);

}  // namespace neuron::engines::flex
