#pragma once
// A program made ready to run: where its tensors lie, its views with addresses, and the steps of the interpreter.
// Immutable; any number of cores may run it at once.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engines/isa/core.h"
#include "engines/isa/coverage.h"
#include "engines/isa/memory_plan.h"
#include "engines/isa/program.h"
#include "engines/isa/views.h"

namespace neuron::engines::isa {

struct Step {
  enum class Kind : std::uint8_t {
    kExecute,
    kPoison,  // `number` is the storage
    kLoopBegin,
    kLoopEnd,
    kWhileBegin,
    kWhileEnd,
    kPrint,
    kMeet,  // with other cores: barrier, sendrecv, collective
    kEnd
  } kind;
  std::int32_t number = -1;  // of the instruction, or of the storage
  std::int32_t jump = -1;    // step after the end of the loop, or after its beginning
  Execute execute = nullptr;
  const Instruction* instruction = nullptr;
};

struct Image {
  Program program;
  MemoryPlan plan;
  std::vector<Tile> tiles;            // of each view, without `data`
  std::vector<std::int64_t> offsets;  // of each view: its first byte, from the start of its storage
  std::vector<Step> steps;
  std::vector<UnwrittenRead> unwritten_reads;
  std::vector<std::int32_t> unwritten_storages;
};

// `known[s]`: the storage holds something before the program starts; `output[s]`: somebody reads it afterwards.
// Throws std::invalid_argument for a program that makes no sense.
std::shared_ptr<const Image> make_image(Program program, const std::vector<std::uint8_t>& known,
                                        const std::vector<std::uint8_t>& output);

}  // namespace neuron::engines::isa
