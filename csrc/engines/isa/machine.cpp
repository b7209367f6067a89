#include "engines/isa/machine.h"

#include <cstdio>

#include "engines/isa/elements.h"

namespace neuron::engines::isa {

using std::int32_t;
using std::int64_t;

namespace {

// A loop that goes on for longer has no end: at the least, that is minutes.
constexpr int64_t kEndless = int64_t{1} << 31;

// Runs until the program ends (null) or the core must wait for others (the instruction it waits in).
const Instruction* advance(Core& core, const Print& print) {
  const Image& image = core.image();
  const Step* const steps = image.steps.data();
  std::size_t at = core.position;
  try {
    while (true) {
      const Step& step = steps[at++];
      if (step.kind == Step::Kind::kExecute) [[likely]] {
        step.execute(core, *step.instruction);
        continue;
      }
      switch (step.kind) {
        case Step::Kind::kPoison:
          core.poison(step.number);
          break;
        case Step::Kind::kLoopBegin: {
          const auto& operands = step.instruction->operands;
          const int64_t lower = core.integer(operands[1]), upper = core.integer(operands[2]);
          if (lower >= upper) {
            at = static_cast<std::size_t>(step.jump);
            break;
          }
          core.loops.push_back({lower, upper, 0});
          core.reg(operands[0].index) = lower;
          break;
        }
        case Step::Kind::kLoopEnd: {
          const Instruction& begin = image.program.instructions[static_cast<std::size_t>(step.instruction->partner)];
          Core::Loop& loop = core.loops.back();
          loop.value += std::get<int64_t>(begin.attributes[0]);
          if (loop.value >= loop.upper) {
            core.loops.pop_back();
            break;
          }
          core.reg(begin.operands[0].index) = loop.value;
          at = static_cast<std::size_t>(step.jump);
          break;
        }
        case Step::Kind::kWhileBegin:
          if (core.integer(step.instruction->operands[0]) == 0) {
            at = static_cast<std::size_t>(step.jump);
          } else {
            core.loops.push_back({0, 0, 0});
          }
          break;
        case Step::Kind::kWhileEnd: {
          const Instruction& begin = image.program.instructions[static_cast<std::size_t>(step.instruction->partner)];
          Core::Loop& loop = core.loops.back();
          if (++loop.rounds > kEndless)
            throw ProgramFault(ProgramFault::Kind::kLoop,
                               "a loop has gone round 2**31 times and its register is still " +
                                   std::to_string(core.integer(begin.operands[0])));
          if (core.integer(begin.operands[0]) == 0)
            core.loops.pop_back();
          else
            at = static_cast<std::size_t>(step.jump);
          break;
        }
        case Step::Kind::kPrint: {
          const auto* prefix = std::get_if<std::string>(&step.instruction->attributes[0]);
          print(prefix ? *prefix : std::string(), core.tile(step.instruction->operands[0]));
          break;
        }
        case Step::Kind::kMeet:
          core.position = at;
          return step.instruction;
        default:
          core.position = at - 1;
          return nullptr;
      }
    }
  } catch (ProgramFault& fault) {
    const Step& step = steps[at - 1];
    if (fault.instruction < 0 && step.instruction) fault.instruction = step.number;
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::logic_error& error) {
    ProgramFault fault(ProgramFault::Kind::kOther, error.what());
    fault.instruction = steps[at - 1].number;
    throw fault;
  }
}

// The cores of a run, given back however it ends.
struct Cores {
  explicit Cores(const std::vector<std::shared_ptr<Executable>>& programs) : programs(programs) {
    for (const auto& program : programs) cores.push_back(program->take());
  }
  ~Cores() {
    for (std::size_t i = 0; i < cores.size(); ++i) programs[i]->give_back(std::move(cores[i]));
  }
  const std::vector<std::shared_ptr<Executable>>& programs;
  std::vector<std::unique_ptr<Core>> cores;
};

}  // namespace

std::unique_ptr<Core> Executable::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      auto core = std::move(idle_.back());
      idle_.pop_back();
      return core;
    }
  }
  return std::make_unique<Core>(image_);
}

void Executable::give_back(std::unique_ptr<Core> core) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(core));
}

void run(const std::vector<std::shared_ptr<Executable>>& programs, const std::vector<void* const*>& addresses,
         int threads, const Print& print) {
  const ThreadLimit limit(threads);
  Cores held(programs);
  std::vector<Core*> cores;
  std::vector<const Instruction*> waiting(programs.size(), nullptr);
  std::vector<bool> done(programs.size(), false);
  for (std::size_t i = 0; i < programs.size(); ++i) {
    cores.push_back(held.cores[i].get());
    cores[i]->reset(addresses[i]);
  }
  while (true) {
    bool left = false;
    for (std::size_t i = 0; i < cores.size(); ++i) {
      if (done[i] || waiting[i]) continue;
      try {
        waiting[i] = advance(*cores[i], print);
      } catch (ProgramFault& fault) {
        fault.program = static_cast<int32_t>(i);
        throw;
      }
      done[i] = !waiting[i];
    }
    for (std::size_t i = 0; i < cores.size(); ++i) left |= !done[i];
    if (!left) return;
    if (meet(cores, waiting)) continue;
    ProgramFault fault(ProgramFault::Kind::kDeadlock, who_waits(waiting));
    for (std::size_t i = 0; i < cores.size() && fault.program < 0; ++i) {
      if (!waiting[i]) continue;
      fault.program = static_cast<int32_t>(i);
      fault.instruction = cores[i]->image().steps[cores[i]->position - 1].number;
    }
    throw fault;
  }
}

void print_to_stdout(const std::string& prefix, const Tile& tile) {
  constexpr int64_t kShown = 1024;
  std::string text = prefix + "[";
  int64_t left = std::min(kShown, tile.elements());
  for (Cursor cursor(tile); left > 0; --left) {
    const std::byte* at = cursor.pointer();
    text += at ? std::to_string(float_at(tile.type, at)) : "-";
    if (left > 1) text += ", ";
    cursor.advance(1);
  }
  std::printf("%s%s]\n", text.c_str(), tile.elements() > kShown ? ", ..." : "");
}

}  // namespace neuron::engines::isa
