// Which set of kernels is used.
#include "engines/kernels.h"

#include <atomic>
#include <cstring>

namespace neuron::engines {
namespace {

struct Isa {
  const char* name;
  const Kernels* table;
};

constexpr Isa kPortable{"default", &portable::kTable};
#if defined(__x86_64__)
constexpr Isa kAvx2{"avx2", &avx2::kTable};
constexpr Isa kAvx512{"avx512", &avx512::kTable};

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif

const Isa* widest_up_to([[maybe_unused]] const char* name) {
#if defined(__x86_64__)
  if (std::strcmp(name, "avx512") == 0 && has_avx512()) return &kAvx512;
  if (std::strcmp(name, "default") != 0 && has_avx2()) return &kAvx2;
#endif
  return &kPortable;
}

std::atomic<const Isa*>& current() {
  static std::atomic<const Isa*> isa{widest_up_to("avx512")};
  return isa;
}

}  // namespace

void select_isa(const char* name) { current().store(widest_up_to(name)); }

const char* selected_isa() { return current().load()->name; }

const Kernels& kernels() { return *current().load()->table; }

}  // namespace neuron::engines
