#include "eager/low_precision.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/cpu/Utils.h>
#include <ATen/ops/from_blob.h>

#include <atomic>
#include <string>
#include <unordered_map>
#include <utility>

#include "eager/threads.h"
#include "engines/tensor_engine.h"

// Torch's BLAS. Weak, because a torch without one has no such symbol; then ATen's own matrix product is called.
extern "C" __attribute__((weak)) void sgemm_(const char* transpose_a, const char* transpose_b, const int* m,
                                             const int* n, const int* k, const float* alpha, const float* a,
                                             const int* lda, const float* b, const int* ldb, const float* beta,
                                             float* c, const int* ldc);

namespace neuron::eager {

namespace {

void sgemm(bool transpose_a, bool transpose_b, std::int64_t rows, std::int64_t columns, std::int64_t depth,
           const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c, std::int64_t ldc) {
  if (C10_LIKELY(sgemm_ != nullptr)) {
    // BLAS counts by columns, where these are the transposed matrices: c' = b' @ a'.
    const int m = static_cast<int>(columns), n = static_cast<int>(rows), k = static_cast<int>(depth);
    const int ld_a = static_cast<int>(lda), ld_b = static_cast<int>(ldb), ld_c = static_cast<int>(ldc);
    const float one = 1;
    sgemm_(transpose_b ? "T" : "N", transpose_a ? "T" : "N", &m, &n, &k, &one, b, &ld_b, a, &ld_a, &beta, c, &ld_c);
    return;
  }
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto tensor = [](const float* data, std::int64_t height, std::int64_t width, std::int64_t apart, bool t) {
    return at::from_blob(const_cast<float*>(data), {height, width},
                         t ? at::IntArrayRef{1, apart} : at::IntArrayRef{apart, 1});
  };
  auto out = tensor(c, rows, columns, ldc, false);
  out.addmm_(tensor(a, rows, depth, lda, transpose_a), tensor(b, depth, columns, ldb, transpose_b), beta);
}

const bool g_host_set = (engines::set_tensor_engine_host({&sgemm, &parallel_for, &at::get_num_threads}), true);

// oneDNN takes bf16 and fp16 without these instructions too, but only emulates them.
bool cpu_multiplies(at::ScalarType dtype) {
  static const auto capabilities = at::cpu::get_cpu_capabilities();
  const auto has = [](const char* name) {
    const auto found = capabilities.find(name);
    return found != capabilities.end() && found->second.isBool() && found->second.toBool();
  };
  static const bool bf16 = has("avx512_bf16") || has("amx_bf16") || has("bf16");  // the last one is Arm's
  static const bool fp16 = has("avx512_fp16") || has("amx_fp16");
  return dtype == at::kBFloat16 ? bf16 : fp16;
}

std::atomic<bool> g_chip_numerics{false};

bool is_float8(at::ScalarType dtype) { return dtype == at::kFloat8_e4m3fn || dtype == at::kFloat8_e5m2; }

bool applies(LowPrecision when, c10::ArrayRef<c10::TensorImpl*> tensors) {
  if (tensors.size() < 2) return false;
  const auto first = c10::typeMetaToScalarType(tensors[0]->dtype());
  constexpr std::size_t kOperands = 3;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto* t = tensors[i];
    if (is_undefined(t)) continue;
    if (t->is_neg() || t->key_set().has(c10::DispatchKey::ZeroTensor)) return false;
    const auto dtype = c10::typeMetaToScalarType(t->dtype());
    if (when == LowPrecision::kAllTensors && dtype != first) return false;
    if (when == LowPrecision::kOperands && i < kOperands && dtype != first) return false;
    if (when == LowPrecision::kFloat8 && i < 2 && !is_float8(dtype)) return false;
  }
  if (when == LowPrecision::kFloat8) return true;
  if (first != at::kBFloat16 && first != at::kHalf) return false;
  return chip_numerics() || !cpu_multiplies(first);
}

const NamedKernel* find(std::string_view op) {
  static const auto table = [] {
    std::unordered_map<std::string, const NamedKernel*> kernels;
    for (const auto list : {low_precision_products(), low_precision_layers()})
      for (const auto& kernel : list) {
        std::string name = kernel.name;
        if (*kernel.overload) name.append(".").append(kernel.overload);
        kernels.emplace(std::move(name), &kernel);
      }
    return kernels;
  }();
  const auto found = table.find(std::string(op));
  return found == table.end() ? nullptr : found->second;
}

}  // namespace

void set_chip_numerics(bool on) { g_chip_numerics.store(on, std::memory_order_relaxed); }
bool chip_numerics() { return g_chip_numerics.load(std::memory_order_relaxed); }

ReplacementKernel low_precision_kernel(std::string_view op, c10::ArrayRef<c10::TensorImpl*> tensors) {
  const auto* kernel = find(op);
  return kernel && applies(kernel->when, tensors) ? kernel->kernel : nullptr;
}

}  // namespace neuron::eager
