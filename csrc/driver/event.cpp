#include "driver/event.h"

#include <chrono>

namespace neuron::driver {

void Event::record(Queue& queue) {
  queue_ = &queue;
  if (auto* recording = queue.recording()) {
    mark_ = recording->mark(queue);
    return;
  }
  mark_ = {};
  if (!timed_) {
    ticket_ = queue.submitted();
    queue.observe(ticket_);
    return;
  }
  nanoseconds_ = std::make_shared<std::atomic<std::int64_t>>(0);
  ticket_ = submit(queue, "event_record", [at = nanoseconds_] {
    at->store(std::chrono::steady_clock::now().time_since_epoch().count(), std::memory_order_release);
  });
}

void Event::block(Queue& queue) const {
  if (!queue_) return;
  if (mark_.recording) return Recording::wait(queue, mark_);
  if (queue.recording())
    throw RecordingError(RecordingError::Mistake::kWaitsForOutside, "the event was recorded outside the recording");
  block_until(queue, *queue_, ticket_);
}

void Event::refuse() const {
  if (Recording::is_open(mark_.recording))
    throw RecordingError(RecordingError::Mistake::kAsksForEvent, "the event belongs to an open recording");
  throw RecordingError(RecordingError::Mistake::kIsOver, "the event belongs to a recording that is over");
}

double Event::elapsed_ms(const Event& start, const Event& end) {
  static_assert(std::chrono::steady_clock::period::den == 1'000'000'000);
  return static_cast<double>(end.nanoseconds_->load() - start.nanoseconds_->load()) * 1e-6;
}

void block_until(Queue& queue, Queue& other, std::uint64_t ticket) {
  if (&queue == &other || other.completed() >= ticket) return;
  other.observe(ticket);
  submit(queue, "event_wait", [other = &other, ticket] { other->wait(ticket); });
}

}  // namespace neuron::driver
