#pragma once
// The error state of one core. A launch that fails puts its core into the error state: launches behind it, on every
// queue of the core, are dropped until a host thread synchronises and is told.
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <utility>

namespace neuron::driver {

class Fault {
 public:
  bool pending() const { return pending_.load(std::memory_order_acquire); }

  // Only the first error is kept: what follows is most likely its consequence.
  void raise(std::exception_ptr error) {
    std::lock_guard lock(mutex_);
    if (error_) return;
    error_ = std::move(error);
    pending_.store(true, std::memory_order_release);
  }

  // Ends the error state and returns the error, or null when there was none.
  std::exception_ptr take() {
    if (!pending()) return nullptr;
    std::lock_guard lock(mutex_);
    pending_.store(false, std::memory_order_release);
    return std::exchange(error_, nullptr);
  }

  void rethrow_if_pending() {
    if (auto error = take()) std::rethrow_exception(error);
  }

 private:
  std::atomic<bool> pending_{false};
  std::mutex mutex_;
  std::exception_ptr error_;
};

}  // namespace neuron::driver
