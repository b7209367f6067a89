#include "engines/attention_tiles.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>

#include "engines/cpu_features.h"

namespace neuron::engines {

namespace {

using std::int64_t;

// Eight lanes; where the machine's vectors are shorter the compiler takes two.
constexpr int64_t kLanes = 8;
typedef float Lanes __attribute__((vector_size(32), aligned(4), may_alias));
typedef std::int32_t Words __attribute__((vector_size(32)));

constexpr float kInfinity = std::numeric_limits<float>::infinity();

NEURON_INLINE Lanes& lanes(float* p) { return *reinterpret_cast<Lanes*>(p); }
NEURON_INLINE const Lanes& lanes(const float* p) { return *reinterpret_cast<const Lanes*>(p); }

#if NEURON_HAS_AVX2_CODE
template <class Work>
NEURON_AVX2 void run_avx2(const Work& work) {
  work();
}
#endif

// Runs code that is compiled for each target.
template <class Work>
void run(const Work& work) {
#if NEURON_HAS_AVX2_CODE
  if (cpu_has_avx2()) return run_avx2(work);
#endif
  work();
}

// -- Products ---------------------------------------------------------------------------------------------------------

// Two vectors for each of six rows fill twelve of sixteen registers.
constexpr int kRows = 6;

struct Multiply {
  const TileProduct& p;

  NEURON_INLINE void operator()() const { p.a_depth == 1 ? panels<false>() : panels<true>(); }

  template <bool kTransposed>
  NEURON_INLINE void panels() const {
    for (int64_t column = 0; column < p.columns; column += kPanel) {
      const float* b = p.b + column / kPanel * p.b_panel;
      int64_t row = 0;
      for (; row + kRows <= p.rows; row += kRows) rows<kRows, kTransposed>(row, b, column);
      switch (p.rows - row) {
        case 5:
          rows<5, kTransposed>(row, b, column);
          break;
        case 4:
          rows<4, kTransposed>(row, b, column);
          break;
        case 3:
          rows<3, kTransposed>(row, b, column);
          break;
        case 2:
          rows<2, kTransposed>(row, b, column);
          break;
        case 1:
          rows<1, kTransposed>(row, b, column);
          break;
        default:
          break;
      }
    }
  }

  template <int kCount, bool kTransposed>
  NEURON_INLINE void rows(int64_t row, const float* b, int64_t column) const {
    const int64_t a_row = kTransposed ? 1 : p.a_row, a_depth = kTransposed ? p.a_depth : 1, b_depth = p.b_depth;
    const float* a = p.a + row * a_row;
    float* c = p.c + row * p.c_row + column;
    Lanes sums[kCount][2] = {};
    if (p.add) {
      for (int r = 0; r < kCount; ++r)
        for (int v = 0; v < 2; ++v) sums[r][v] = lanes(c + r * p.c_row + v * kLanes);
    }
    for (int64_t k = 0; k < p.depth; ++k) {
      const Lanes left = lanes(b), right = lanes(b + kLanes);
#pragma GCC unroll 6
      for (int r = 0; r < kCount; ++r) {
        const float x = a[r * a_row];
        sums[r][0] += x * left;
        sums[r][1] += x * right;
      }
      a += a_depth;
      b += b_depth;
    }
    for (int r = 0; r < kCount; ++r)
      for (int v = 0; v < 2; ++v) lanes(c + r * p.c_row + v * kLanes) = sums[r][v];
  }
};

// -- Copies -----------------------------------------------------------------------------------------------------------

const std::byte* at(const Strided& m, int64_t row) {
  return static_cast<const std::byte*>(m.data) + row * m.row * static_cast<int64_t>(bytes_of(m.format));
}

template <int kA, int kB, int kC, int kD, int kE, int kF, int kG, int kH>
NEURON_INLINE void shuffle(const Lanes& x, const Lanes& y, Lanes& to) {
  to = __builtin_shuffle(x, y, Words{kA, kB, kC, kD, kE, kF, kG, kH});
}

// Eight rows from `lines`, of eight floats from `k` on, to eight columns.
NEURON_INLINE void transpose8(const float* const* lines, int64_t k, float* to) {
  Lanes a[8], b[8];
  for (int i = 0; i < 8; i += 2) {
    const Lanes x = lanes(lines[i] + k), y = lanes(lines[i + 1] + k);
    shuffle<0, 8, 1, 9, 4, 12, 5, 13>(x, y, a[i]);
    shuffle<2, 10, 3, 11, 6, 14, 7, 15>(x, y, a[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    for (int j = 0; j < 2; ++j) {
      shuffle<0, 1, 8, 9, 4, 5, 12, 13>(a[i + j], a[i + j + 2], b[i + 2 * j]);
      shuffle<2, 3, 10, 11, 6, 7, 14, 15>(a[i + j], a[i + j + 2], b[i + 2 * j + 1]);
    }
  }
  for (int i = 0; i < 4; ++i) {
    shuffle<0, 1, 2, 3, 8, 9, 10, 11>(b[i], b[i + 4], lanes(to + i * kPanel));
    shuffle<4, 5, 6, 7, 12, 13, 14, 15>(b[i], b[i + 4], lanes(to + (i + 4) * kPanel));
  }
}

struct Transpose {
  const float* const* lines;  // kPanel
  int64_t columns;
  float* panel;

  NEURON_INLINE void operator()() const {
    int64_t k = 0;
    for (; k + kLanes <= columns; k += kLanes)
      for (int64_t half = 0; half < kPanel; half += kLanes) transpose8(lines + half, k, panel + k * kPanel + half);
    for (; k < columns; ++k)
      for (int64_t j = 0; j < kPanel; ++j) panel[k * kPanel + j] = lines[j][k];
  }
};

// -- Softmax ----------------------------------------------------------------------------------------------------------

// Two parts in a million or better; zero below the smallest normal number. (Cephes' polynomial.)
NEURON_INLINE void exponentials(Lanes& x) {
  constexpr float kMagic = 12582912.0f;  // adding it rounds to an integer, which stands in the lowest bits
  const Lanes most = Lanes{} + 88.37f, least = Lanes{} - 87.33f, zero = {};
  const Lanes bounded = x > most ? most : x;
  const Lanes shifted = bounded * 1.44269504f + kMagic;
  const Lanes count = shifted - kMagic;
  const Lanes rest = (bounded - count * 0.693359375f) + count * 2.12194440e-4f;
  Lanes sum = rest * 1.9875691500e-4f + 1.3981999507e-3f;
  sum = sum * rest + 8.3334519073e-3f;
  sum = sum * rest + 4.1665795894e-2f;
  sum = sum * rest + 1.6666665459e-1f;
  sum = sum * rest + 5.0000001201e-1f;
  sum = sum * (rest * rest) + rest + 1.0f;
  Words bits;
  std::memcpy(&bits, &shifted, sizeof(bits));
  bits = (bits + (127 - 0x4b400000)) << 23;
  Lanes scale;
  std::memcpy(&scale, &bits, sizeof(scale));
  x = bounded < least ? zero : sum * scale;
}

// Calls work(lanes) on all lanes of a row in place; lanes behind its end hold `filler` and are not stored.
template <class Work>
NEURON_INLINE void over_row(float* row, int64_t columns, float filler, const Work& work) {
  int64_t j = 0;
  for (; j + kLanes <= columns; j += kLanes) work(lanes(row + j));
  if (j == columns) return;
  Lanes rest = Lanes{} + filler;
  std::memcpy(&rest, row + j, static_cast<std::size_t>(columns - j) * sizeof(float));
  work(rest);
  std::memcpy(row + j, &rest, static_cast<std::size_t>(columns - j) * sizeof(float));
}

NEURON_INLINE float total(const Lanes& x) { return ((x[0] + x[4]) + (x[1] + x[5])) + ((x[2] + x[6]) + (x[3] + x[7])); }

struct Softmax {
  const SoftmaxTile& t;

  NEURON_INLINE void operator()() const {
    for (int64_t i = 0; i < t.rows; ++i) row(i, t.scores + i * t.width);
  }

  NEURON_INLINE void row(int64_t i, float* scores) const {
    Lanes most = Lanes{} - kInfinity;
    int64_t j = 0;
    for (; j + kLanes <= t.columns; j += kLanes) {
      const Lanes& x = lanes(scores + j);
      most = x > most ? x : most;
    }
    float maximum = t.maxima[i];
    for (int64_t l = 0; l < kLanes; ++l) maximum = std::max(maximum, most[l]);
    for (; j < t.columns; ++j) maximum = std::max(maximum, scores[j]);
    // With nothing but minus infinity so far, all is zero beside any number.
    const float beside = maximum == -kInfinity ? 0.0f : maximum;
    Lanes sum = {};
    over_row(scores, t.columns, -kInfinity, [&](Lanes& x) __attribute__((always_inline)) {
      Lanes y = x - beside;
      exponentials(y);
      sum += y;
      x = y;
    });
    if (maximum != t.maxima[i] && t.maxima[i] != -kInfinity) {
      Lanes factor = Lanes{} + (t.maxima[i] - maximum);
      exponentials(factor);
      t.sums[i] *= factor[0];
      float* out = t.out + i * t.out_width;
      for (int64_t k = 0; k < t.out_width; k += kLanes) lanes(out + k) *= factor[0];
    }
    t.sums[i] += total(sum);
    t.maxima[i] = maximum;
  }
};

struct Probabilities {
  float* scores;
  int64_t width, rows, columns;
  const float* logsumexp;

  NEURON_INLINE void operator()() const {
    for (int64_t i = 0; i < rows; ++i) {
      const float beside = logsumexp[i] == -kInfinity ? kInfinity : logsumexp[i];
      over_row(scores + i * width, columns, 0, [&](Lanes& x) __attribute__((always_inline)) {
        Lanes y = x - beside;
        exponentials(y);
        x = y;
      });
    }
  }
};

struct SoftmaxGradient {
  const float* probabilities;
  float* gradients;
  int64_t width, rows, columns;
  const float* shifts;

  NEURON_INLINE void operator()() const {
    for (int64_t i = 0; i < rows; ++i) {
      const float* p = probabilities + i * width;
      float* g = gradients + i * width;
      int64_t j = 0;
      for (; j + kLanes <= columns; j += kLanes) lanes(g + j) = lanes(p + j) * (lanes(g + j) - shifts[i]);
      for (; j < columns; ++j) g[j] = p[j] * (g[j] - shifts[i]);
    }
  }
};

struct Dots {
  const float *a, *b;
  int64_t width, rows, columns;
  float* sums;

  NEURON_INLINE void operator()() const {
    for (int64_t i = 0; i < rows; ++i) {
      const float *x = a + i * width, *y = b + i * width;
      Lanes sum = {};
      int64_t j = 0;
      for (; j + kLanes <= columns; j += kLanes) sum += lanes(x + j) * lanes(y + j);
      sums[i] = total(sum);
      for (; j < columns; ++j) sums[i] += x[j] * y[j];
    }
  }
};

}  // namespace

void multiply_tile(const TileProduct& product) { run(Multiply{product}); }

void pack_transposed(const Strided& m, int64_t rows, int64_t columns, float* panels, float* lines) {
  const bool in_place = m.format == Format::kFloat32 && m.column == 1;
  for (int64_t first = 0; first < rows; first += kPanel) {
    const float* line[kPanel];
    for (int64_t j = 0; j < kPanel; ++j) {
      float* own = lines + j * columns;
      line[j] = own;
      if (first + j >= rows)
        std::fill_n(own, columns, 0.0f);
      else if (in_place)
        line[j] = reinterpret_cast<const float*>(at(m, first + j));
      else
        widen_strided(m.format, at(m, first + j), m.column, own, static_cast<std::size_t>(columns));
    }
    run(Transpose{line, columns, panels + first * columns});
  }
}

void widen_tile(const Strided& m, int64_t rows, int64_t columns, float scale, float* to, int64_t width) {
  for (int64_t i = 0; i < rows; ++i) {
    float* row = to + i * width;
    if (m.column == 1)
      widen(m.format, at(m, i), row, static_cast<std::size_t>(columns));
    else
      widen_strided(m.format, at(m, i), m.column, row, static_cast<std::size_t>(columns));
    if (scale != 1)
      for (int64_t j = 0; j < columns; ++j) row[j] *= scale;
    std::fill(row + columns, row + width, 0.0f);
  }
}

void narrow_tile(const float* from, int64_t width, const float* factors, const Strided& m, int64_t rows,
                 int64_t columns) {
  constexpr int64_t kChunk = 256;
  float chunk[kChunk];
  for (int64_t i = 0; i < rows; ++i) {
    auto* target = const_cast<std::byte*>(at(m, i));
    for (int64_t j = 0; j < columns; j += kChunk) {
      const int64_t count = std::min(kChunk, columns - j);
      for (int64_t l = 0; l < count; ++l) chunk[l] = from[i * width + j + l] * factors[i];
      narrow_strided(m.format, chunk, target + j * m.column * static_cast<int64_t>(bytes_of(m.format)), m.column,
                     static_cast<std::size_t>(count));
    }
  }
}

void softmax_tile(const SoftmaxTile& tile) { run(Softmax{tile}); }

void probabilities_tile(float* scores, int64_t width, int64_t rows, int64_t columns, const float* logsumexp) {
  run(Probabilities{scores, width, rows, columns, logsumexp});
}

void softmax_gradient_tile(const float* probabilities, float* gradients, int64_t width, int64_t rows, int64_t columns,
                           const float* shifts) {
  run(SoftmaxGradient{probabilities, gradients, width, rows, columns, shifts});
}

void dot_rows(const float* a, const float* b, int64_t width, int64_t rows, int64_t columns, float* sums) {
  run(Dots{a, b, width, rows, columns, sums});
}

}  // namespace neuron::engines
