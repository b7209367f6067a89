#pragma once
// A launch: a header, and behind it the payload that its function knows how to read. Launches lie in the ring of a
// queue, or in a recording.
#include <cstddef>
#include <cstdint>

namespace neuron::driver {

class Batch;

struct alignas(64) Launch {
  using Fn = void (*)(Launch&);
  using BatchFn = void (*)(Batch&);
  Fn run = nullptr;             // may throw: the core enters the error state
  Fn drop = nullptr;            // releases what the payload owns; called once, after run or instead of it; may be null
  BatchFn run_batch = nullptr;  // instead of `run`, for launches that can run together with those behind them
  const char* name = "";
  std::uint32_t bytes = 0;  // of header and payload together; always a multiple of alignof(Launch)

  std::byte* payload() { return reinterpret_cast<std::byte*>(this + 1); }

  static constexpr std::size_t bytes_for(std::size_t payload) {
    return (sizeof(Launch) + payload + alignof(Launch) - 1) / alignof(Launch) * alignof(Launch);
  }
};
static_assert(sizeof(Launch) == alignof(Launch));

}  // namespace neuron::driver
