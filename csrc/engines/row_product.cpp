#include "engines/row_product.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "engines/cpu_features.h"

namespace neuron::engines {

namespace {

using std::int64_t;

// Eight lanes; where the machine's vectors are shorter the compiler takes two.
constexpr int64_t kLanes = 8;
typedef float Lanes __attribute__((vector_size(32), aligned(4), may_alias));
typedef std::uint32_t Words __attribute__((vector_size(32)));
typedef std::uint16_t Halves __attribute__((vector_size(16), aligned(2), may_alias));

// What is widened elsewhere passes through a buffer of this many floats a line, which stays in L1.
constexpr int64_t kChunk = 512;
// Lines of the matrix that are added at a time, so that sums are loaded and stored less often.
constexpr int64_t kLines = 4;

// Vectors are passed by reference: by value they would have another calling convention for each target.
struct LoadFloat32 {
  static constexpr bool kDirect = true;
  NEURON_INLINE static void load(const void* from, int64_t i, Lanes& to) {
    to = *reinterpret_cast<const Lanes*>(static_cast<const float*>(from) + i);
  }
};

// Formats that are widened elsewhere.
struct LoadWidened : LoadFloat32 {
  static constexpr bool kDirect = false;
};

struct LoadBFloat16 {
  static constexpr bool kDirect = true;
  NEURON_INLINE static void load(const void* from, int64_t i, Lanes& to) {
    const auto halves = *reinterpret_cast<const Halves*>(static_cast<const std::uint16_t*>(from) + i);
    const Words words = __builtin_convertvector(halves, Words) << 16;
    std::memcpy(&to, &words, sizeof(to));
  }
};

#if NEURON_HAS_AVX2_CODE
struct LoadFloat16 {
  static constexpr bool kDirect = true;
  // The intrinsic cannot be inlined through templates that are compiled for every target; the instruction can.
  NEURON_INLINE static void load(const void* from, int64_t i, Lanes& to) {
    const auto& halves = *reinterpret_cast<const Halves*>(static_cast<const std::uint16_t*>(from) + i);
    asm("vcvtph2ps %1, %0" : "=x"(to) : "m"(halves));
  }
};
#endif

// sums[r] += left[r] . line, for vectors; returns how far they went.
template <class Load, int Rows>
NEURON_INLINE int64_t dot(const float* left, int64_t apart, const void* line, int64_t count, float* sums,
                          int64_t sums_apart) {
  // Additions wait for each other: few rows need several sums each to keep the units busy, many would need registers.
  constexpr int kSums = Rows <= 2 ? 4 : Rows <= 4 ? 2 : 1;
  Lanes total[Rows][kSums] = {};
  int64_t k = 0;
  for (; k + kSums * kLanes <= count; k += kSums * kLanes) {
    for (int s = 0; s < kSums; ++s) {
      Lanes x, y;
      Load::load(line, k + s * kLanes, x);
      for (int r = 0; r < Rows; ++r) {
        LoadFloat32::load(left, r * apart + k + s * kLanes, y);
        total[r][s] += x * y;
      }
    }
  }
  for (int r = 0; r < Rows; ++r) {
    Lanes sum = total[r][0];
    for (int s = 1; s < kSums; ++s) sum += total[r][s];
    sums[r * sums_apart] += ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7]));
  }
  return k;
}

template <class Load, int Rows>
NEURON_INLINE void by_columns(const RowProduct& p) {
  const auto bytes = static_cast<int64_t>(bytes_of(p.format));
  float buffer[kChunk];
  for (int64_t j = 0; j < p.columns; ++j) {
    const auto* column = static_cast<const std::byte*>(p.right) + j * p.column_stride * bytes;
    float* sums = p.sums + j;
    int64_t k = 0;
    if constexpr (Load::kDirect) k = dot<Load, Rows>(p.left, p.depth, column, p.depth, sums, p.columns);
    while (k < p.depth) {
      const int64_t count = std::min(kChunk, p.depth - k);
      widen(p.format, column + k * bytes, buffer, static_cast<std::size_t>(count));
      int64_t i = Load::kDirect ? 0 : dot<LoadFloat32, Rows>(p.left + k, p.depth, buffer, count, sums, p.columns);
      for (; i < count; ++i)
        for (int r = 0; r < Rows; ++r) sums[r * p.columns] += p.left[r * p.depth + k + i] * buffer[i];
      k += count;
    }
  }
}

// sums[r][:] += the sum of left[r][l] * line[l], for vectors; returns how far they went.
template <class Load, int Rows, int Lines>
NEURON_INLINE int64_t add_lines(const float* left, int64_t apart, const void* const* lines, int64_t count, float* sums,
                                int64_t sums_apart) {
  int64_t j = 0;
  for (; j + kLanes <= count; j += kLanes) {
    Lanes total[Rows];
    for (int r = 0; r < Rows; ++r) LoadFloat32::load(sums, r * sums_apart + j, total[r]);
    for (int l = 0; l < Lines; ++l) {
      Lanes x;
      Load::load(lines[l], j, x);
      for (int r = 0; r < Rows; ++r) total[r] += left[r * apart + l] * x;
    }
    for (int r = 0; r < Rows; ++r) *reinterpret_cast<Lanes*>(sums + r * sums_apart + j) = total[r];
  }
  return j;
}

template <class Load, int Rows, int Lines>
NEURON_INLINE void add_rows(const RowProduct& p, int64_t k, int64_t column, int64_t columns) {
  const auto bytes = static_cast<int64_t>(bytes_of(p.format));
  float buffer[Lines][kChunk];
  const void* lines[Lines];
  for (int l = 0; l < Lines; ++l)
    lines[l] = static_cast<const std::byte*>(p.right) + ((k + l) * p.row_stride + column) * bytes;
  float* sums = p.sums + column;
  int64_t j = 0;
  if constexpr (Load::kDirect) j = add_lines<Load, Rows, Lines>(p.left + k, p.depth, lines, columns, sums, p.columns);
  if (j == columns) return;
  for (int l = 0; l < Lines; ++l) {
    widen(p.format, static_cast<const std::byte*>(lines[l]) + j * bytes, buffer[l],
          static_cast<std::size_t>(columns - j));
    lines[l] = buffer[l];
  }
  int64_t i = 0;
  if constexpr (!Load::kDirect)
    i = add_lines<LoadFloat32, Rows, Lines>(p.left + k, p.depth, lines, columns, sums, p.columns);
  for (; i < columns - j; ++i)
    for (int r = 0; r < Rows; ++r)
      for (int l = 0; l < Lines; ++l) sums[r * p.columns + j + i] += p.left[r * p.depth + k + l] * buffer[l][i];
}

template <class Load, int Rows, int Lines>
NEURON_INLINE void add_rows(const RowProduct& p, int64_t k) {
  const int64_t width = Load::kDirect ? p.columns : kChunk;
  for (int64_t column = 0; column < p.columns; column += width)
    add_rows<Load, Rows, Lines>(p, k, column, std::min(width, p.columns - column));
}

template <class Load, int Rows>
NEURON_INLINE void by_rows(const RowProduct& p) {
  int64_t k = 0;
  for (; k + kLines <= p.depth; k += kLines) add_rows<Load, Rows, kLines>(p, k);
  for (; k < p.depth; ++k) add_rows<Load, Rows, 1>(p, k);
}

template <class Load, int Rows>
NEURON_INLINE void rows(const RowProduct& p) {
  p.row_stride == 1 ? by_columns<Load, Rows>(p) : by_rows<Load, Rows>(p);
}

template <class Load>
NEURON_INLINE void any_rows(const RowProduct& p) {
  static_assert(kMaxProductRows == 8);
  switch (p.rows) {
    case 1:
      return rows<Load, 1>(p);
    case 2:
      return rows<Load, 2>(p);
    case 3:
      return rows<Load, 3>(p);
    case 4:
      return rows<Load, 4>(p);
    case 5:
      return rows<Load, 5>(p);
    case 6:
      return rows<Load, 6>(p);
    case 7:
      return rows<Load, 7>(p);
    default:
      return rows<Load, 8>(p);
  }
}

void portable(const RowProduct& p) {
  if (p.format == Format::kFloat32) return any_rows<LoadFloat32>(p);
  p.format == Format::kBFloat16 ? any_rows<LoadBFloat16>(p) : any_rows<LoadWidened>(p);
}

#if NEURON_HAS_AVX2_CODE
NEURON_AVX2 void avx2_bfloat16(const RowProduct& p) { any_rows<LoadBFloat16>(p); }
NEURON_AVX2 void avx2_float16(const RowProduct& p) { any_rows<LoadFloat16>(p); }
NEURON_AVX2 void avx2_widened(const RowProduct& p) { any_rows<LoadWidened>(p); }
NEURON_AVX2 void avx2_float32(const RowProduct& p) { any_rows<LoadFloat32>(p); }
#endif

}  // namespace

void row_product(const RowProduct& p) {
  std::fill_n(p.sums, p.rows * p.columns, 0.0f);
#if NEURON_HAS_AVX2_CODE
  if (cpu_has_avx2()) {
    if (p.format == Format::kFloat32) return avx2_float32(p);
    if (p.format == Format::kBFloat16) return avx2_bfloat16(p);
    return p.format == Format::kFloat16 ? avx2_float16(p) : avx2_widened(p);
  }
#endif
  portable(p);
}

}  // namespace neuron::engines
