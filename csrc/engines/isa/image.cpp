#include "engines/isa/image.h"
#include "engines/isa/execute.h"

#include <stdexcept>
#include <string>

namespace neuron::engines::isa {

using std::int32_t;
using std::int64_t;

namespace {

std::string at(std::size_t instruction) { return "instruction " + std::to_string(instruction) + ": "; }

void pair_loops(Program& program) {
  std::vector<int32_t> open;
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    Instruction& instruction = program.instructions[i];
    const auto number = static_cast<int32_t>(i);
    if (instruction.op == Op::kLoopBegin || instruction.op == Op::kWhileBegin) {
      open.push_back(number);
    } else if (instruction.op == Op::kLoopEnd || instruction.op == Op::kWhileEnd) {
      const Op begin = instruction.op == Op::kLoopEnd ? Op::kLoopBegin : Op::kWhileBegin;
      if (open.empty() || program.instructions[static_cast<std::size_t>(open.back())].op != begin)
        throw std::invalid_argument(at(i) + "a loop ends that has not begun");
      instruction.partner = open.back();
      program.instructions[static_cast<std::size_t>(open.back())].partner = number;
      open.pop_back();
    }
  }
  if (!open.empty()) throw std::invalid_argument(at(static_cast<std::size_t>(open.back())) + "a loop does not end");
}

bool is_narrow_float(Type type) { return is_float(type) && type != Type::kFloat8E8M0FNU && bytes_of(type) < 4; }

// With fp32 in the place of narrower floats on chip, where nobody looks at the bits. HBM is seen from outside.
void widen_storages(Program& program) {
  std::vector<std::uint8_t> widened(program.storages.size());
  for (std::size_t s = 0; s < program.storages.size(); ++s)
    widened[s] = on_chip(program.storages[s]) && is_narrow_float(program.storages[s].type) &&
                 program.storages[s].address_bytes < 0;
  for (const View& v : program.views)
    if (v.type != program.storages[static_cast<std::size_t>(v.storage)].type)
      widened[static_cast<std::size_t>(v.storage)] = 0;
  for (std::size_t s = 0; s < program.storages.size(); ++s)
    if (widened[s]) program.storages[s].type = Type::kFloat32;
  for (View& v : program.views)
    if (widened[static_cast<std::size_t>(v.storage)]) v.type = Type::kFloat32;
}

void check_bounds(const View& v, const Storage& storage, std::size_t number) {
  if (v.dynamic != View::Dynamic::kNone) return;  // checked when it is known where it lies
  const Geometry g = geometry(v, storage, row_bytes(storage));
  if (g.empty()) return;
  if (g.lowest() < 0 || g.highest() > row_bytes(storage) * storage.partitions)
    throw std::invalid_argument("view " + std::to_string(number) + " reaches from byte " + std::to_string(g.lowest()) +
                                " to " + std::to_string(g.highest()) + " of a tensor of " +
                                std::to_string(row_bytes(storage) * storage.partitions) + " bytes");
}

void make_tiles(Image& image) {
  const Program& program = image.program;
  for (std::size_t i = 0; i < program.views.size(); ++i) {
    const View& v = program.views[i];
    const auto s = static_cast<std::size_t>(v.storage);
    const Storage& storage = program.storages[s];
    check_bounds(v, storage, i);
    const int64_t pitch = image.plan.blocks[static_cast<std::size_t>(image.plan.places[s].block)].pitch;
    const Geometry g = geometry(v, storage, on_chip(storage) ? pitch : row_bytes(storage));
    Tile tile;
    tile.type = v.type;
    tile.rank = v.rank;
    tile.dynamic = v.dynamic != View::Dynamic::kNone;
    tile.indirect = v.dynamic == View::Dynamic::kIndirect;
    for (int d = 0; d < v.rank; ++d) {
      tile.size[d] = v.size[d];
      tile.stride[d] = g.stride[d];
    }
    image.tiles.push_back(tile);
    image.offsets.push_back(g.offset);
  }
}

Step::Kind kind_of(Op op) {
  switch (op) {
    case Op::kLoopBegin:
      return Step::Kind::kLoopBegin;
    case Op::kLoopEnd:
      return Step::Kind::kLoopEnd;
    case Op::kWhileBegin:
      return Step::Kind::kWhileBegin;
    case Op::kWhileEnd:
      return Step::Kind::kWhileEnd;
    case Op::kPrint:
      return Step::Kind::kPrint;
    case Op::kBarrier:
    case Op::kSendRecv:
    case Op::kCollective:
      return Step::Kind::kMeet;
    default:
      return Step::Kind::kExecute;
  }
}

void make_steps(Image& image, const Coverage& coverage) {
  const auto& instructions = image.program.instructions;
  std::vector<int32_t> step_of(instructions.size());
  auto poison = coverage.poison.begin();
  for (std::size_t i = 0; i < instructions.size(); ++i) {
    for (; poison != coverage.poison.end() && poison->first == static_cast<int32_t>(i); ++poison)
      image.steps.push_back({Step::Kind::kPoison, poison->second, -1, nullptr, nullptr});
    step_of[i] = static_cast<int32_t>(image.steps.size());
    Step step{kind_of(instructions[i].op), static_cast<int32_t>(i), -1, nullptr, &instructions[i]};
    if (step.kind == Step::Kind::kExecute) step.execute = execute_of(instructions[i].op);
    if (step.kind == Step::Kind::kExecute && !step.execute)
      throw std::invalid_argument(at(i) + "no engine executes it");
    image.steps.push_back(step);
  }
  image.steps.push_back({Step::Kind::kEnd, -1, -1, nullptr, nullptr});
  for (Step& step : image.steps)
    if (step.instruction && step.instruction->partner >= 0)
      step.jump = step_of[static_cast<std::size_t>(step.instruction->partner)] + 1;
}

}  // namespace

std::shared_ptr<const Image> make_image(Program program, const std::vector<std::uint8_t>& known,
                                        const std::vector<std::uint8_t>& output) {
  auto image = std::make_shared<Image>();
  image->program = std::move(program);
  pair_loops(image->program);
  if (!image->program.precise) widen_storages(image->program);
  std::vector<std::uint8_t> brought(known);
  for (std::size_t s = 0; s < output.size(); ++s) brought[s] |= output[s];
  image->plan = plan_memory(image->program, brought);
  make_tiles(*image);
  Coverage coverage = analyse_coverage(image->program, image->plan, known, output);
  make_steps(*image, coverage);
  image->unwritten_reads = std::move(coverage.unwritten_reads);
  image->unwritten_storages = std::move(coverage.unwritten_storages);
  return image;
}

}  // namespace neuron::engines::isa
