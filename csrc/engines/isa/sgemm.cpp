#include "engines/isa/sgemm.h"

#include <algorithm>

namespace neuron::engines::isa {

using std::int64_t;

namespace {

Gemm widest() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return avx512::kGemm;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2::kGemm;
#endif
  return portable::kGemm;
}

const Gemm g_gemm = widest();

}  // namespace

void gemm(int64_t rows, int64_t columns, int64_t depth, const GemmOperand& left, const GemmOperand& right, float* c,
          int64_t leading, bool add) {
  if (depth > 0) return g_gemm(rows, columns, depth, left, right, c, leading, add);
  for (int64_t i = 0; i < rows && !add; ++i) std::fill_n(c + i * leading, columns, 0.0f);
}

void blocked_sgemm(bool transpose_a, bool transpose_b, int64_t rows, int64_t columns, int64_t depth, const float* a,
                   int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  constexpr int64_t kBytes = sizeof(float);
  if (beta != 0 && beta != 1)
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j) c[i * ldc + j] *= beta;
  const GemmOperand left{reinterpret_cast<const std::byte*>(a), Type::kFloat32, transpose_a ? lda * kBytes : kBytes,
                         transpose_a ? kBytes : lda * kBytes};
  const GemmOperand right{reinterpret_cast<const std::byte*>(b), Type::kFloat32, transpose_b ? kBytes : ldb * kBytes,
                          transpose_b ? ldb * kBytes : kBytes};
  gemm(rows, columns, depth, left, right, c, ldc, beta != 0);
}

}  // namespace neuron::engines::isa
