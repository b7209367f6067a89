#pragma once
// fp32 matrix products for where no GEMM library is at hand, and for operands that are widened while they are packed.
#include <cstddef>
#include <cstdint>

#include "engines/isa/types.h"

namespace neuron::engines::isa {

// Element (k, i) of an operand lies at data + k * depth_stride + i * stride (bytes). fp32 or bf16.
struct GemmOperand {
  const std::byte* data;
  Type type;
  std::int64_t depth_stride, stride;
};

// c (rows x columns, `leading` floats from row to row) = left^T @ right, or is added to. Products and sums in fp32.
void gemm(std::int64_t rows, std::int64_t columns, std::int64_t depth, const GemmOperand& left,
          const GemmOperand& right, float* c, std::int64_t leading, bool add);

// The contract of engines::Sgemm.
void blocked_sgemm(bool transpose_a, bool transpose_b, std::int64_t rows, std::int64_t columns, std::int64_t depth,
                   const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c,
                   std::int64_t ldc);

// The same for each instruction set.
using Gemm = void (*)(std::int64_t rows, std::int64_t columns, std::int64_t depth, const GemmOperand& left,
                      const GemmOperand& right, float* c, std::int64_t leading, bool add);
namespace portable {
extern const Gemm kGemm;
}
namespace avx2 {
extern const Gemm kGemm;
}
namespace avx512 {
extern const Gemm kGemm;
}

}  // namespace neuron::engines::isa
