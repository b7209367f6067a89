#include "driver/queue.h"

#include <sys/mman.h>

#include <cassert>
#include <new>

#include "driver/batch.h"
#include "driver/recording.h"
#include "driver/relax.h"

namespace neuron::driver {

namespace {
// About 50 us: waking a parked thread costs 18-50 us, so spinning less would cost more than it saves.
constexpr int kSpins = 2000;

thread_local bool t_on_worker = false;
std::atomic<void (*)()> g_prologue{nullptr};

void skip_padding(Launch&) {}
}  // namespace

bool Queue::on_worker() { return t_on_worker; }
void Queue::set_worker_prologue(void (*prologue)()) { g_prologue.store(prologue); }

Queue::Queue(Fault& fault, int core, int id, int priority) : fault_(fault), core_(core), id_(id), priority_(priority) {
  void* p = mmap(nullptr, kRingBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  ring_ = static_cast<std::byte*>(p);
  worker_ = std::thread([this] { work(); });
}

Queue::~Queue() {
  wait_idle();
  {
    std::lock_guard lock(park_mutex_);
    stop_.store(true);
  }
  wake_worker_.notify_one();
  worker_.join();
  munmap(ring_, kRingBytes);
}

std::byte* Queue::reserve(std::size_t bytes) {
  assert(bytes <= kMaxPayload + sizeof(Launch));
  std::uint64_t head = head_.load(std::memory_order_relaxed);
  const std::size_t to_end = kRingBytes - head % kRingBytes;
  const std::size_t padding = to_end < bytes ? to_end : 0;
  for (int spins = 0; head + padding + bytes - tail_.load(std::memory_order_acquire) > kRingBytes;)
    if (++spins < kSpins)
      cpu_relax();
    else
      std::this_thread::yield();
  if (padding) {  // a launch does not wrap around: fill up to the end with an empty one that bears no ticket
    auto* pad = new (&at(head)) Launch{};
    pad->run = &skip_padding;
    pad->bytes = static_cast<std::uint32_t>(padding);
    head += padding;
    head_.store(head, std::memory_order_release);
  }
  return reinterpret_cast<std::byte*>(&at(head));
}

std::uint64_t Queue::publish(std::size_t bytes) {
  const std::uint64_t ticket = submitted_.load(std::memory_order_relaxed) + 1;
  submitted_.store(ticket, std::memory_order_release);
  head_.store(head_.load(std::memory_order_relaxed) + bytes, std::memory_order_seq_cst);
  if (parked_.load(std::memory_order_seq_cst)) {
    std::lock_guard lock(park_mutex_);
    wake_worker_.notify_one();
  }
  return ticket;
}

// Runs what stands at `position`, adds the launches that this completes to `done` and returns where to go on.
std::uint64_t Queue::run_at(std::uint64_t position, std::uint64_t& done) {
  Launch& launch = at(position);
  if (launch.run == &skip_padding) return position + launch.bytes;
  Batch batch(*this, position, done + 1);
  if (!fault_.pending()) {
    try {
      launch.run_batch ? launch.run_batch(batch) : launch.run(launch);
    } catch (...) {  // whatever it is, it must reach the host thread that synchronises next
      fault_.raise(std::current_exception());
    }
  }
  for (; position != batch.end_; position += at(position).bytes)
    if (auto* drop = at(position).drop) drop(at(position));
  done += batch.size();
  return position;
}

void Queue::work() {
  t_on_worker = true;
  bool prepared = false;
  std::uint64_t tail = 0, done = 0;
  for (;;) {
    for (int spins = 0; head_.load(std::memory_order_acquire) == tail;) {
      if (++spins < kSpins) {
        cpu_relax();
        continue;
      }
      std::unique_lock lock(park_mutex_);
      parked_.store(true, std::memory_order_seq_cst);
      wake_worker_.wait(lock, [&] { return stop_.load() || head_.load(std::memory_order_seq_cst) != tail; });
      parked_.store(false, std::memory_order_relaxed);
      if (stop_.load() && head_.load() == tail) return;
    }
    if (!prepared) {
      if (auto* prologue = g_prologue.load()) prologue();
      prepared = true;
    }
    tail = run_at(tail, done);
    tail_.store(tail, std::memory_order_release);
    completed_.store(done, std::memory_order_seq_cst);
    if (waiters_.load(std::memory_order_seq_cst)) {
      std::lock_guard lock(park_mutex_);
      wake_waiters_.notify_all();
    }
  }
}

void Queue::record_into(Recording* recording) {
  std::lock_guard lock(producer_);
  recording_.store(recording, std::memory_order_release);
}

void Queue::observe_all() {
  if (auto* recording = this->recording())
    recording->observe();
  else
    observe(submitted());
}

void Queue::hurry(std::uint64_t ticket) {
  std::uint64_t seen = hurried_.load(std::memory_order_relaxed);
  while (seen < ticket && !hurried_.compare_exchange_weak(seen, ticket, std::memory_order_relaxed)) {
  }
}

Launch* Batch::peek() {
  if (recording_) return end_ < recording_->size() ? &recording_->at(end_) : nullptr;
  if (end_ - begin_ >= kMaxBytes) return nullptr;
  for (int spins = 0; queue_->head_.load(std::memory_order_acquire) == end_; ++spins) {
    if (spins == kSpins || queue_->hurried_.load(std::memory_order_relaxed) >= ticket() ||
        queue_->stop_.load(std::memory_order_relaxed))
      return nullptr;
    cpu_relax();
  }
  Launch& next = queue_->at(end_);
  if (next.run != &skip_padding) return &next;
  end_ += next.bytes;
  return peek();
}

void Batch::take() {
  end_ += recording_ ? 1 : queue_->at(end_).bytes;
  ++size_;
}

void Queue::wait(std::uint64_t ticket) {
  if (completed() >= ticket) return;
  hurry(ticket);
  for (int spins = 0; spins < kSpins; ++spins) {
    if (completed() >= ticket) return;
    cpu_relax();
  }
  std::unique_lock lock(park_mutex_);
  waiters_.fetch_add(1, std::memory_order_seq_cst);
  wake_waiters_.wait(lock, [&] { return completed_.load(std::memory_order_seq_cst) >= ticket; });
  waiters_.fetch_sub(1, std::memory_order_relaxed);
}

Submission::Submission(Queue& queue) : queue_(queue), lock_(queue.producer_), recording_(queue.recording()) {
  if (recording_) [[unlikely]]
    recording_lock_ = std::unique_lock(recording_->mutex_);
}

std::byte* Submission::reserve(std::size_t payload_bytes) {
  const std::size_t bytes = Launch::bytes_for(payload_bytes);
  reserved_ = recording_ ? recording_->reserve(bytes) : queue_.reserve(bytes);
  return reserved_ + sizeof(Launch);
}

std::uint64_t Submission::commit(Launch::Fn run, Launch::Fn drop, const char* name, std::size_t payload_bytes,
                                 Launch::BatchFn run_batch) {
  auto* launch = new (reserved_) Launch{};
  launch->run = run;
  launch->drop = drop;
  launch->run_batch = run_batch;
  launch->name = name;
  launch->bytes = static_cast<std::uint32_t>(Launch::bytes_for(payload_bytes));
  return recording_ ? recording_->append(queue_, *launch) : queue_.publish(launch->bytes);
}

Exclusive::Exclusive(Queue& queue) : lock_(queue.producer_) {
  queue.wait_idle();
  queue.fault().rethrow_if_pending();
}

}  // namespace neuron::driver
