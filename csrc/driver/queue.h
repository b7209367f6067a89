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

namespace neuron::driver {

struct alignas(64) Launch {
  using Fn = void (*)(Launch&);
  Fn run = nullptr;   // may throw: the core enters the error state
  Fn drop = nullptr;  // releases what the payload owns; called once, after run or instead of it; may be null
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

  // Is the calling thread the worker of some queue?
  static bool on_worker();
  // The higher floor prepares each worker thread with this, once, before its first launch.
  static void set_worker_prologue(void (*prologue)());

 private:
  friend class Submission;
  friend class Exclusive;

  std::byte* reserve(std::size_t bytes);  // under producer_
  std::uint64_t publish(std::size_t bytes);
  void work();
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
  std::mutex park_mutex_;
  std::condition_variable wake_worker_, wake_waiters_;
};

// One launch being written. Holds the producer lock of its queue; without commit() nothing is launched.
class Submission {
 public:
  explicit Submission(Queue& queue) : queue_(queue), lock_(queue.producer_) {}

  // Room for a payload of at most Queue::kMaxPayload bytes; blocks while the ring is full.
  std::byte* reserve(std::size_t payload_bytes);
  // Publishes the launch with the first `payload_bytes` of what was reserved; returns its ticket.
  std::uint64_t commit(Launch::Fn run, Launch::Fn drop, const char* name, std::size_t payload_bytes);

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
