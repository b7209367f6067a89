#pragma once
// How the engines reach threads: the floor above has a pool, and hands in a function that uses it.
#include <cstdint>

namespace neuron::engines {

// Calls body(context, begin, end) on disjoint ranges that cover [0, count), each a multiple of `grain` long but for the
// last, on at most `threads` threads; returns when all are done.
using ParallelFor = void (*)(std::int64_t count, std::int64_t grain, int threads,
                             void (*body)(void* context, std::int64_t begin, std::int64_t end), void* context);

}  // namespace neuron::engines
