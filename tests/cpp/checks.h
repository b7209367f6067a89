#pragma once
// Counting checks for C++ test programs of more than one file.
#include <cstdio>

inline int g_passed = 0, g_failed = 0;

inline bool check(bool ok, const char* what, const char* file, int line) {
  ++(ok ? g_passed : g_failed);
  if (!ok) std::fprintf(stderr, "%s:%d: failed: %s\n", file, line, what);
  return ok;
}
#define CHECK(condition) check((condition), #condition, __FILE__, __LINE__)
