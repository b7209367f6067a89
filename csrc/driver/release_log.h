#pragma once
// What the host has let go of, in the order of a queue's launches: which blocks no later launch can read any more. A
// worker that runs several launches together learns from it which results it need not write.
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "driver/relax.h"

namespace neuron::driver {

class ReleaseLog {
 public:
  // The block at this address was released when `ticket` was the last one submitted. Any thread.
  void released(const void* block, std::uint64_t ticket) { write({block, ticket}); }

  // Somebody on another queue will read what launches up to `ticket` have written, although the host may release it
  // afterwards. Any thread.
  void observed(std::uint64_t ticket) {
    if (write({nullptr, ticket})) return;
    std::uint64_t seen = lost_observation_.load(std::memory_order_relaxed);
    while (seen < ticket && !lost_observation_.compare_exchange_weak(seen, ticket, std::memory_order_release)) {
    }
  }

  // Calls released(block, ticket) and observed(ticket) for the entries up to `ticket`, oldest first. The worker alone.
  template <class Released, class Observed>
  void read(std::uint64_t ticket, Released&& on_released, Observed&& on_observed) {
    const std::uint64_t end = written_.load(std::memory_order_acquire);
    if (const std::uint64_t lost = lost_observation_.load(std::memory_order_acquire)) on_observed(lost);
    std::uint64_t at = read_.load(std::memory_order_relaxed);
    for (; at != end; ++at) {
      const Entry& entry = entries_[at % kEntries];
      if (entry.ticket > ticket) break;
      if (entry.block)
        on_released(entry.block, entry.ticket);
      else
        on_observed(entry.ticket);
    }
    read_.store(at, std::memory_order_release);
  }

 private:
  struct Entry {
    const void* block;  // null: an observation
    std::uint64_t ticket;
  };
  // A full log drops what comes: a result is then written although nobody reads it.
  static constexpr std::size_t kEntries = 4096;

  bool write(Entry entry) {
    while (writing_.exchange(true, std::memory_order_acquire)) cpu_relax();
    const std::uint64_t at = written_.load(std::memory_order_relaxed);
    const bool room = at - read_.load(std::memory_order_acquire) < kEntries;
    if (room) {
      entries_[at % kEntries] = entry;
      written_.store(at + 1, std::memory_order_release);
    }
    writing_.store(false, std::memory_order_release);
    return room;
  }

  std::array<Entry, kEntries> entries_;
  alignas(64) std::atomic<bool> writing_{false};
  std::atomic<std::uint64_t> written_{0};
  std::atomic<std::uint64_t> lost_observation_{0};
  alignas(64) std::atomic<std::uint64_t> read_{0};
};

}  // namespace neuron::driver
