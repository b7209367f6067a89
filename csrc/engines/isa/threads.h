#pragma once
// Threads of the simulator. Work goes to the pool of the floor above where there is one (tensor_engine.h), else to a
// small pool of our own whose idle threads sleep.
#include <cstdint>

namespace neuron::engines::isa {

// Below this many elements the calling thread alone is faster than waking another.
constexpr std::int64_t kElementsWorthThreads = 1 << 15;

// Threads that one instruction may use on the calling thread's behalf; 0 asks for all.
int threads();
class ThreadLimit {
 public:
  explicit ThreadLimit(int threads);
  ~ThreadLimit();
  ThreadLimit(const ThreadLimit&) = delete;
  ThreadLimit& operator=(const ThreadLimit&) = delete;

 private:
  int before_;
};

// body(context, begin, end) on disjoint ranges of [0, count).
void split_ranges(std::int64_t count, void (*body)(void*, std::int64_t, std::int64_t), void* context);

// What the engines' host is without the floor above; the contract is that of ParallelFor.
void pool_parallel_for(std::int64_t count, std::int64_t grain, int threads,
                       void (*body)(void* context, std::int64_t begin, std::int64_t end), void* context);
int pool_threads();

// Work of one instruction, dealt to threads by partitions or blocks: body(begin, end) on disjoint ranges of [0, count).
// `elements` is how much work it is; little work stays on the calling thread.
template <class Body>
void split(std::int64_t count, std::int64_t elements, const Body& body) {
  if (elements < kElementsWorthThreads || count < 2 || threads() < 2) {
    body(std::int64_t{0}, count);
    return;
  }
  split_ranges(
      count,
      [](void* context, std::int64_t begin, std::int64_t end) { (*static_cast<const Body*>(context))(begin, end); },
      const_cast<Body*>(&body));
}

}  // namespace neuron::engines::isa
