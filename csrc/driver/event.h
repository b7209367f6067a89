#pragma once
// A point in a queue. Recording costs no launch unless the event is timed.
#include <atomic>
#include <cstdint>
#include <memory>

#include "driver/queue.h"
#include "driver/recording.h"

namespace neuron::driver {

class Event {
 public:
  explicit Event(bool timed) : timed_(timed) {}

  void record(Queue& queue);
  bool recorded() const { return queue_ != nullptr; }
  bool timed() const { return timed_; }
  Queue* queue() const { return queue_; }

  // done(), wait() and block() throw RecordingError where a recording does not allow them.
  // True as well when the event was never recorded, as torch's events have it.
  bool done() const {
    if (mark_.recording) [[unlikely]]
      refuse();
    if (!queue_ || queue_->completed() >= ticket_) return true;
    queue_->hurry(ticket_);
    return false;
  }
  void wait() const {
    if (mark_.recording) [[unlikely]]
      refuse();
    if (queue_) queue_->wait(ticket_);
  }
  // Launches behind this call on `queue` start only when the event is done.
  void block(Queue& queue) const;
  // Id of the recording that the event was last recorded in, open or not; 0: in none.
  std::uint64_t recording() const { return mark_.recording; }

  // Wall time between two timed events that are done, in milliseconds.
  static double elapsed_ms(const Event& start, const Event& end);

 private:
  [[noreturn]] void refuse() const;

  bool timed_;
  Queue* queue_ = nullptr;
  std::uint64_t ticket_ = 0;
  std::shared_ptr<std::atomic<std::int64_t>> nanoseconds_;
  RecordingMark mark_;  // instead of a ticket, of a queue that was recording
};

// Launches behind this call on `queue` start only when `other` has completed `ticket`.
void block_until(Queue& queue, Queue& other, std::uint64_t ticket);

}  // namespace neuron::driver
