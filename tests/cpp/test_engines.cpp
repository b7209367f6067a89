// Tests of the tile programs of csrc/engines: kernels, functions, programs written by hand, random programs.
#include "test_engines.h"

#include <cstdio>

#include "checks.h"

int main() {
  test_attention();
  test_kernels();
  test_functions();
  test_programs();
  test_random_programs();
  test_isa_rows();
  std::printf("%d passed, %d failed\n", g_passed, g_failed);
  return g_failed != 0;
}
