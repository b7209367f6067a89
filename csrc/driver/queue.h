#pragma once
// A queue of one core: launches run in order on a worker thread of their own, while the host runs ahead.
//
// Launches lie in a ring of bytes, each as long as its payload, so that a small op touches few cache lines. A ticket is
// the number of a launch in its queue, from 1; `completed() >= ticket` means that the launch has run (or was dropped
// because the core was in the error state).
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "driver/fault.h"
#include "driver/launch.h"
#include "driver/release_log.h"

namespace neuron::driver {

class Recording;

class Queue {
 public:
  static constexpr std::size_t kRingBytes = std::size_t{1} << 20;
  static constexpr std::size_t kMaxPayload = kRingBytes / 4;

  Queue(Fault& fault, int core, int id, int priority);
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  int core() const { return core_; }
  int id() const { return id_; }
  int priority() const { return priority_; }
  Fault& fault() { return fault_; }

  std::uint64_t submitted() const { return submitted_.load(std::memory_order_acquire); }
  std::uint64_t completed() const { return completed_.load(std::memory_order_acquire); }
  bool idle() const { return completed() == submitted(); }

  // Blocks the calling thread; does not report errors. A worker may wait for another queue, never for its own.
  void wait(std::uint64_t ticket);
  void wait_idle() { wait(submitted()); }
  // Somebody wants to see `ticket` completed: the worker does not wait for more launches to run with it.
  void hurry(std::uint64_t ticket);

  // Are releases of blocks worth telling? Off unless launches of this process run in batches.
  static void keep_release_log(bool keep) { keeps_release_log_.store(keep, std::memory_order_relaxed); }
  // The host has let go of a block that only launches of this queue use.
  void release(const void* block) {
    if (keeps_release_log_.load(std::memory_order_relaxed)) release_log_.released(block, submitted());
  }
  // Another queue is going to read what launches up to `ticket` write.
  void observe(std::uint64_t ticket) {
    if (keeps_release_log_.load(std::memory_order_relaxed)) release_log_.observed(ticket);
  }
  // The same for all that was launched, or recorded, so far.
  void observe_all();
  // The recording that takes this queue's launches in its place; null, nearly always.
  Recording* recording() const { return recording_.load(std::memory_order_acquire); }

  // Is the calling thread the worker of some queue?
  static bool on_worker();
  // The higher floor prepares each worker thread with this, once, before its first launch.
  static void set_worker_prologue(void (*prologue)());

 private:
  friend class Submission;
  friend class Exclusive;
  friend class Batch;
  friend class Recording;

  void record_into(Recording* recording);  // null: launches run again
  std::byte* reserve(std::size_t bytes);   // under producer_
  std::uint64_t publish(std::size_t bytes);
  void work();
  std::uint64_t run_at(std::uint64_t position, std::uint64_t& done);
  Launch& at(std::uint64_t position) { return *reinterpret_cast<Launch*>(ring_ + position % kRingBytes); }

  Fault& fault_;
  const int core_, id_, priority_;
  std::byte* ring_;
  std::mutex producer_;                         // held while a launch is being written, and by exclusive sections
  std::atomic<Recording*> recording_{nullptr};  // changes under producer_
  std::thread worker_;

  alignas(64) std::atomic<std::uint64_t> head_{0};  // bytes written, by producers
  std::atomic<std::uint64_t> submitted_{0};
  alignas(64) std::atomic<std::uint64_t> tail_{0};  // bytes consumed, by the worker
  std::atomic<std::uint64_t> completed_{0};
  alignas(64) std::atomic<bool> parked_{false};
  std::atomic<bool> stop_{false};
  std::atomic<int> waiters_{0};
  std::atomic<std::uint64_t> hurried_{0};
  std::mutex park_mutex_;
  std::condition_variable wake_worker_, wake_waiters_;
  ReleaseLog release_log_;
  inline static std::atomic<bool> keeps_release_log_{false};
};

// One launch being written. Holds the producer lock of its queue; without commit() nothing is launched. While the queue
// records, the launch goes to the recording.
class Submission {
 public:
  explicit Submission(Queue& queue);

  // Room for a payload of at most Queue::kMaxPayload bytes; blocks while the ring is full.
  std::byte* reserve(std::size_t payload_bytes);
  // Publishes the launch with the first `payload_bytes` of what was reserved; returns its ticket, which for a recorded
  // launch is its number in the recording: nobody can wait for it.
  std::uint64_t commit(Launch::Fn run, Launch::Fn drop, const char* name, std::size_t payload_bytes,
                       Launch::BatchFn run_batch = nullptr);

 private:
  Queue& queue_;
  std::unique_lock<std::mutex> lock_, recording_lock_;
  Recording* recording_;
  std::byte* reserved_ = nullptr;
};

// While it lives the queue is idle and stays so: for work that must run on the calling thread, in stream order.
// Throws the core's pending error, if there is one. Not for queues that record.
class Exclusive {
 public:
  explicit Exclusive(Queue& queue);

 private:
  std::unique_lock<std::mutex> lock_;
};

// Convenience for launches whose payload is one object: `run(T&)` is called on the worker, then T is destroyed.
template <class T>
std::uint64_t submit(Queue& queue, const char* name, T&& task) {
  using Task = std::decay_t<T>;
  static_assert(sizeof(Task) <= Queue::kMaxPayload && alignof(Task) <= alignof(Launch));
  Submission submission(queue);
  new (submission.reserve(sizeof(Task))) Task(std::forward<T>(task));
  return submission.commit([](Launch& l) { (*reinterpret_cast<Task*>(l.payload()))(); },
                           [](Launch& l) { reinterpret_cast<Task*>(l.payload())->~Task(); }, name, sizeof(Task));
}

}  // namespace neuron::driver
