#include "engines/flex_attention.h"

#include <atomic>
#include <cmath>
#include <limits>
#include <numbers>

#include "engines/arena.h"
#include "engines/flex_blocks.h"
#include "engines/row_product.h"
#include "engines/tensor_engine.h"

namespace neuron::engines {

using std::int64_t;

Strided Heads::matrix(int64_t b, int64_t h, int64_t first_row) const {
  const int64_t offset = b * batch + h * head + first_row * row;
  return {static_cast<const std::byte*>(data) + offset * static_cast<int64_t>(bytes_of(format)), format, row, column};
}

namespace flex {

RightRows right_rows(const Strided& m, int64_t keys, int64_t columns, float* room) {
  if (m.format == Format::kFloat32 && m.column == 1 && columns % kPanel == 0)
    return {static_cast<const float*>(m.data), m.row, kPanel};
  widen_tile(m, keys, columns, 1, room, padded(columns));
  return {room, padded(columns), kPanel};
}

int threads_for(int64_t items, int64_t work) {
  constexpr int64_t kWorkWorthThreads = 1 << 17;  // waking others costs as much
  if (work < kWorkWorthThreads) return 1;
  return static_cast<int>(std::clamp<int64_t>(items, 1, tensor_engine_host().threads()));
}

void on_threads(int threads, void (*work)(void*), void* context) {
  if (threads == 1) return work(context);
  struct Call {
    void (*work)(void*);
    void* context;
  } call{work, context};
  tensor_engine_host().parallel_for(
      threads, 1, threads,
      [](void* c, int64_t begin, int64_t end) {
        const auto& call = *static_cast<Call*>(c);
        for (int64_t i = begin; i < end; ++i) call.work(call.context);
      },
      &call);
}

}  // namespace flex

namespace {

using flex::kKeyTile;
using flex::kQueryTile;
using flex::TilePlace;

// Of a few queries: what costs is to read keys and values, once.
constexpr int64_t kFewQueriesKeyTile = 1024;

bool is_few(const FlexAttention& a, int64_t rows) {
  return rows <= kMaxProductRows && a.key.column == 1 && a.value.column == 1;
}

// What one thread works with.
class Worker {
 public:
  explicit Worker(const FlexAttention& a) : a_(a), partial_(a.change_partial), full_(a.change_full) {
    thread_local Arena memory;
    flex::Pieces count(nullptr);
    take(count);
    flex::Pieces pieces(reinterpret_cast<float*>(memory.reserve(count.bytes())));
    take(pieces);
  }

  void run(int64_t b, int64_t h, const flex::QueryTiles::Tile& tile) {
    rows_ = tile.rows;
    const int64_t kv_head = h / (a_.heads / a_.kv_heads);
    widen_tile(a_.query.matrix(b, h, tile.first), rows_, a_.depth, a_.scale, query_, a_.depth);
    std::fill_n(maxima_, rows_, -std::numeric_limits<float>::infinity());
    std::fill_n(sums_, rows_, 0.0f);
    std::fill_n(out_, rows_ * padded(a_.value_depth), 0.0f);
    const bool few = is_few(a_, rows_);
    flex::for_key_tiles(a_, b, h, tile.block, few ? kFewQueriesKeyTile : kKeyTile,
                        [&](int64_t key, int64_t keys, bool masked) {
                          const TilePlace at{b, h, tile.first, key, rows_, keys, few ? keys : kKeyTile};
                          few ? few_queries(at, kv_head, masked) : many_queries(at, kv_head, masked);
                        });
    finish(b, h, tile.first);
  }

 private:
  void take(flex::Pieces& pieces) {
    const int64_t value_width = padded(a_.value_depth);
    query_ = pieces.take(kQueryTile * a_.depth);
    scores_ = pieces.take(kQueryTile * kKeyTile);
    changed_ = pieces.take(kQueryTile * kKeyTile);
    keys_ = pieces.take(kKeyTile * a_.depth);
    lines_ = pieces.take(kPanel * a_.depth);
    values_ = pieces.take(kKeyTile * value_width);
    out_ = pieces.take(kQueryTile * value_width);
    products_ = pieces.take(kMaxProductRows * a_.value_depth);
    maxima_ = pieces.take(kQueryTile);
    sums_ = pieces.take(kQueryTile);
  }

  // Scores to exponentials; where they stand.
  float* exponentials(const TilePlace& at, bool masked) {
    float* scores = scores_;
    if (auto& change = masked ? partial_ : full_) {
      change(at, scores_, nullptr, changed_);
      scores = changed_;
    }
    softmax_tile({scores, at.width, at.rows, at.columns, maxima_, sums_, out_, padded(a_.value_depth)});
    return scores;
  }

  void many_queries(const TilePlace& at, int64_t kv_head, bool masked) {
    pack_transposed(a_.key.matrix(at.batch, kv_head, at.key), at.columns, a_.depth, keys_, lines_);
    multiply_tile({query_, a_.depth, 1, keys_, kPanel, a_.depth * kPanel, scores_, at.width, at.rows, at.columns,
                   a_.depth, false});
    const float* exponents = exponentials(at, masked);
    const auto values =
        flex::right_rows(a_.value.matrix(at.batch, kv_head, at.key), at.columns, a_.value_depth, values_);
    multiply_tile({exponents, at.width, 1, values.data, values.depth_stride, values.panel_stride, out_,
                   padded(a_.value_depth), at.rows, a_.value_depth, at.columns, true});
  }

  void few_queries(const TilePlace& at, int64_t kv_head, bool masked) {
    const Strided keys = a_.key.matrix(at.batch, kv_head, at.key);
    row_product({query_, at.rows, a_.depth, keys.data, keys.format, 1, keys.row, at.columns, scores_});
    const float* exponents = exponentials(at, masked);
    const Strided values = a_.value.matrix(at.batch, kv_head, at.key);
    row_product({exponents, at.rows, at.columns, values.data, values.format, values.row, 1, a_.value_depth, products_});
    const int64_t width = padded(a_.value_depth);
    for (int64_t i = 0; i < at.rows; ++i)
      for (int64_t j = 0; j < a_.value_depth; ++j) out_[i * width + j] += products_[i * a_.value_depth + j];
  }

  void finish(int64_t b, int64_t h, int64_t first) {
    constexpr float kLog2E = std::numbers::log2e_v<float>;
    for (int64_t i = 0; i < rows_; ++i) {
      if (a_.logsumexp.data) set(a_.logsumexp, b, h, first + i, (maxima_[i] + std::log(sums_[i])) * kLog2E);
      if (a_.maxima.data) set(a_.maxima, b, h, first + i, maxima_[i] * kLog2E);
      sums_[i] = sums_[i] == 0 ? 0 : 1 / sums_[i];  // nothing but masked scores gives zero
    }
    if (a_.out.data)
      narrow_tile(out_, padded(a_.value_depth), sums_, a_.out.matrix(b, h, first), rows_, a_.value_depth);
  }

  static void set(const Heads& heads, int64_t b, int64_t h, int64_t row, float value) {
    *static_cast<float*>(const_cast<void*>(heads.matrix(b, h, row).data)) = value;
  }

  const FlexAttention& a_;
  flex::TileCall partial_, full_;
  int64_t rows_ = 0;
  float *query_, *scores_, *changed_, *keys_, *lines_, *values_, *out_, *products_, *maxima_, *sums_;
};

}  // namespace

void flex_attention(const FlexAttention& a) {
  const flex::QueryTiles tiles(a);
  struct Work {
    const FlexAttention& attention;
    const flex::QueryTiles& tiles;
    int64_t items;
    std::atomic<int64_t> next{0};
  } work{a, tiles, a.batch * a.heads * tiles.count()};
  if (!work.items) return;
  const int64_t products = a.batch * a.heads * a.queries * a.keys * (a.depth + a.value_depth);
  flex::on_threads(
      flex::threads_for(work.items, products),
      [](void* context) {
        auto& work = *static_cast<Work*>(context);
        Worker worker(work.attention);
        const int64_t count = work.tiles.count(), heads = work.attention.heads;
        for (int64_t i; (i = work.next.fetch_add(1, std::memory_order_relaxed)) < work.items;) {
          // Under a causal mask the last queries have the most to do: they come first, and threads end together.
          const auto tile = work.tiles.tile(count - 1 - i % count);
          if (tile.rows) worker.run(i / count / heads, i / count % heads, tile);
        }
      },
      &work);
}

}  // namespace neuron::engines
