#pragma once
// Launches that a worker runs together: the one whose `run_batch` is called, and those behind it that it takes along.
// They stand in a queue, and complete together when `run_batch` returns; or in a recording, which will run them again.
#include <memory>

#include "driver/queue.h"
#include "driver/recording.h"

namespace neuron::driver {

class Batch {
 public:
  Launch& first() { return recording_ ? recording_->at(begin_) : queue_->at(begin_); }
  // The launch behind those taken. When there is none yet it is waited for, for as long as the worker would spin before
  // it parks; null when none came, when somebody waits for those taken already, and when the batch is full.
  Launch* peek();
  // Takes along what peek() has returned.
  void take();

  std::size_t size() const { return size_; }
  // Of the first one, and of the last one taken.
  std::uint64_t first_ticket() const { return first_ticket_; }
  std::uint64_t ticket() const { return first_ticket_ + size_ - 1; }

  // What the host has let go of up to the last launch taken: calls released(block, ticket) and observed(ticket), oldest
  // first.
  template <class Released, class Observed>
  void read_releases(Released&& on_released, Observed&& on_observed) {
    if (recording_)
      recording_->read_releases(first_ticket(), ticket(), on_released, on_observed);
    else
      queue_->release_log_.read(ticket(), on_released, on_observed);
  }

  // Will just these launches run again? Then what is worked out for them is worth keeping.
  bool runs_again() const { return recording_ != nullptr; }
  void prepare(std::unique_ptr<Prepared> prepared) { prepared_ = std::move(prepared); }

 private:
  friend class Queue;
  friend class Recording;
  static constexpr std::size_t kMaxBytes = Queue::kRingBytes / 4;

  Batch(Queue& queue, std::uint64_t position, std::uint64_t ticket)
      : queue_(&queue), begin_(position), first_ticket_(ticket) {
    end_ = begin_ + first().bytes;
  }
  Batch(Recording& recording, std::uint64_t index)
      : recording_(&recording), begin_(index), first_ticket_(index + 1), end_(index + 1) {}

  std::unique_ptr<Prepared> take_prepared() { return std::move(prepared_); }

  Queue* const queue_ = nullptr;
  Recording* const recording_ = nullptr;
  const std::uint64_t begin_;  // a position in the ring, or an index of the recording; so is end_
  const std::uint64_t first_ticket_;
  std::uint64_t end_;
  std::size_t size_ = 1;
  std::unique_ptr<Prepared> prepared_;
};

}  // namespace neuron::driver
