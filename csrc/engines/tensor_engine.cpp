#include "engines/tensor_engine.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>

#include "engines/isa/sgemm.h"
#include "engines/isa/threads.h"
#include "engines/row_product.h"

namespace neuron::engines {

namespace {

using std::int64_t;

// Tiles of the output and steps along the depth: three fp32 panels of this size fit a core's share of L2 and L3, and
// widening an element costs little beside the 2 x 256 operations that it then takes part in.
constexpr int64_t kTile = 256, kDepthStep = 512;
// Below this a GEMM library loses more at its edges than another thread gives.
constexpr int64_t kSmallestTile = 32;
// Products of less work than this run on the calling thread: waking others costs as much.
constexpr int64_t kWorkWorthThreads = 1 << 17;

TensorEngineHost g_host{&isa::blocked_sgemm, &isa::pool_parallel_for, &isa::pool_threads};

template <class Body>
void parallel(int64_t count, const Body& body) {
  const auto call = [](void* context, int64_t begin, int64_t end) { (*static_cast<const Body*>(context))(begin, end); };
  g_host.parallel_for(count, 1, g_host.threads(), call, const_cast<Body*>(&body));
}

// Grows to the largest panel that its thread has needed.
class Scratch {
 public:
  float* get(int64_t floats) {
    if (floats > size_) {
      constexpr std::size_t kLine = 64;
      const std::size_t bytes = (static_cast<std::size_t>(floats) * sizeof(float) + kLine - 1) / kLine * kLine;
      data_.reset(static_cast<float*>(std::aligned_alloc(kLine, bytes)));
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

struct ThreadScratch {
  Scratch left, right, sums, row;
};
ThreadScratch& scratch() {
  thread_local ThreadScratch scratch;
  return scratch;
}

const void* at(const Matrices& m, int64_t batch, int64_t row, int64_t column) {
  const int64_t offset = batch * m.batch_stride + row * m.row_stride + column * m.column_stride;
  return static_cast<const std::byte*>(m.data) + offset * static_cast<int64_t>(bytes_of(m.format));
}

// A block of an operand as the GEMM takes it.
struct Panel {
  const float* data;
  int64_t leading;
  bool transposed;
};

// Widened along the operand's own rows or columns, whichever are contiguous. fp32 is taken where it lies.
Panel panel(const Matrices& m, int64_t batch, int64_t row, int64_t column, int64_t rows, int64_t columns,
            Scratch& scratch) {
  const bool by_columns = m.row_stride == 1 && m.column_stride != 1;
  const int64_t lines = by_columns ? columns : rows, length = by_columns ? rows : columns;
  const int64_t apart = by_columns ? m.column_stride : m.row_stride;
  const int64_t within = by_columns ? m.row_stride : m.column_stride;
  const auto* source = static_cast<const std::byte*>(at(m, batch, row, column));
  if (m.format == Format::kFloat32 && within == 1 && apart >= length)
    return {reinterpret_cast<const float*>(source), apart, by_columns};
  float* target = scratch.get(lines * length);
  const auto bytes = static_cast<int64_t>(bytes_of(m.format));
  if (within == 1 && apart == length) {
    widen(m.format, source, target, static_cast<std::size_t>(lines * length));
  } else {
    for (int64_t line = 0; line < lines; ++line)
      widen_strided(m.format, source + line * apart * bytes, within, target + line * length,
                    static_cast<std::size_t>(length));
  }
  return {target, length, by_columns};
}

struct Block {
  int64_t row, rows, column, columns;
};

// Sums to the output: scales, the addend, and the one rounding.
void finish(const Product& p, int64_t batch, const Block& block, float* sums, Scratch& scratch) {
  const auto count = static_cast<std::size_t>(block.columns);
  float* addend = p.beta == 0 ? nullptr : scratch.get(block.columns);
  for (int64_t i = 0; i < block.rows; ++i) {
    float* row = sums + i * block.columns;
    float scale = p.alpha;
    if (p.row_scale) scale *= p.row_scale[(block.row + i) * p.row_scale_stride];
    if (p.column_scale && p.column_scale_stride == 0) scale *= *p.column_scale;
    if (p.column_scale && p.column_scale_stride != 0) {
      for (int64_t j = 0; j < block.columns; ++j)
        row[j] *= scale * p.column_scale[(block.column + j) * p.column_scale_stride];
    } else if (scale != 1) {
      for (int64_t j = 0; j < block.columns; ++j) row[j] *= scale;
    }
    if (addend) {
      widen_strided(p.addend.format, at(p.addend, batch, block.row + i, block.column), p.addend.column_stride, addend,
                    count);
      for (int64_t j = 0; j < block.columns; ++j) row[j] += p.beta * addend[j];
    }
    narrow_strided(p.out.format, row, const_cast<void*>(at(p.out, batch, block.row + i, block.column)),
                   p.out.column_stride, count);
  }
}

// The last panel of the right operand, when it spans the whole depth: tiles below each other share it.
struct Remembered {
  int64_t batch = -1, column = -1, columns = -1;
  Panel panel;
};

void tile(const Product& p, int64_t out_batch, const Block& block, Remembered& last) {
  auto& mine = scratch();
  float* sums = mine.sums.get(block.rows * block.columns);
  const int64_t steps = (p.depth + kDepthStep - 1) / kDepthStep;
  const int64_t step = steps ? (p.depth + steps - 1) / steps : 1;
  float beta = 0;
  for (int64_t b = p.sum_over_batch ? 0 : out_batch, end = p.sum_over_batch ? p.batch : out_batch + 1; b < end; ++b) {
    for (int64_t k = 0; k < p.depth && p.alpha != 0; k += step) {
      const int64_t depth = std::min(step, p.depth - k);
      const Panel left = panel(p.left, b, block.row, k, block.rows, depth, mine.left);
      Panel right = last.panel;
      if (steps != 1 || last.batch != b || last.column != block.column || last.columns != block.columns) {
        right = panel(p.right, b, k, block.column, depth, block.columns, mine.right);
        last = {b, block.column, block.columns, right};
      }
      g_host.sgemm(left.transposed, right.transposed, block.rows, block.columns, depth, left.data, left.leading,
                   right.data, right.leading, beta, sums, block.columns);
      beta = 1;
    }
  }
  if (beta == 0) std::fill_n(sums, block.rows * block.columns, 0.0f);
  finish(p, out_batch, block, sums, mine.row);
}

// How many pieces to cut each side of the output into.
struct Grid {
  int64_t rows, columns;
};

int64_t pieces(int64_t length, int64_t size) { return std::max<int64_t>(1, (length + size - 1) / size); }

// Cuts the longer side further until every thread has its share, to within an eighth.
Grid grid(const Product& p, int64_t outputs, int threads) {
  Grid g{pieces(p.rows, kTile), pieces(p.columns, kTile)};
  const auto fair = [&] {
    const int64_t tiles = outputs * g.rows * g.columns;
    const int64_t rounds = (tiles + threads - 1) / threads;
    return tiles * 8 >= rounds * threads * 7;
  };
  while (!fair()) {
    const int64_t height = p.rows / g.rows, width = p.columns / g.columns;
    if (std::max(height, width) < 2 * kSmallestTile) break;
    ++(height > width ? g.rows : g.columns);
  }
  return g;
}

int64_t piece_begin(int64_t length, int64_t count, int64_t i) {
  // Whole vectors per piece: the GEMM's edges cost more than a slightly uneven cut.
  constexpr int64_t kVector = 16;
  if (i == count) return length;
  return std::min(length, (length * i / count + kVector / 2) / kVector * kVector);
}

void multiply_tiles(const Product& p, int64_t outputs, int threads) {
  const Grid g = grid(p, outputs, threads);
  const int64_t tiles = g.rows * g.columns;
  const auto run = [&](int64_t begin, int64_t end) {
    Remembered last;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t batch = i / tiles, column = i % tiles / g.rows, row = i % g.rows;
      Block block;
      block.row = piece_begin(p.rows, g.rows, row);
      block.rows = piece_begin(p.rows, g.rows, row + 1) - block.row;
      block.column = piece_begin(p.columns, g.columns, column);
      block.columns = piece_begin(p.columns, g.columns, column + 1) - block.column;
      if (block.rows > 0 && block.columns > 0) tile(p, batch, block, last);
    }
  };
  if (threads == 1)
    run(0, outputs * tiles);
  else
    parallel(outputs * tiles, run);
}

// A few rows times a matrix: reading the matrix is what costs, so it is widened in registers and used at once.
void multiply_rows(const Product& p, int64_t outputs, int threads) {
  const int64_t share = pieces(p.columns, threads);
  // At least a cache line of output each. Wide pieces, since a matrix stored by rows is read along them and hardware
  // fetches ahead only within a page; but the sums should stay in L1.
  constexpr int64_t kSums = 8192;
  const int64_t width = std::clamp<int64_t>((share + 15) / 16 * 16, 64, kSums / p.rows);
  const int64_t blocks = pieces(p.columns, width);
  const auto run = [&](int64_t begin, int64_t end) {
    auto& mine = scratch();
    int64_t widened = -1;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t batch = i / blocks, column = i % blocks * width;
      const Block block{0, p.rows, column, std::min(width, p.columns - column)};
      float* rows = mine.left.get(p.rows * p.depth);
      if (widened != batch) {
        for (int64_t r = 0; r < p.rows; ++r)
          widen_strided(p.left.format, at(p.left, batch, r, 0), p.left.column_stride, rows + r * p.depth,
                        static_cast<std::size_t>(p.depth));
        widened = batch;
      }
      float* sums = mine.sums.get(p.rows * block.columns);
      row_product({rows, p.rows, p.depth, at(p.right, batch, 0, column), p.right.format, p.right.row_stride,
                   p.right.column_stride, block.columns, sums});
      finish(p, batch, block, sums, mine.row);
    }
  };
  if (threads == 1)
    run(0, outputs * blocks);
  else
    parallel(outputs * blocks, run);
}

Matrices transposed(Matrices m) {
  std::swap(m.row_stride, m.column_stride);
  return m;
}

Product transposed(const Product& p) {
  Product t = p;
  std::swap(t.rows, t.columns);
  t.left = transposed(p.right);
  t.right = transposed(p.left);
  t.addend = transposed(p.addend);
  t.out = transposed(p.out);
  std::swap(t.row_scale, t.column_scale);
  std::swap(t.row_scale_stride, t.column_scale_stride);
  return t;
}

bool is_row_product(const Product& p) {
  return p.rows <= kMaxProductRows && !p.sum_over_batch && p.alpha != 0 && p.depth > 0 &&
         p.right.format != Format::kFloat32 && (p.right.row_stride == 1 || p.right.column_stride == 1);
}

}  // namespace

void set_tensor_engine_host(const TensorEngineHost& host) { g_host = host; }
const TensorEngineHost& tensor_engine_host() { return g_host; }

void multiply(const Product& product) {
  const int64_t outputs = product.sum_over_batch ? 1 : product.batch;
  if (outputs == 0 || product.rows == 0 || product.columns == 0) return;
  Product p = product;
  const bool written_by_columns = p.out.row_stride == 1 && p.out.column_stride != 1 && p.columns > 1;
  // The output is written row by row, so these should be its contiguous side; a single column is better a single row.
  if (p.rows > kMaxProductRows ? written_by_columns || p.columns <= kMaxProductRows : false) p = transposed(p);
  const int64_t work = outputs * p.rows * p.columns * std::max<int64_t>(p.depth, 1);
  const int threads = work < kWorkWorthThreads ? 1 : g_host.threads();
  if (is_row_product(p))
    multiply_rows(p, outputs, threads);
  else
    multiply_tiles(p, outputs, threads);
}

}  // namespace neuron::engines
