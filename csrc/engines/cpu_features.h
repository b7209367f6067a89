#pragma once
// Code for AVX2 beside portable code in one file, chosen when the program runs.
#if defined(__x86_64__)
#include <immintrin.h>
#define NEURON_HAS_AVX2_CODE 1
#define NEURON_AVX2 __attribute__((target("avx2,fma,f16c")))
#else
#define NEURON_HAS_AVX2_CODE 0
#endif

// Inlined into functions of every target, and compiled for each.
#define NEURON_INLINE __attribute__((always_inline)) inline

namespace neuron::engines {

#if NEURON_HAS_AVX2_CODE
inline bool cpu_has_avx2() {
  static const bool has =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  return has;
}
#endif

}  // namespace neuron::engines
