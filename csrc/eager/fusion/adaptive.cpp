#include "eager/fusion/adaptive.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "eager/fusion/fuser.h"
#include "eager/launch_settings.h"
#include "eager/statistics.h"
#include "eager/threads.h"

namespace neuron::eager::fusion {

namespace {

using c10::ScalarType;
using engines::Lane;
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

// Of one worker thread: no locks on the way of a window that was seen before.
struct Worker {
  static constexpr std::size_t kMaxPlans = 4096;
  Window window;
  std::unordered_map<std::uint64_t, CachedPlan> plans;
  std::vector<void*> memory;
  std::vector<Scalar> scalars;
};

Worker& worker() {
  thread_local auto* const worker = new Worker;
  return *worker;
}

CachedPlan& plan_of(Worker& w) {
  const std::uint64_t hash = hash_words(w.window.key());
  auto it = w.plans.find(hash);
  if (it != w.plans.end() && it->second.plan->key == w.window.key()) {
    count(g_windows.hits);
    return it->second;
  }
  count(g_windows.misses);
  if (w.plans.size() >= Worker::kMaxPlans) w.plans.clear();
  CachedPlan made{fuse(w.window), {}};
  for (const auto& region : made.plan->regions) made.counters.push_back(&counters_of(region, w.window.launches()));
  return w.plans[hash] = std::move(made);
}

template <class T>
T read_as(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

// A number before it takes the format of its lane: exact, as an integer or as a double.
struct Exact {
  bool integer;
  std::int64_t i;
  double d;
  double as_double() const { return integer ? static_cast<double>(i) : d; }
  std::int64_t as_integer() const { return integer ? i : static_cast<std::int64_t>(d); }
};

Exact exact(const NumberSource& source, OpPayload& payload) {
  if (source.kind == NumberSource::Kind::kLiteral) return {false, 0, source.literal};
  if (source.kind == NumberSource::Kind::kNumber) {
    const Number& number = payload.numbers()[source.index];
    if (number.type == Number::Type::kDouble) return {false, 0, number.real[0]};
    return {true, number.type == Number::Type::kBool ? number.integer != 0 : number.integer, 0};
  }
  const std::byte* p = payload.tensors()[source.index].value;
  switch (source.type) {
    case ScalarType::Double:
      return {false, 0, read_as<double>(p)};
    case ScalarType::Float:
      return {false, 0, read_as<float>(p)};
    case ScalarType::BFloat16:
      return {false, 0, static_cast<float>(read_as<c10::BFloat16>(p))};
    case ScalarType::Half:
      return {false, 0, static_cast<float>(read_as<c10::Half>(p))};
    case ScalarType::Long:
      return {true, read_as<std::int64_t>(p), 0};
    case ScalarType::Int:
      return {true, read_as<std::int32_t>(p), 0};
    case ScalarType::Short:
      return {true, read_as<std::int16_t>(p), 0};
    case ScalarType::Char:
      return {true, read_as<std::int8_t>(p), 0};
    case ScalarType::Byte:
      return {true, read_as<std::uint8_t>(p), 0};
    default:
      return {true, read_as<bool>(p), 0};
  }
}

float to_float(Exact value, const NumberSource& source) {
  if (source.negated && value.integer) value.i = -value.i;  // there is no negative integer zero
  float f = value.integer ? static_cast<float>(value.i) : static_cast<float>(value.d);
  if (source.round_to == ScalarType::BFloat16) f = c10::BFloat16(f);
  if (source.round_to == ScalarType::Half) f = c10::Half(f);
  if (source.negated && !value.integer) f = -f;
  return source.offset == 0 ? f : f + static_cast<float>(source.offset);  // -0 stays -0
}

std::int64_t to_integer(const Exact& value, const NumberSource& source) {
  std::int64_t i = value.as_integer();
  if (source.round_to == ScalarType::Int) i = static_cast<std::int32_t>(i);
  if (source.round_to == ScalarType::Short) i = static_cast<std::int16_t>(i);
  if (source.round_to == ScalarType::Char) i = static_cast<std::int8_t>(i);
  if (source.round_to == ScalarType::Byte) i = static_cast<std::uint8_t>(i);
  return source.negated ? -i : i;
}

Scalar scalar(const NumberSource& source, OpPayload& payload) {
  const Exact value = exact(source, payload);
  Scalar s{};
  switch (source.lane) {
    case Lane::kF32:
      s.f32 = to_float(value, source);
      break;
    case Lane::kF64:
      s.f64 = value.as_double();
      if (source.negated) s.f64 = value.integer ? static_cast<double>(-value.i) : -s.f64;
      if (source.offset != 0) s.f64 += source.offset;
      break;
    case Lane::kI64:
      s.i64 = to_integer(value, source);
      break;
    case Lane::kB8:
      s.b8 = value.integer ? value.i != 0 : value.d != 0;
      break;
  }
  return s;
}

void run_region(Worker& w, const FusedRegion& region) {
  w.memory.clear();
  for (const std::uint32_t slot : region.slots) w.memory.push_back(const_cast<char*>(w.window.slots()[slot].address));
  w.scalars.clear();
  for (const std::int32_t index : region.scalars) {
    if (index < 0) {
      w.scalars.push_back({});
      continue;
    }
    const auto& binding = region.bindings[static_cast<std::size_t>(index)];
    w.scalars.push_back(scalar(binding.source, *w.window.launches()[binding.launch]));
  }
  // As many threads as ATen would have, also where few are used: where remainders lie depends on it.
  region.program->executable().run(region.geometry, w.memory.data(), w.scalars.data(), &parallel_for,
                                   at::get_num_threads());
  region.program->count(region.work);
}

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
  w.window.finish(batch.release_log(), batch.ticket());
  CachedPlan& cached = plan_of(w);
  count(g_windows.windows);
  count(g_windows.launches, static_cast<std::int64_t>(batch.size()));
  for (std::size_t i = 0; i < cached.plan->regions.size(); ++i) {
    const FusedRegion& region = cached.plan->regions[i];
    if (region.program) run_region(w, region);
    count(cached.counters[i]->runs);
    count(cached.counters[i]->bytes_not_written, region.bytes_not_written);
  }
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
