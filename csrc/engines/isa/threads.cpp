#include "engines/isa/threads.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "engines/tensor_engine.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace neuron::engines::isa {

using std::int64_t;

namespace {

thread_local int t_limit = 0;

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// Workers look for work for a moment before they sleep: the next instruction usually comes within microseconds.
constexpr int kSpins = 2000;

class Pool {
 public:
  Pool() : owner_(getpid()), workers_(std::max(1, static_cast<int>(std::thread::hardware_concurrency())) - 1) {
    for (int i = 0; i < workers_; ++i) std::thread([this] { work(); }).detach();
  }

  // Threads are not inherited by a child process: it gets a pool of its own. The memory stays, threads may use it.
  static Pool& instance() {
    static std::mutex mutex;
    static std::atomic<Pool*> pool{nullptr};
    Pool* current = pool.load(std::memory_order_acquire);
    if (current && current->owner_ == getpid()) return *current;
    const std::lock_guard lock(mutex);
    current = pool.load(std::memory_order_relaxed);
    if (!current || current->owner_ != getpid()) pool.store(current = new Pool, std::memory_order_release);
    return *current;
  }

  int threads() const { return workers_ + 1; }

  void run(int64_t ranges, void (*body)(void*, int64_t), void* context) {
    std::unique_lock lock(busy_, std::try_to_lock);
    if (!lock || workers_ == 0) {
      // Somebody else has the pool; waiting would take longer than working.
      for (int64_t i = 0; i < ranges; ++i) body(context, i);
      return;
    }
    body_ = body;
    context_ = context;
    ranges_ = ranges;
    error_ = nullptr;
    next_.store(0, std::memory_order_relaxed);
    state_.store(0, std::memory_order_release);
    generation_.fetch_add(1, std::memory_order_seq_cst);
    if (sleeping_.load(std::memory_order_seq_cst) > 0) generation_.notify_all();
    take();
    // Who has not begun by now need not: nothing is left. Only those in the middle of a range are waited for.
    state_.fetch_or(kClosed, std::memory_order_acq_rel);
    for (int spin = 0; state_.load(std::memory_order_acquire) != kClosed; ++spin) {
      pause();
      if (spin > kSpins) std::this_thread::yield();
    }
    if (error_) std::rethrow_exception(error_);
  }

 private:
  static constexpr std::uint32_t kClosed = 1u << 31;

  void take() {
    try {
      for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < ranges_;) body_(context_, i);
    } catch (...) {
      const std::lock_guard lock(error_mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }

  void work() {
    std::uint32_t seen = 0;
    while (true) {
      std::uint32_t now = generation_.load(std::memory_order_acquire);
      for (int spin = 0; now == seen && spin < kSpins; ++spin) {
        pause();
        now = generation_.load(std::memory_order_acquire);
      }
      if (now == seen) {
        sleeping_.fetch_add(1, std::memory_order_seq_cst);
        generation_.wait(seen, std::memory_order_seq_cst);
        sleeping_.fetch_sub(1, std::memory_order_relaxed);
        continue;
      }
      seen = now;
      std::uint32_t state = state_.load(std::memory_order_acquire);
      while (!(state & kClosed)) {
        if (!state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) continue;
        take();
        state_.fetch_sub(1, std::memory_order_release);
        break;
      }
    }
  }

  const pid_t owner_;
  const int workers_;
  std::mutex busy_;
  void (*body_)(void*, int64_t) = nullptr;
  void* context_ = nullptr;
  int64_t ranges_ = 0;
  std::exception_ptr error_;
  std::mutex error_mutex_;
  std::atomic<int64_t> next_{0};
  std::atomic<std::uint32_t> state_{kClosed};  // threads at work; whether others may still join them
  std::atomic<int> sleeping_{0};
  std::atomic<std::uint32_t> generation_{0};
};

}  // namespace

int threads() {
  const int all = tensor_engine_host().threads();
  return t_limit > 0 ? std::min(t_limit, all) : all;
}

ThreadLimit::ThreadLimit(int threads) : before_(t_limit) { t_limit = threads; }
ThreadLimit::~ThreadLimit() { t_limit = before_; }

void split_ranges(int64_t count, void (*body)(void*, int64_t, int64_t), void* context) {
  tensor_engine_host().parallel_for(count, 1, threads(), body, context);
}

int pool_threads() { return Pool::instance().threads(); }

void pool_parallel_for(int64_t count, int64_t grain, int threads, void (*body)(void*, int64_t, int64_t),
                       void* context) {
  const int64_t pieces = (count + grain - 1) / grain;
  const int64_t ranges = std::min<int64_t>(threads, pieces);
  if (ranges <= 1) {
    if (count > 0) body(context, 0, count);
    return;
  }
  struct Call {
    int64_t count, per_range;
    void (*body)(void*, int64_t, int64_t);
    void* context;
  } call{count, (pieces + ranges - 1) / ranges * grain, body, context};
  Pool::instance().run(
      ranges,
      [](void* c, int64_t i) {
        const Call& call = *static_cast<Call*>(c);
        const int64_t begin = i * call.per_range, end = std::min(call.count, begin + call.per_range);
        if (begin < end) call.body(call.context, begin, end);
      },
      &call);
}

}  // namespace neuron::engines::isa
