#include "eager/fusion/adaptive.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "eager/fusion/fuser.h"
#include "eager/fusion/scalars.h"
#include "eager/launch_settings.h"
#include "eager/statistics.h"
#include "eager/threads.h"

namespace neuron::eager::fusion {

namespace {

using engines::Scalar;

std::atomic<bool> g_adaptive{false};

// A launch that is alone in its window runs as ATen's kernel, which is at its best on large tensors; on small ones the
// way into that kernel costs more than the work.
constexpr std::int64_t kSmallElements = 1 << 13;

// -- Counting --

struct RegionCounters {
  std::vector<std::string> ops, lines;
  std::int64_t elements = 0, launches = 0;
  std::atomic<std::int64_t> runs{0}, bytes_not_written{0};
  const HotProgram* program = nullptr;
};

struct WindowCounters {
  std::atomic<std::int64_t> windows{0}, hits{0}, misses{0}, launches{0}, single{0};
} g_windows;

struct Registry {
  // Programs whose shapes change all the time would fill memory: the rest is counted as one.
  static constexpr std::size_t kMaxRegions = 4096;
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<RegionCounters>> regions;
};
Registry& registry() {
  static auto* const registry = new Registry;
  return *registry;
}

RegionCounters& counters_of(const FusedRegion& region, const std::vector<OpPayload*>& launches) {
  std::vector<std::string> ops, lines;
  std::string key;
  for (const std::uint32_t i : region.launches) {
    const OpPayload& payload = *launches[i];
    ops.push_back(payload.op->name);
    const LaunchSite* site = payload.site ? payload.site : payload.plan->first_site;
    std::string line = site ? site->file + ":" + std::to_string(site->line) : std::string();
    key += ops.back() + "@" + line + ";";
    if (!line.empty() && std::find(lines.begin(), lines.end(), line) == lines.end()) lines.push_back(std::move(line));
  }
  const std::int64_t elements =
      region.geometry.rows * *std::max_element(region.geometry.cols.begin(), region.geometry.cols.end());
  key += std::to_string(elements);
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  if (r.regions.size() >= Registry::kMaxRegions && !r.regions.contains(key)) {
    key = "others";
    ops = {"others"};
    lines.clear();
  }
  auto& entry = r.regions[key];
  if (!entry) {
    entry = std::make_unique<RegionCounters>();
    entry->ops = std::move(ops);
    entry->lines = std::move(lines);
    entry->elements = elements;
    entry->launches = static_cast<std::int64_t>(region.launches.size());
    entry->program = region.program;
  }
  return *entry;
}

// -- Running --

struct CachedPlan {
  std::unique_ptr<WindowPlan> plan;
  std::vector<RegionCounters*> counters;
};

std::uint64_t hash_words(const std::vector<std::int64_t>& words) {
  std::uint64_t h = words.size();
  for (const std::int64_t word : words) {
    h = (h ^ static_cast<std::uint64_t>(word)) * 0x9E3779B97F4A7C15ull;
    h ^= h >> 31;
  }
  return h;
}

// What a region computes on.
struct Bound {
  std::vector<void*> memory;
  std::vector<Scalar> scalars;

  void bind(Window& window, const FusedRegion& region) {
    memory.clear();
    for (const std::uint32_t slot : region.slots) memory.push_back(const_cast<char*>(window.slots()[slot].address));
    scalars.clear();
    for (const std::int32_t index : region.scalars) {
      if (index < 0) {
        scalars.push_back({});
        continue;
      }
      const auto& binding = region.bindings[static_cast<std::size_t>(index)];
      scalars.push_back(scalar(binding.source, *window.launches()[binding.launch]));
    }
  }

  void run(const FusedRegion& region) {
    // As many threads as ATen would have, also where few are used: where remainders lie depends on it.
    region.program->executable().run(region.geometry, memory.data(), scalars.data(), &parallel_for,
                                     at::get_num_threads());
    region.program->count(region.work);
  }
};

// Of one worker thread: no locks on the way of a window that was seen before.
struct Worker {
  static constexpr std::size_t kMaxPlans = 4096;
  Window window;
  std::unordered_map<std::uint64_t, std::shared_ptr<CachedPlan>> plans;
  Bound bound;
};

Worker& worker() {
  thread_local auto* const worker = new Worker;
  return *worker;
}

std::shared_ptr<CachedPlan> plan_of(Worker& w) {
  const std::uint64_t hash = hash_words(w.window.key());
  auto it = w.plans.find(hash);
  if (it != w.plans.end() && it->second->plan->key == w.window.key()) {
    count(g_windows.hits);
    return it->second;
  }
  count(g_windows.misses);
  if (w.plans.size() >= Worker::kMaxPlans) w.plans.clear();
  auto made = std::make_shared<CachedPlan>(fuse(w.window));
  for (const auto& region : made->plan->regions) made->counters.push_back(&counters_of(region, w.window.launches()));
  return w.plans[hash] = std::move(made);
}

void count_region(const FusedRegion& region, RegionCounters& counters) {
  count(counters.runs);
  count(counters.bytes_not_written, region.bytes_not_written);
}

// A window of recorded launches: which are in it, where their tensors lie and their numbers are the same in every run.
class RecordedWindow final : public driver::Prepared {
 public:
  RecordedWindow(std::shared_ptr<CachedPlan> cached, Window& window)
      : cached_(std::move(cached)), launches_(static_cast<std::int64_t>(window.launches().size())) {
    for (const auto& region : cached_->plan->regions) bound_.emplace_back().bind(window, region);
  }

  void run() override {
    apply_host_threads();
    count(g_windows.windows);
    count(g_windows.hits);
    count(g_windows.launches, launches_);
    for (std::size_t i = 0; i < bound_.size(); ++i) {
      const FusedRegion& region = cached_->plan->regions[i];
      if (region.program) bound_[i].run(region);
      count_region(region, *cached_->counters[i]);
    }
  }

 private:
  const std::shared_ptr<CachedPlan> cached_;
  const std::int64_t launches_;
  std::vector<Bound> bound_;  // by region
};

}  // namespace

void set_adaptive(bool on) {
  if (on) driver::Queue::keep_release_log(true);
  g_adaptive.store(on, std::memory_order_relaxed);
}
bool adaptive() { return g_adaptive.load(std::memory_order_relaxed); }

bool windows_wanted() {
  return g_adaptive.load(std::memory_order_relaxed) && !launch_blocking() &&
         !at::globalContext().deterministicAlgorithms();
}

void run_window(driver::Batch& batch) {
  Worker& w = worker();
  w.window.clear();
  const auto payload = [](driver::Launch& launch) -> OpPayload& {
    return *reinterpret_cast<OpPayload*>(launch.payload());
  };
  if (!w.window.add(payload(batch.first()), batch.first_ticket())) {
    execute(batch.first());
    return;
  }
  while (w.window.launches().size() < Window::kMaxLaunches) {
    driver::Launch* next = batch.peek();
    if (!next || next->run_batch != &run_window || !w.window.add(payload(*next), batch.ticket() + 1)) break;
    batch.take();
  }
  const Recipe& first = *w.window.launches().front()->recipe;
  if (batch.size() == 1 && first.elements > kSmallElements && first.pieces.size() == 1) {
    count(g_windows.single);
    execute(batch.first());
    return;
  }
  apply_host_threads();
  w.window.finish(batch);
  const auto cached = plan_of(w);
  count(g_windows.windows);
  count(g_windows.launches, static_cast<std::int64_t>(batch.size()));
  for (std::size_t i = 0; i < cached->plan->regions.size(); ++i) {
    const FusedRegion& region = cached->plan->regions[i];
    if (region.program) {
      w.bound.bind(w.window, region);
      w.bound.run(region);
    }
    count_region(region, *cached->counters[i]);
  }
  if (batch.runs_again()) batch.prepare(std::make_unique<RecordedWindow>(cached, w.window));
}

namespace {
// A program of calls alone has no stages, so nothing of it can be compiled.
bool is_machine_code(const engines::Executable& executable) { return executable.stages() > 0 && executable.compiled(); }
}  // namespace

Report report() {
  Report report{g_windows.windows, g_windows.hits, g_windows.misses, g_windows.launches, g_windows.single, {}};
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  for (const auto& [key, c] : r.regions)
    if (c->runs.load())
      report.regions.push_back({c->ops, c->lines, c->elements, c->launches, c->runs, c->bytes_not_written,
                                c->program && is_machine_code(c->program->executable())});
  return report;
}

void reset_report() {
  for (auto* counter : {&g_windows.windows, &g_windows.hits, &g_windows.misses, &g_windows.launches, &g_windows.single})
    counter->store(0);
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  for (auto& [key, c] : r.regions) {
    c->runs.store(0);
    c->bytes_not_written.store(0);
  }
}

}  // namespace neuron::eager::fusion
