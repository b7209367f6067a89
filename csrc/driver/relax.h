#pragma once
// Tell the processor that this is a spin loop.
namespace neuron::driver {
inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}
}  // namespace neuron::driver
