#pragma once
// Launches that are kept instead of run: what queues are given while they record. A recording runs as a whole, any
// number of times, on the thread of a worker.
//
// Several queues may record into one: a queue joins when it has to wait for an event of the recording. Launches are
// kept in the order in which the host made them, one of those that streams and events allow.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "driver/launch.h"

namespace neuron::driver {

class Queue;
class Recording;

// What streams and events cannot do because of a recording; the higher floors put it into words.
struct RecordingError : std::runtime_error {
  enum class Mistake {
    kWaitsForOutside,  // a recording queue was to wait for launches that are not recorded
    kWaitsForOther,    // ... for those of another recording
    kIsOver,           // an event of a recording was to be used after its end
    kAsksForEvent,     // an event of an open recording was to be waited for by the host, or asked
  };
  RecordingError(Mistake mistake, const char* what) : std::runtime_error(what), mistake(mistake) {}
  Mistake mistake;
};

// A point in a recording, as an event keeps it: how far each of its queues had come.
struct RecordingMark {
  std::uint64_t recording = 0;  // its id; 0: no point in a recording
  std::vector<std::uint64_t> seen;
};

// What runs instead of some launches of a recording from the second run on, when all that stays the same is worked out.
class Prepared {
 public:
  virtual ~Prepared() = default;
  virtual void run() = 0;
};

class Recording {
 public:
  Recording();
  virtual ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  std::uint64_t id() const { return id_; }
  std::size_t size() const { return count_.load(std::memory_order_acquire); }

  // -- While it is open --
  // Is any open in this process? For fast paths.
  static bool any_open() { return open_count_.load(std::memory_order_relaxed) != 0; }

  // `origin` records from now on.
  void open(Queue& origin);
  // All its queues run their launches again. True when the origin has waited for all that other queues have recorded.
  bool close();
  bool is_open() const { return open_.load(std::memory_order_acquire); }
  Queue* origin() const { return origin_; }
  // The host has let go of a block that only launches of this recording use.
  void release(const void* block);
  // What is released from now on will still be read by a launch that is not recorded yet.
  void observe();

  // -- Once it is closed --
  // Everything in order, on the calling thread. One run at a time.
  void run();
  Launch& at(std::size_t i) { return *launches_[i]; }

  // For events.
  RecordingMark mark(Queue& queue);
  // `queue` waits for the point: it joins when it does not record yet. Throws RecordingError.
  static void wait(Queue& queue, const RecordingMark& mark);
  static bool is_open(std::uint64_t id);

 protected:
  // What the destructor does: for those who must do something after it.
  void drop_launches();

 private:
  friend class Submission;
  friend class Batch;

  struct Member {
    Queue* queue;
    std::uint64_t last = 0;           // number of its last launch, from 1
    std::vector<std::uint64_t> seen;  // by member: the last launch that this one's next launch is ordered behind
  };
  struct Release {
    const void* block;  // null: an observation
    std::uint64_t ticket;
  };
  struct Step {
    std::size_t first, count;
    std::unique_ptr<Prepared> prepared;
  };

  std::byte* reserve(std::size_t bytes);  // under mutex_, as the next one
  std::uint64_t append(Queue& queue, Launch& launch);
  Member& member(const Queue& queue);
  void join(Queue& queue, const std::vector<std::uint64_t>& seen);
  static void merge(std::vector<std::uint64_t>& into, const std::vector<std::uint64_t>& seen);
  void run_first();
  // Those of the launches `first` to `last`, both counted from 1.
  template <class Released, class Observed>
  void read_releases(std::uint64_t first, std::uint64_t last, Released&& on_released, Observed&& on_observed) const;

  const std::uint64_t id_;
  std::mutex mutex_;  // held while a launch is being written
  std::atomic<bool> open_{false};
  Queue* origin_ = nullptr;
  std::vector<Member> members_;
  std::vector<Launch*> launches_;
  std::atomic<std::size_t> count_{0};
  std::mutex releases_mutex_;
  std::vector<Release> releases_;  // by ticket

  struct Unaligned {
    void operator()(std::byte* p) const;
  };
  std::vector<std::unique_ptr<std::byte, Unaligned>> chunks_;
  std::byte* free_ = nullptr;
  std::size_t free_bytes_ = 0;

  std::vector<Step> steps_;
  bool prepared_ = false;

  inline static std::atomic<int> open_count_{0};
};

template <class Released, class Observed>
void Recording::read_releases(std::uint64_t first, std::uint64_t last, Released&& on_released,
                              Observed&& on_observed) const {
  std::size_t low = 0, high = releases_.size();
  while (low < high) {
    const std::size_t middle = low + (high - low) / 2;
    if (releases_[middle].ticket < first)
      low = middle + 1;
    else
      high = middle;
  }
  for (; low < releases_.size() && releases_[low].ticket <= last; ++low) {
    const Release& release = releases_[low];
    if (release.block)
      on_released(release.block, release.ticket);
    else
      on_observed(release.ticket);
  }
}

}  // namespace neuron::driver
