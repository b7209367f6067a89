#pragma once
// Adaptive eager: launches of fusable ops run in windows instead of one by one.
#include <cstdint>
#include <string>
#include <vector>

#include "driver/batch.h"

namespace neuron::eager::fusion {

// The user's switch. Windows are also off in deterministic mode and while launches are blocking.
void set_adaptive(bool on);
bool adaptive();

// May the launch that is being made run in a window?
bool windows_wanted();

// driver::Launch::run_batch of fusable launches.
void run_window(driver::Batch& batch);

struct RegionReport {
  std::vector<std::string> ops;
  std::vector<std::string> lines;  // "file:line", where known
  std::int64_t elements;           // of the largest tensor
  std::int64_t launches;           // that one run replaces
  std::int64_t runs;
  std::int64_t bytes_not_written;  // by all runs
  bool compiled;                   // to machine code
};

struct Report {
  std::int64_t windows, hits, misses, launches, single;
  std::vector<RegionReport> regions;
};
Report report();
void reset_report();

}  // namespace neuron::eager::fusion
