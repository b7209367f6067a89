// Tests of the emulated machine below PyTorch: queues, events, faults, memory.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "driver/event.h"
#include "driver/fault.h"
#include "driver/hbm.h"
#include "driver/instance.h"
#include "driver/machine.h"
#include "driver/queue.h"

using namespace neuron::driver;

namespace {

int g_passed = 0, g_failed = 0;

void check(bool ok, const char* what, int line) {
  ++(ok ? g_passed : g_failed);
  if (!ok) std::fprintf(stderr, "test_driver.cpp:%d: failed: %s\n", line, what);
}
#define CHECK(condition) check((condition), #condition, __LINE__)

template <class E, class F>
bool throws(F f) {
  try {
    f();
  } catch (const E&) {
    return true;
  }
  return false;
}

// Keeps a queue busy until opened.
struct Gate {
  std::atomic<bool> open{false};
  void hold(Queue& queue) {
    submit(queue, "gate", [this] {
      while (!open.load()) std::this_thread::yield();
    });
  }
};

void launches_run_in_order() {
  Fault fault;
  Queue queue(fault, 0, 0, 0);
  std::vector<int> seen;
  std::uint64_t last = 0;
  for (int i = 0; i < 10000; ++i) last = submit(queue, "append", [&seen, i] { seen.push_back(i); });
  queue.wait(last);
  CHECK(last == 10000);
  CHECK(seen.size() == 10000);
  bool ordered = true;
  for (int i = 0; i < static_cast<int>(seen.size()); ++i) ordered &= seen[static_cast<std::size_t>(i)] == i;
  CHECK(ordered);
  CHECK(queue.idle());
}

// Payloads of random sizes pass the end of the ring many times; some leave a rest that only padding can fill.
void ring_wraps_around() {
  Fault fault;
  Queue queue(fault, 0, 0, 0);
  std::mt19937 random(7);
  static std::atomic<std::uint64_t> bytes, bad;
  bytes = bad = 0;
  std::uint64_t sent = 0, sent_bytes = 0;
  while (sent_bytes < 8 * Queue::kRingBytes) {
    const std::size_t size = 16 + random() % (random() % 8 ? 2000 : Queue::kMaxPayload - 16);
    Submission submission(queue);
    std::byte* payload = submission.reserve(size);
    std::memset(payload, static_cast<int>(sent & 0xff), size);
    std::memcpy(payload, &size, sizeof(size));
    std::memcpy(payload + 8, &sent, sizeof(sent));
    submission.commit(
        [](Launch& launch) {
          std::size_t n;
          std::uint64_t number;
          std::memcpy(&n, launch.payload(), sizeof(n));
          std::memcpy(&number, launch.payload() + 8, sizeof(number));
          for (std::size_t i = 16; i < n; ++i)
            if (launch.payload()[i] != static_cast<std::byte>(number & 0xff)) ++bad;
          bytes += n;
        },
        nullptr, "fill", size);
    ++sent;
    sent_bytes += size;
  }
  queue.wait_idle();
  CHECK(bad == 0);
  CHECK(bytes == sent_bytes);
  CHECK(queue.submitted() == sent);  // padding bears no ticket
  CHECK(queue.completed() == sent);
}

void padding_never_meets_the_tail() {
  // Launches of just over a third of the ring: each turn ends with padding of nearly as much.
  Fault fault;
  Queue queue(fault, 0, 0, 0);
  static std::atomic<int> ran;
  ran = 0;
  for (int i = 0; i < 200; ++i) {
    Submission submission(queue);
    submission.reserve(Queue::kMaxPayload);
    submission.commit([](Launch&) { ++ran; }, nullptr, "big", Queue::kMaxPayload);
  }
  queue.wait_idle();
  CHECK(ran == 200);
}

void full_ring_blocks_the_host() {
  Fault fault;
  Queue queue(fault, 0, 0, 0);
  Gate gate;
  gate.hold(queue);
  std::atomic<int> submitted{0};
  constexpr int kLaunches = 30000;  // twice what fits: a launch without payload takes 64 bytes or more
  static std::atomic<int> ran;
  ran = 0;
  std::thread host([&] {
    for (int i = 0; i < kLaunches; ++i) {
      submit(queue, "small", [] { ++ran; });
      ++submitted;
    }
  });
  int before = -1;
  while (submitted != before) {  // until it no longer moves
    before = submitted;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  CHECK(submitted > 1000);
  CHECK(submitted < kLaunches);
  CHECK(ran == 0);
  gate.open = true;
  host.join();
  queue.wait_idle();
  CHECK(ran == kLaunches);
}

void abandoned_submission_launches_nothing() {
  Fault fault;
  Queue queue(fault, 0, 0, 0);
  {
    Submission submission(queue);
    submission.reserve(100);
  }
  bool ran = false;
  const auto ticket = submit(queue, "next", [&ran] { ran = true; });
  queue.wait(ticket);
  CHECK(ticket == 1);
  CHECK(ran);
}

// A payload that counts how often it is destroyed.
struct Counted {
  std::atomic<int>* destroyed;
  std::atomic<int>* ran;
  bool fail = false;
  Counted(std::atomic<int>* d, std::atomic<int>* r, bool f = false) : destroyed(d), ran(r), fail(f) {}
  Counted(Counted&& other) noexcept
      : destroyed(std::exchange(other.destroyed, nullptr)), ran(other.ran), fail(other.fail) {}
  ~Counted() {
    if (destroyed) ++*destroyed;
  }
  void operator()() {
    ++*ran;
    if (fail) throw std::runtime_error("kernel failed");
  }
};

void failure_drops_what_follows() {
  Fault fault;
  Queue queue(fault, 0, 0, 0), sibling(fault, 0, 1, 0);
  std::atomic<int> destroyed{0}, ran{0};
  Gate gate;
  gate.hold(queue);
  submit(queue, "good", Counted(&destroyed, &ran));
  submit(queue, "bad", Counted(&destroyed, &ran, true));
  for (int i = 0; i < 10; ++i) submit(queue, "dropped", Counted(&destroyed, &ran));
  gate.open = true;
  queue.wait_idle();
  CHECK(ran == 2);
  CHECK(destroyed == 12);
  CHECK(fault.pending());
  CHECK(queue.completed() == 13);
  submit(sibling, "other queue of the core", Counted(&destroyed, &ran));
  sibling.wait_idle();
  CHECK(ran == 2);
  CHECK(destroyed == 13);

  std::string text;
  try {
    fault.rethrow_if_pending();
  } catch (const std::runtime_error& e) {
    text = e.what();
  }
  CHECK(text == "kernel failed");
  CHECK(!fault.pending());
  fault.rethrow_if_pending();  // told once
  submit(queue, "after", Counted(&destroyed, &ran));
  queue.wait_idle();
  CHECK(ran == 3);
}

void first_failure_is_kept() {
  Fault fault;
  fault.raise(std::make_exception_ptr(std::runtime_error("first")));
  fault.raise(std::make_exception_ptr(std::logic_error("second")));
  CHECK(throws<std::runtime_error>([&] { fault.rethrow_if_pending(); }));
  CHECK(fault.take() == nullptr);
}

void events_mark_points() {
  Fault fault;
  Queue queue(fault, 0, 0, 0);
  Event event(false);
  CHECK(!event.recorded());
  CHECK(event.done());  // never recorded
  Gate gate;
  gate.hold(queue);
  event.record(queue);
  CHECK(event.recorded());
  CHECK(!event.done());
  gate.open = true;
  event.wait();
  CHECK(event.done());
  CHECK(queue.submitted() == 1);  // an event without time costs no launch
}

void timed_events_measure() {
  Fault fault;
  Queue queue(fault, 0, 0, 0);
  Event start(true), end(true);
  start.record(queue);
  submit(queue, "sleep", [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
  end.record(queue);
  end.wait();
  const double ms = Event::elapsed_ms(start, end);
  CHECK(ms >= 20);
  CHECK(ms < 2000);
}

void queues_wait_for_each_other() {
  Fault fault;
  Queue producer(fault, 0, 0, 0), consumer(fault, 0, 1, 0);
  for (int round = 0; round < 200; ++round) {
    std::atomic<int> value{0};
    int seen = -1;
    submit(producer, "produce", [&value] {
      for (int i = 0; i < 50; ++i) std::this_thread::yield();
      value = 42;
    });
    Event event(false);
    event.record(producer);
    event.block(consumer);
    submit(consumer, "consume", [&value, &seen] { seen = value; });
    consumer.wait_idle();
    if (seen != 42) {
      CHECK(seen == 42);
      return;
    }
  }
  CHECK(true);
  const auto before = consumer.submitted();
  block_until(consumer, producer, producer.submitted());
  CHECK(consumer.submitted() == before);  // done already: nothing to wait for
  block_until(consumer, consumer, consumer.submitted() + 1);
  CHECK(consumer.idle());  // a queue never waits for itself
}

void ping_pong_between_queues() {
  Fault fault;
  Queue a(fault, 0, 0, 0), b(fault, 0, 1, 0);
  int counter = 0;  // unsynchronised on purpose: the events are the only order
  bool ordered = true;
  for (int i = 0; i < 500; ++i) {
    Queue& queue = i % 2 ? a : b;
    Queue& other = i % 2 ? b : a;
    block_until(queue, other, other.submitted());
    submit(queue, "count", [&, i] { ordered &= counter++ == i; });
  }
  a.wait_idle();
  b.wait_idle();
  CHECK(counter == 500);
  CHECK(ordered);
}

void exclusive_sections_exclude() {
  Fault fault;
  Queue queue(fault, 0, 0, 0);
  long total = 0;  // touched by launches and by exclusive sections only
  std::vector<std::thread> hosts;
  std::atomic<int> busy{0};
  for (int t = 0; t < 4; ++t)
    hosts.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        if ((i + t) % 5) {
          submit(queue, "add", [&total] { ++total; });
        } else {
          Exclusive exclusive(queue);
          if (!queue.idle()) ++busy;
          ++total;
          if (!queue.idle()) ++busy;
        }
      }
    });
  for (auto& host : hosts) host.join();
  queue.wait_idle();
  CHECK(total == 2000);
  CHECK(busy == 0);
  fault.raise(std::make_exception_ptr(std::runtime_error("pending")));
  CHECK(throws<std::runtime_error>([&] { Exclusive exclusive(queue); }));
  CHECK(!throws<std::runtime_error>([&] { Exclusive exclusive(queue); }));  // told, and the lock was given back
}

void several_hosts_share_a_queue() {
  Fault fault;
  Queue queue(fault, 0, 0, 0);
  constexpr int kHosts = 4, kLaunches = 20000;
  std::vector<int> last(kHosts, -1);
  std::atomic<int> disordered{0};
  std::vector<std::thread> hosts;
  for (int h = 0; h < kHosts; ++h)
    hosts.emplace_back([&, h] {
      for (int i = 0; i < kLaunches; ++i) {
        submit(queue, "count", [&, h, i] {
          auto& seen = last[static_cast<std::size_t>(h)];
          if (seen != i - 1) ++disordered;
          seen = i;
        });
        if (i % 1000 == 0) queue.wait_idle();
      }
    });
  for (auto& host : hosts) host.join();
  queue.wait_idle();
  CHECK(queue.completed() == kHosts * kLaunches);
  CHECK(disordered == 0);
}

// A launch now and then: the worker parks in between, and a lost wake-up would hang this.
void parked_worker_wakes_up() {
  Fault fault;
  Queue queue(fault, 0, 0, 0);
  std::atomic<int> ran{0};
  for (int i = 0; i < 100; ++i) {
    std::this_thread::sleep_for(std::chrono::microseconds(i * 10));
    queue.wait(submit(queue, "tick", [&ran] { ++ran; }));
  }
  CHECK(ran == 100);
}

void destruction_finishes_the_work() {
  Fault fault;
  std::atomic<int> ran{0};
  {
    Queue queue(fault, 0, 0, 0);
    for (int i = 0; i < 1000; ++i) submit(queue, "count", [&ran] { ++ran; });
  }
  CHECK(ran == 1000);
  CHECK(!Queue::on_worker());
}

void worker_knows_itself() {
  Fault fault;
  Queue queue(fault, 3, 5, -1);
  bool on_worker = false;
  queue.wait(submit(queue, "look", [&on_worker] { on_worker = Queue::on_worker(); }));
  CHECK(on_worker);
  CHECK(queue.core() == 3 && queue.id() == 5 && queue.priority() == -1);
}

void memory_has_a_capacity() {
  constexpr std::size_t kUnit = Hbm::kGranule;
  Hbm hbm(8 * kUnit + 1000);
  CHECK(hbm.capacity() == 8 * kUnit);
  CHECK(hbm.used() == 0);
  CHECK(hbm.largest_free_range() == 8 * kUnit);
  CHECK(hbm.map(9 * kUnit) == nullptr);
  auto* a = static_cast<char*>(hbm.map(1));
  auto* b = static_cast<char*>(hbm.map(3 * kUnit));
  auto* c = static_cast<char*>(hbm.map(2 * kUnit));
  CHECK(a && b && c);
  CHECK(hbm.used() == 6 * kUnit);
  CHECK(reinterpret_cast<std::uintptr_t>(a) % kUnit == 0);
  CHECK(hbm.contains(a) && hbm.contains(c + 2 * kUnit - 1));
  CHECK(!hbm.contains(&hbm));
  CHECK(hbm.map(3 * kUnit) == nullptr);
  std::memset(b, 7, 3 * kUnit);

  // Neighbours merge, whichever is given back first.
  hbm.unmap(a, kUnit);
  CHECK(hbm.largest_free_range() == 2 * kUnit);
  hbm.unmap(b, 3 * kUnit);
  CHECK(hbm.largest_free_range() == 4 * kUnit);
  hbm.unmap(c, 2 * kUnit);
  CHECK(hbm.largest_free_range() == 8 * kUnit);
  CHECK(hbm.used() == 0);
  auto* all = static_cast<char*>(hbm.map(8 * kUnit));
  CHECK(all == a);
  CHECK(all[kUnit] == 0);  // the pages had gone back to the operating system
  hbm.unmap(all, 8 * kUnit);
}

void memory_survives_random_use() {
  constexpr std::size_t kUnit = Hbm::kGranule;
  Hbm hbm(64 * kUnit);
  std::mt19937 random(11);
  std::vector<std::pair<char*, std::size_t>> live;
  std::size_t used = 0;
  bool overlap = false, accounted = true;
  for (int i = 0; i < 3000; ++i) {
    if (random() % 2) {
      const std::size_t bytes = (1 + random() % 6) * kUnit;
      if (auto* p = static_cast<char*>(hbm.map(bytes))) {
        for (const auto& [q, n] : live) overlap |= p < q + n && q < p + bytes;
        live.emplace_back(p, bytes);
        used += bytes;
      }
    } else if (!live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      used -= live.back().second;
      hbm.unmap(live.back().first, live.back().second);
      live.pop_back();
    }
    accounted &= hbm.used() == used;
  }
  CHECK(!overlap);
  CHECK(accounted);
  for (const auto& [p, n] : live) hbm.unmap(p, n);
  CHECK(hbm.largest_free_range() == 64 * kUnit);
}

void instance_types_are_consistent() {
  CHECK(find_instance_type("trn2.3xlarge") != nullptr);
  CHECK(find_instance_type("trn2.3xlarge")->logical_cores() == 4);
  CHECK(find_instance_type("trn2.48xlarge")->logical_cores() == 64);
  CHECK(find_instance_type("p5.48xlarge") == nullptr);
  for (const auto& type : instance_types()) {
    CHECK(type.logical_cores() > 0 && type.hbm_bytes_per_core > 0);
    CHECK(instance_type_names().find(type.name) != std::string::npos);
  }
}

void machine_is_made_of_its_configuration() {
  Config config;
  config.instance = find_instance_type("trn2.3xlarge");
  config.hbm_bytes_per_core = 16 * Hbm::kGranule;
  config.visible_cores = {2, 3};
  Machine::configure(config);
  CHECK(!Machine::created());
  CHECK(Machine::core_count() == 2);
  Machine& machine = Machine::get();
  CHECK(Machine::created());
  CHECK(machine.cores() == 2);
  CHECK(&machine == &Machine::get());
  CHECK(throws<MachineError>([&] { Machine::configure(config); }));

  Core& core = machine.core(1);
  CHECK(core.hbm.capacity() == 16 * Hbm::kGranule);
  void* p = core.hbm.map(1);
  CHECK(machine.core_of(p) == 1);
  CHECK(machine.core_of(&machine) == -1);
  core.hbm.unmap(p, 1);

  CHECK(core.started_queue(64) == nullptr);
  CHECK(&core.queue(64) == core.started_queue(64));
  CHECK(core.queue(64).priority() == -1 && core.queue(33).priority() == -1);
  CHECK(core.queue(32).priority() == 0 && core.queue(0).priority() == 0);

  // synchronize() waits for all queues of the core, tells of the error and ends the error state.
  std::atomic<int> ran{0};
  for (int id : {0, 32, 64})
    submit(core.queue(id), "slow", [&ran] {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      ++ran;
    });
  core.synchronize();
  CHECK(ran == 3);
  CHECK(core.idle());
  submit(core.queue(0), "bad", [] { throw std::out_of_range("index 7"); });
  CHECK(throws<std::out_of_range>([&] { core.synchronize(); }));
  core.synchronize();
  submit(machine.core(0).queue(0), "bad", [] { throw std::out_of_range("other core"); });
  machine.wait_idle();
  CHECK(machine.core(0).fault.pending());
  CHECK(!core.fault.pending());  // the error of one core is no error of another
  CHECK(throws<std::out_of_range>([&] { machine.core(0).synchronize(); }));
}

void stress() {
  Fault fault;
  Queue a(fault, 0, 0, 0), b(fault, 0, 1, 0);
  std::atomic<long> sum{0};
  std::atomic<long> expected{0};
  std::vector<std::thread> hosts;
  for (unsigned h = 0; h < 3; ++h)
    hosts.emplace_back([&, h] {
      std::mt19937 random(h + 1);
      for (int i = 0; i < 5000; ++i) {
        Queue& queue = random() % 2 ? a : b;
        const long value = static_cast<long>(random() % 100);
        expected += value;
        switch (random() % 8) {
          case 0: {
            Exclusive exclusive(queue);
            sum += value;
            break;
          }
          case 1: {
            Event event(random() % 2);
            event.record(&queue == &a ? b : a);
            event.block(queue);
            [[fallthrough]];
          }
          default: {
            std::vector<long> big(random() % 300, value);  // owned by the launch
            submit(queue, "add", [&sum, value, big = std::move(big)] {
              for (long v : big)
                if (v != value) return;
              sum += value;
            });
          }
        }
        if (random() % 500 == 0) queue.wait_idle();
      }
    });
  for (auto& host : hosts) host.join();
  a.wait_idle();
  b.wait_idle();
  CHECK(sum == expected);
  CHECK(!fault.pending());
}

}  // namespace

int main() {
  launches_run_in_order();
  ring_wraps_around();
  padding_never_meets_the_tail();
  full_ring_blocks_the_host();
  abandoned_submission_launches_nothing();
  failure_drops_what_follows();
  first_failure_is_kept();
  events_mark_points();
  timed_events_measure();
  queues_wait_for_each_other();
  ping_pong_between_queues();
  exclusive_sections_exclude();
  several_hosts_share_a_queue();
  parked_worker_wakes_up();
  destruction_finishes_the_work();
  worker_knows_itself();
  memory_has_a_capacity();
  memory_survives_random_use();
  instance_types_are_consistent();
  machine_is_made_of_its_configuration();
  stress();
  std::printf("%d passed, %d failed\n", g_passed, g_failed);
  return g_failed ? 1 : 0;
}
