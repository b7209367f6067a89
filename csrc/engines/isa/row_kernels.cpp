// Which set of row kernels is used.
#include "engines/isa/row_kernels.h"

#include <atomic>
#include <cstring>

namespace neuron::engines::isa {
namespace {

const RowKernels* widest_up_to([[maybe_unused]] const char* name) {
#if defined(__x86_64__)
  const bool has_avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (has_avx512 && std::strcmp(name, "avx512") == 0) return &avx512::kRowKernels;
  if (has_avx2 && std::strcmp(name, "default") != 0) return &avx2::kRowKernels;
#endif
  return &portable::kRowKernels;
}

std::atomic<const RowKernels*> g_current{widest_up_to("avx512")};

}  // namespace

const RowKernels& row_kernels() { return *g_current.load(std::memory_order_relaxed); }

void select_row_kernels(const char* isa) { g_current.store(widest_up_to(isa)); }

}  // namespace neuron::engines::isa
