// The gradient makes the scores again, tile by tile, with the logsumexp that the forward has kept. One pass: a thread
// goes through the queries of a key head and adds up the gradients of all its keys; where there are fewer heads than
// threads, several threads share one and their sums are added in the end.
#include <atomic>
#include <cmath>
#include <memory>
#include <numbers>

#include "engines/arena.h"
#include "engines/flex_attention.h"
#include "engines/flex_blocks.h"

namespace neuron::engines {

namespace {

using flex::kKeyTile;
using flex::kQueryTile;
using flex::TilePlace;
using std::int64_t;

// Sums of the gradients of one head's keys and values, each row padded to whole panels.
struct KeySums {
  float *keys, *values;
};

class Worker {
 public:
  explicit Worker(const FlexAttentionGradient& g)
      : g_(g),
        a_(g.attention),
        change_partial_(a_.change_partial),
        change_full_(a_.change_full),
        pull_partial_(g.pull_partial),
        pull_full_(g.pull_full),
        width_(padded(a_.depth)),
        value_width_(padded(a_.value_depth)) {
    thread_local Arena memory;
    flex::Pieces count(nullptr);
    take(count);
    flex::Pieces pieces(reinterpret_cast<float*>(memory.reserve(count.bytes())));
    take(pieces);
  }

  // Writes the gradient of the queries, adds to those of the keys.
  void run(int64_t b, int64_t h, const flex::QueryTiles::Tile& tile, const KeySums& sums) {
    rows_ = tile.rows;
    widen_tile(a_.query.matrix(b, h, tile.first), rows_, a_.depth, a_.scale, query_, width_);
    prepare_rows(b, h, tile.first);
    std::fill_n(grad_query_, rows_ * width_, 0.0f);
    flex::for_key_tiles(a_, b, h, tile.block, kKeyTile, [&](int64_t key, int64_t keys, bool masked) {
      keys_tile({b, h, tile.first, key, rows_, keys, kKeyTile}, masked, sums);
    });
    std::fill_n(shifts_, rows_, a_.scale);
    if (g_.grad_query.data)
      narrow_tile(grad_query_, width_, shifts_, g_.grad_query.matrix(b, h, tile.first), rows_, a_.depth);
  }

 private:
  void take(flex::Pieces& pieces) {
    query_ = pieces.take(kQueryTile * width_);
    grad_out_ = pieces.take(kQueryTile * value_width_);
    grad_query_ = pieces.take(kQueryTile * width_);
    scores_ = pieces.take(kQueryTile * kKeyTile);
    changed_ = pieces.take(kQueryTile * kKeyTile);
    gradients_ = pieces.take(kQueryTile * kKeyTile);
    packed_ = pieces.take(kKeyTile * std::max(a_.depth, a_.value_depth));
    lines_ = pieces.take(kPanel * std::max(a_.depth, a_.value_depth));
    keys_ = pieces.take(kKeyTile * width_);
    logsumexp_ = pieces.take(kQueryTile);
    shifts_ = pieces.take(kQueryTile);
  }

  // The gradient of the output, and what the softmax's gradient subtracts in each row.
  void prepare_rows(int64_t b, int64_t h, int64_t first) {
    constexpr float kLn2 = std::numbers::ln2_v<float>;
    const auto value = [&](const Heads& heads, int64_t i) {
      return *static_cast<const float*>(heads.matrix(b, h, first + i).data);
    };
    if (g_.grad_out.data) {
      float* out = scores_;  // not in use yet; in pieces, since rows may be longer than those of scores
      const int64_t rows_at_once = std::max<int64_t>(1, kQueryTile * kKeyTile / value_width_);
      widen_tile(g_.grad_out.matrix(b, h, first), rows_, a_.value_depth, 1, grad_out_, value_width_);
      for (int64_t i = 0; i < rows_; i += rows_at_once) {
        const int64_t count = std::min(rows_at_once, rows_ - i);
        widen_tile(a_.out.matrix(b, h, first + i), count, a_.value_depth, 1, out, value_width_);
        dot_rows(out, grad_out_ + i * value_width_, value_width_, count, a_.value_depth, shifts_ + i);
      }
    } else {
      std::fill_n(grad_out_, rows_ * value_width_, 0.0f);
      std::fill_n(shifts_, rows_, 0.0f);
    }
    for (int64_t i = 0; i < rows_; ++i) {
      logsumexp_[i] = value(a_.logsumexp, i) * kLn2;
      if (g_.grad_logsumexp.data) shifts_[i] -= value(g_.grad_logsumexp, i) / kLn2;
    }
  }

  void keys_tile(const TilePlace& at, bool masked, const KeySums& sums) {
    const int64_t kv_head = at.head / (a_.heads / a_.kv_heads);
    const Strided key = a_.key.matrix(at.batch, kv_head, at.key);
    pack_transposed(key, at.columns, a_.depth, packed_, lines_);
    multiply_tile({query_, width_, 1, packed_, kPanel, a_.depth * kPanel, scores_, at.width, at.rows, at.columns,
                   a_.depth, false});
    auto& change = masked ? change_partial_ : change_full_;
    auto& pull = masked ? pull_partial_ : pull_full_;
    if (change) change(at, scores_, nullptr, changed_);
    float* probabilities = change ? changed_ : scores_;
    if (!change && pull) std::copy_n(scores_, at.rows * at.width, probabilities = changed_);
    probabilities_tile(probabilities, at.width, at.rows, at.columns, logsumexp_);

    if (g_.grad_out.data)
      multiply_tile({probabilities, 1, at.width, grad_out_, value_width_, kPanel, sums.values + at.key * value_width_,
                     value_width_, at.columns, a_.value_depth, at.rows, true});
    pack_transposed(a_.value.matrix(at.batch, kv_head, at.key), at.columns, a_.value_depth, packed_, lines_);
    multiply_tile({grad_out_, value_width_, 1, packed_, kPanel, a_.value_depth * kPanel, gradients_, at.width, at.rows,
                   at.columns, a_.value_depth, false});
    softmax_gradient_tile(probabilities, gradients_, at.width, at.rows, at.columns, shifts_);
    const float* gradients = gradients_;
    if (pull) {
      pull(at, scores_, gradients_, changed_);  // the probabilities have had their day
      gradients = changed_;
    }
    multiply_tile({gradients, 1, at.width, query_, width_, kPanel, sums.keys + at.key * width_, width_, at.columns,
                   a_.depth, at.rows, true});
    const auto keys = flex::right_rows(key, at.columns, a_.depth, keys_);
    multiply_tile({gradients, at.width, 1, keys.data, keys.depth_stride, keys.panel_stride, grad_query_, width_,
                   at.rows, a_.depth, at.columns, true});
  }

  const FlexAttentionGradient& g_;
  const FlexAttention& a_;
  flex::TileCall change_partial_, change_full_, pull_partial_, pull_full_;
  const int64_t width_, value_width_;
  int64_t rows_ = 0;
  float *query_, *grad_out_, *grad_query_, *scores_, *changed_, *gradients_, *packed_, *lines_, *keys_, *logsumexp_,
      *shifts_;
};

// All key heads, each in so many shares of its queries.
class Backward {
 public:
  explicit Backward(const FlexAttentionGradient& g)
      : g_(g),
        a_(g.attention),
        tiles_(a_),
        groups_(a_.batch * a_.kv_heads),
        floats_(a_.keys * (padded(a_.depth) + padded(a_.value_depth))) {
    const int64_t work = a_.batch * a_.heads * a_.queries * a_.keys * (a_.depth + a_.value_depth);
    const int threads = flex::threads_for(groups_ * tiles_.count(), work);
    shares_ = std::clamp<int64_t>((threads + groups_ - 1) / std::max<int64_t>(groups_, 1), 1,
                                  std::max<int64_t>(tiles_.count(), 1));
    threads_ = threads;
    if (shares_ > 1)
      all_ = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(groups_ * shares_ * floats_));
  }

  void run() {
    flex::on_threads(threads_, [](void* self) { static_cast<Backward*>(self)->work(); }, this);
    if (shares_ == 1) return;
    next_ = 0;
    flex::on_threads(threads_, [](void* self) { static_cast<Backward*>(self)->add_shares(); }, this);
  }

 private:
  void work() {
    Worker worker(g_);
    std::unique_ptr<float[]> own;
    if (shares_ == 1) own = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(floats_));
    for (int64_t i; (i = next_.fetch_add(1)) < groups_ * shares_;) {
      float* memory = shares_ == 1 ? own.get() : all_.get() + i * floats_;
      std::fill_n(memory, floats_, 0.0f);
      const int64_t group = i / shares_, batch = group / a_.kv_heads, kv_head = group % a_.kv_heads;
      const int64_t heads = a_.heads / a_.kv_heads;
      for (int64_t head = kv_head * heads; head < (kv_head + 1) * heads; ++head) {
        for (int64_t t = i % shares_; t < tiles_.count(); t += shares_) {
          const auto tile = tiles_.tile(t);
          if (tile.rows) worker.run(batch, head, tile, sums(memory));
        }
      }
      if (shares_ == 1) write(group, sums(memory));
    }
  }

  void add_shares() {
    for (int64_t group; (group = next_.fetch_add(1)) < groups_;) {
      float* first = all_.get() + group * shares_ * floats_;
      for (int64_t share = 1; share < shares_; ++share)
        for (int64_t j = 0; j < floats_; ++j) first[j] += first[share * floats_ + j];
      write(group, sums(first));
    }
  }

  KeySums sums(float* memory) const { return {memory, memory + a_.keys * padded(a_.depth)}; }

  void write(int64_t group, const KeySums& sums) const {
    const int64_t b = group / a_.kv_heads, h = group % a_.kv_heads;
    float ones[kKeyTile];
    std::fill_n(ones, kKeyTile, 1.0f);
    for (int64_t key = 0; key < a_.keys; key += kKeyTile) {
      const int64_t count = std::min(kKeyTile, a_.keys - key), width = padded(a_.depth),
                    value_width = padded(a_.value_depth);
      if (g_.grad_key.data)
        narrow_tile(sums.keys + key * width, width, ones, g_.grad_key.matrix(b, h, key), count, a_.depth);
      if (g_.grad_value.data)
        narrow_tile(sums.values + key * value_width, value_width, ones, g_.grad_value.matrix(b, h, key), count,
                    a_.value_depth);
    }
  }

  const FlexAttentionGradient& g_;
  const FlexAttention& a_;
  const flex::QueryTiles tiles_;
  const int64_t groups_, floats_;
  int64_t shares_ = 1;
  int threads_ = 1;
  std::unique_ptr<float[]> all_;
  std::atomic<int64_t> next_{0};
};

}  // namespace

void flex_attention_backward(const FlexAttentionGradient& gradient) { Backward(gradient).run(); }

}  // namespace neuron::engines
