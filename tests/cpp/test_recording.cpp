// Tests of recordings: launches that queues keep instead of running them.
#include <array>
#include <atomic>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "driver/batch.h"
#include "driver/event.h"
#include "driver/fault.h"
#include "driver/queue.h"
#include "driver/recording.h"

using namespace neuron::driver;

namespace {

int g_passed = 0, g_failed = 0;

void check(bool ok, const char* what, int line) {
  ++(ok ? g_passed : g_failed);
  if (!ok) std::fprintf(stderr, "test_recording.cpp:%d: failed: %s\n", line, what);
}
#define CHECK(condition) check((condition), #condition, __LINE__)

template <class F>
bool refused(RecordingError::Mistake mistake, F f) {
  try {
    f();
  } catch (const RecordingError& error) {
    return error.mistake == mistake;
  }
  return false;
}

using Seen = std::vector<int>;

void note(Queue& queue, Seen& seen, int i) {
  submit(queue, "note", [&seen, i] { seen.push_back(i); });
}

void launches_are_kept_and_run_again() {
  Fault fault;
  Queue queue(fault, 0, 0, 0);
  Seen seen;
  Recording recording;
  note(queue, seen, 0);
  recording.open(queue);
  CHECK(Recording::any_open());
  for (int i = 1; i <= 3; ++i) note(queue, seen, i);
  CHECK(queue.submitted() == 1);
  CHECK(recording.close());
  CHECK(!Recording::any_open());
  note(queue, seen, 4);
  queue.wait_idle();
  CHECK((seen == Seen{0, 4}));
  for (int run = 0; run < 2; ++run) submit(queue, "replay", [&] { recording.run(); });
  queue.wait_idle();
  CHECK((seen == Seen{0, 4, 1, 2, 3, 1, 2, 3}));
}

void payloads_stay_in_place_and_are_dropped_once() {
  Fault fault;
  Queue queue(fault, 0, 0, 0);
  const auto counter = std::make_shared<int>(0);
  {
    Recording recording;
    recording.open(queue);
    for (int i = 0; i < 500; ++i) {
      std::array<std::byte, 3000> bytes;
      bytes.fill(static_cast<std::byte>(i));
      submit(queue, "large", [bytes, counter, i] { *counter += bytes[0] == bytes[2999] && bytes[7] == std::byte(i); });
    }
    recording.close();
    CHECK(counter.use_count() == 501);
    recording.run();
    CHECK(*counter == 500);
    CHECK(counter.use_count() == 501);
  }
  CHECK(counter.use_count() == 1);
}

void a_failed_run_can_be_repeated() {
  Fault fault;
  Queue queue(fault, 0, 0, 0);
  Seen seen;
  bool fail = true;
  Recording recording;
  recording.open(queue);
  note(queue, seen, 1);
  submit(queue, "maybe", [&] {
    if (fail) throw std::runtime_error("failed");
  });
  note(queue, seen, 2);
  recording.close();
  submit(queue, "replay", [&] { recording.run(); });
  queue.wait_idle();
  CHECK(fault.take() != nullptr);
  fail = false;
  submit(queue, "replay", [&] { recording.run(); });
  queue.wait_idle();
  CHECK((seen == Seen{1, 1, 2}));
}

// Batches take what stands behind them, once; later runs do what they have prepared.
int g_batches, g_prepared;
std::vector<std::uint64_t> g_released;

void run_together(Batch& batch) {
  ++g_batches;
  while (Launch* next = batch.peek()) {
    if (next->run_batch != &run_together || batch.size() == 3) break;
    batch.take();
  }
  batch.read_releases([](const void*, std::uint64_t ticket) { g_released.push_back(ticket); },
                      [](std::uint64_t ticket) { g_released.push_back(100 + ticket); });
  struct Count final : Prepared {
    void run() override { ++g_prepared; }
  };
  if (batch.runs_again()) batch.prepare(std::make_unique<Count>());
}

void launch_batched(Queue& queue) {
  Submission submission(queue);
  submission.reserve(8);
  submission.commit([](Launch&) {}, nullptr, "batched", 8, &run_together);
}

void batches_are_prepared_once() {
  Fault fault;
  Queue queue(fault, 0, 0, 0);
  Seen seen;
  Recording recording;
  g_batches = g_prepared = 0;
  g_released.clear();
  recording.open(queue);
  for (int i = 0; i < 4; ++i) {
    launch_batched(queue);
    recording.release(&seen);
  }
  note(queue, seen, 1);
  queue.observe_all();
  launch_batched(queue);
  recording.release(&seen);
  recording.close();
  recording.run();
  CHECK(g_batches == 3);
  CHECK(g_prepared == 0);
  CHECK((g_released == std::vector<std::uint64_t>{1, 2, 3, 4, 6}));
  recording.run();
  CHECK(g_batches == 3);
  CHECK(g_prepared == 3);
  CHECK((seen == Seen{1, 1}));
}

void what_will_be_read_is_observed() {
  Fault fault;
  Queue queue(fault, 0, 0, 0);
  Recording recording;
  g_released.clear();
  recording.open(queue);
  launch_batched(queue);
  queue.observe_all();
  recording.release(&queue);
  recording.close();
  recording.run();
  CHECK((g_released == std::vector<std::uint64_t>{101, 1}));
}

void queues_join_through_events() {
  Fault fault;
  Queue a(fault, 0, 0, 0), b(fault, 0, 1, 0), c(fault, 0, 2, 0);
  Seen seen;
  Recording recording;
  recording.open(a);
  note(a, seen, 1);
  Event fork(false), join(false), there(false);
  fork.record(a);
  fork.block(b);
  CHECK(b.recording() == &recording);
  note(b, seen, 2);
  there.record(b);
  there.block(c);
  note(c, seen, 3);
  join.record(c);
  join.block(a);  // behind c, and so behind b
  note(a, seen, 4);
  CHECK(recording.close());
  CHECK(!b.recording() && !c.recording());
  recording.run();
  CHECK((seen == Seen{1, 2, 3, 4}));
}

void queues_that_are_not_waited_for_are_told() {
  Fault fault;
  Queue a(fault, 0, 0, 0), b(fault, 0, 1, 0);
  Seen seen;
  Recording recording;
  recording.open(a);
  Event fork(true), join(false);
  fork.record(a);
  fork.block(b);
  note(b, seen, 1);
  join.record(b);
  join.block(a);
  note(b, seen, 2);
  CHECK(!recording.close());
}

void events_know_their_recording() {
  using Mistake = RecordingError::Mistake;
  Fault fault;
  Queue a(fault, 0, 0, 0), b(fault, 0, 1, 0);
  Event outside(false), inside(false), never(false);
  outside.record(a);
  Recording first, second;
  first.open(a);
  second.open(b);
  inside.record(a);
  CHECK(refused(Mistake::kWaitsForOutside, [&] { outside.block(a); }));
  CHECK(refused(Mistake::kWaitsForOther, [&] { inside.block(b); }));
  CHECK(refused(Mistake::kAsksForEvent, [&] { inside.done(); }));
  CHECK(refused(Mistake::kAsksForEvent, [&] { inside.wait(); }));
  never.block(a);
  first.close();
  second.close();
  CHECK(refused(Mistake::kIsOver, [&] { inside.wait(); }));
  CHECK(refused(Mistake::kIsOver, [&] { inside.block(b); }));
  inside.record(b);
  inside.wait();
  CHECK(inside.done());
}

void several_hosts_record_into_one() {
  Fault fault;
  Queue queue(fault, 0, 0, 0);
  std::atomic<int> ran{0};
  Recording recording;
  recording.open(queue);
  std::vector<std::thread> hosts;
  for (int h = 0; h < 4; ++h)
    hosts.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        submit(queue, "count", [&] { ++ran; });
        recording.release(&ran);
      }
    });
  for (auto& host : hosts) host.join();
  recording.close();
  CHECK(recording.size() == 4000);
  recording.run();
  CHECK(ran == 4000);
}

}  // namespace

int main() {
  launches_are_kept_and_run_again();
  payloads_stay_in_place_and_are_dropped_once();
  a_failed_run_can_be_repeated();
  batches_are_prepared_once();
  what_will_be_read_is_observed();
  queues_join_through_events();
  queues_that_are_not_waited_for_are_told();
  events_know_their_recording();
  several_hosts_record_into_one();
  std::printf("%d passed, %d failed\n", g_passed, g_failed);
  return g_failed ? 1 : 0;
}
