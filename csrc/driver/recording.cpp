#include "driver/recording.h"

#include <algorithm>
#include <new>

#include "driver/batch.h"
#include "driver/queue.h"

namespace neuron::driver {

namespace {

constexpr std::size_t kChunk = std::size_t{64} << 10;

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1) + 1;
}

// The open recordings: few, and seldom more than one.
struct Open {
  std::mutex mutex;
  std::vector<Recording*> recordings;
};
Open& all_open() {
  static auto* const open = new Open;
  return *open;
}
Recording* find_open(std::uint64_t id) {
  std::lock_guard lock(all_open().mutex);
  for (auto* recording : all_open().recordings)
    if (recording->id() == id) return recording;
  return nullptr;
}

}  // namespace

void Recording::Unaligned::operator()(std::byte* p) const { ::operator delete(p, std::align_val_t(alignof(Launch))); }

Recording::Recording() : id_(next_id()) {}

Recording::~Recording() {
  close();
  drop_launches();
}

void Recording::drop_launches() {
  steps_.clear();
  for (auto* launch : launches_)
    if (launch->drop) launch->drop(*launch);
  launches_.clear();
}

void Recording::open(Queue& origin) {
  {
    std::lock_guard lock(all_open().mutex);
    all_open().recordings.push_back(this);
  }
  open_count_.fetch_add(1);
  open_.store(true, std::memory_order_release);
  origin_ = &origin;
  join(origin, {});
}

bool Recording::close() {
  if (!open_.exchange(false)) return true;
  std::vector<Member> members;
  {
    std::lock_guard lock(mutex_);
    members = members_;
  }
  for (const auto& m : members) m.queue->record_into(nullptr);
  open_count_.fetch_sub(1);
  {
    std::lock_guard lock(all_open().mutex);
    std::erase(all_open().recordings, this);
  }
  const auto& seen = members.front().seen;
  for (std::size_t i = 1; i < members.size(); ++i)
    if (members[i].last > (i < seen.size() ? seen[i] : 0)) return false;
  return true;
}

void Recording::join(Queue& queue, const std::vector<std::uint64_t>& seen) {
  {
    std::lock_guard lock(mutex_);
    members_.push_back({&queue, 0, seen});
  }
  queue.record_into(this);
}

Recording::Member& Recording::member(const Queue& queue) {
  return *std::find_if(members_.begin(), members_.end(), [&](const Member& m) { return m.queue == &queue; });
}

void Recording::merge(std::vector<std::uint64_t>& into, const std::vector<std::uint64_t>& seen) {
  if (into.size() < seen.size()) into.resize(seen.size());
  for (std::size_t i = 0; i < seen.size(); ++i) into[i] = std::max(into[i], seen[i]);
}

RecordingMark Recording::mark(Queue& queue) {
  std::lock_guard lock(mutex_);
  return {id_, member(queue).seen};
}

bool Recording::is_open(std::uint64_t id) { return find_open(id) != nullptr; }

void Recording::wait(Queue& queue, const RecordingMark& mark) {
  using Mistake = RecordingError::Mistake;
  Recording* recording = find_open(mark.recording);
  Recording* own = queue.recording();
  if (!recording) throw RecordingError(Mistake::kIsOver, "the event belongs to a recording that is over");
  if (own && own != recording) throw RecordingError(Mistake::kWaitsForOther, "the event belongs to another recording");
  if (!own) return recording->join(queue, mark.seen);
  std::lock_guard lock(recording->mutex_);
  merge(recording->member(queue).seen, mark.seen);
}

std::byte* Recording::reserve(std::size_t bytes) {
  if (free_bytes_ < bytes) {
    free_bytes_ = std::max(bytes, kChunk);
    chunks_.emplace_back(static_cast<std::byte*>(::operator new(free_bytes_, std::align_val_t(alignof(Launch)))));
    free_ = chunks_.back().get();
  }
  return free_;
}

std::uint64_t Recording::append(Queue& queue, Launch& launch) {
  free_ += launch.bytes;
  free_bytes_ -= launch.bytes;
  launches_.push_back(&launch);
  const std::uint64_t number = launches_.size();
  Member& m = member(queue);
  const auto index = static_cast<std::size_t>(&m - members_.data());
  if (m.seen.size() <= index) m.seen.resize(index + 1);
  m.last = m.seen[index] = number;
  count_.store(number, std::memory_order_release);
  return number;
}

void Recording::release(const void* block) {
  std::lock_guard lock(releases_mutex_);
  releases_.push_back({block, size()});
}

void Recording::observe() {
  std::lock_guard lock(releases_mutex_);
  releases_.push_back({nullptr, size()});
}

// Runs are the same each time, so what the first one finds out about batches holds for all.
void Recording::run_first() {
  steps_.clear();  // of a run that has failed
  for (std::size_t i = 0; i < launches_.size(); i += steps_.back().count) {
    Launch& launch = *launches_[i];
    Step step{i, 1, nullptr};
    if (launch.run_batch) {
      Batch batch(*this, i);
      launch.run_batch(batch);
      step.count = batch.size();
      step.prepared = batch.take_prepared();
    } else {
      launch.run(launch);
    }
    steps_.push_back(std::move(step));
  }
  prepared_ = true;
}

void Recording::run() {
  if (!prepared_) return run_first();
  for (auto& step : steps_) {
    Launch& launch = *launches_[step.first];
    if (step.prepared) {
      step.prepared->run();
    } else if (step.count == 1) {
      launch.run(launch);
    } else {
      Batch batch(*this, step.first);
      launch.run_batch(batch);
    }
  }
}

}  // namespace neuron::driver
