#include "eager/fusion/hot_programs.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace neuron::eager::fusion {

namespace {

struct Stage {
  std::string text;
  engines::StageFn code = nullptr;
  std::vector<std::pair<engines::Executable*, std::size_t>> users;
};

struct State {
  std::mutex mutex;
  std::condition_variable wanted;
  std::unordered_map<std::string, std::unique_ptr<HotProgram>> programs;
  std::unordered_map<std::string, int> stage_numbers;
  std::vector<Stage> stages;
  std::deque<int> queue;
  bool (*start)() = nullptr;
  bool started = false;
  bool woken = false;
};

State& state() {
  static auto* const state = new State;  // workers use it until the very end
  return *state;
}

}  // namespace

HotProgram& hot_program(engines::Program program) {
  State& s = state();
  std::string text = program.text();
  std::lock_guard lock(s.mutex);
  auto& entry = s.programs[std::move(text)];
  if (!entry) entry = std::make_unique<HotProgram>(std::move(program));
  return *entry;
}

void HotProgram::offer() {
  State& s = state();
  std::lock_guard lock(s.mutex);
  for (std::size_t i = 0; i < executable_.stages(); ++i) {
    std::string text = executable_.stage_text(i);
    const auto [it, added] = s.stage_numbers.try_emplace(text, static_cast<int>(s.stages.size()));
    if (added) {
      s.stages.push_back({std::move(text), nullptr, {}});
      s.queue.push_back(it->second);
    }
    Stage& stage = s.stages[static_cast<std::size_t>(it->second)];
    stage.users.emplace_back(&executable_, i);
    if (stage.code) executable_.install(i, stage.code);
  }
  if (!s.start) return;
  s.wanted.notify_one();
  if (!s.started) s.started = s.start();
}

void set_compiler_starter(bool (*start)()) {
  std::lock_guard lock(state().mutex);
  state().start = start;
}

std::optional<std::pair<int, std::string>> next_stage_to_compile(double timeout_seconds) {
  State& s = state();
  std::unique_lock lock(s.mutex);
  s.wanted.wait_for(lock, std::chrono::duration<double>(timeout_seconds), [&] { return !s.queue.empty() || s.woken; });
  s.woken = false;
  if (s.queue.empty()) return std::nullopt;
  const int number = s.queue.front();
  s.queue.pop_front();
  return std::pair(number, s.stages[static_cast<std::size_t>(number)].text);
}

void wake_compiler() {
  State& s = state();
  std::lock_guard lock(s.mutex);
  s.woken = true;
  s.wanted.notify_all();
}

void install_stage(int number, engines::StageFn code) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  Stage& stage = s.stages.at(static_cast<std::size_t>(number));
  stage.code = code;
  for (const auto& [executable, index] : stage.users) executable->install(index, code);
}

}  // namespace neuron::eager::fusion
