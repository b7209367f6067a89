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
#include "driver/release_log.h"

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
};

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
  ReleaseLog& release_log() { return release_log_; }

  // Is the calling thread the worker of some queue?
  static bool on_worker();
  // The higher floor prepares each worker thread with this, once, before its first launch.
  static void set_worker_prologue(void (*prologue)());

 private:
  friend class Submission;
  friend class Exclusive;
  friend class Batch;

  std::byte* reserve(std::size_t bytes);  // under producer_
  std::uint64_t publish(std::size_t bytes);
  void work();
  std::uint64_t run_at(std::uint64_t position, std::uint64_t& done);
  Launch& at(std::uint64_t position) { return *reinterpret_cast<Launch*>(ring_ + position % kRingBytes); }

  Fault& fault_;
  const int core_, id_, priority_;
  std::byte* ring_;
  std::mutex producer_;  // held while a launch is being written, and by exclusive sections
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

// Launches that a worker runs together: the one whose `run_batch` is called, and those behind it that it takes along.
// They complete together, when `run_batch` returns.
class Batch {
 public:
  Launch& first() { return queue_.at(begin_); }
  // The launch behind those taken. When there is none yet it is waited for, for as long as the worker would spin before
  // it parks; null when none came, when somebody waits for those taken already, and when the batch is full.
  Launch* peek();
  // Takes along what peek() has returned.
  void take();

  std::size_t size() const { return size_; }
  // Of the first one, and of the last one taken.
  std::uint64_t first_ticket() const { return first_ticket_; }
  std::uint64_t ticket() const { return first_ticket_ + size_ - 1; }
  ReleaseLog& release_log() { return queue_.release_log_; }

 private:
  friend class Queue;
  static constexpr std::size_t kMaxBytes = Queue::kRingBytes / 4;

  Batch(Queue& queue, std::uint64_t position, std::uint64_t ticket)
      : queue_(queue), begin_(position), first_ticket_(ticket) {
    end_ = begin_ + first().bytes;
  }

  Queue& queue_;
  const std::uint64_t begin_;
  const std::uint64_t first_ticket_;
  std::uint64_t end_;
  std::size_t size_ = 1;
};

// One launch being written. Holds the producer lock of its queue; without commit() nothing is launched.
class Submission {
 public:
  explicit Submission(Queue& queue) : queue_(queue), lock_(queue.producer_) {}

  // Room for a payload of at most Queue::kMaxPayload bytes; blocks while the ring is full.
  std::byte* reserve(std::size_t payload_bytes);
  // Publishes the launch with the first `payload_bytes` of what was reserved; returns its ticket.
  std::uint64_t commit(Launch::Fn run, Launch::Fn drop, const char* name, std::size_t payload_bytes,
                       Launch::BatchFn run_batch = nullptr);

 private:
  Queue& queue_;
  std::unique_lock<std::mutex> lock_;
};

// While it lives the queue is idle and stays so: for work that must run on the calling thread, in stream order.
// Throws the core's pending error, if there is one.
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
