#pragma once
// Runs programs: the interpreter of each core, and what cores do together. Cores run one after the other, each until it
// waits for another one, so that a run is the same every time.
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engines/isa/image.h"

namespace neuron::engines::isa {

// A program and the cores that have run it: memory is kept for the next run.
class Executable {
 public:
  explicit Executable(std::shared_ptr<const Image> image) : image_(std::move(image)) {}
  const Image& image() const { return *image_; }
  std::unique_ptr<Core> take();
  void give_back(std::unique_ptr<Core> core);

 private:
  std::shared_ptr<const Image> image_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Core>> idle_;
};

// What a kernel prints.
using Print = std::function<void(const std::string& prefix, const Tile& tile)>;
void print_to_stdout(const std::string& prefix, const Tile& tile);

// Runs programs that go together, one per core or rank. `addresses[i][s]`: the memory of storage s of program i if it
// is in HBM; null where the machine is to find a place. `threads`: at most so many; 0: all.
// Throws ProgramFault; memory that was written until then stays as it is.
void run(const std::vector<std::shared_ptr<Executable>>& programs, const std::vector<void* const*>& addresses,
         int threads, const Print& print);

// Cores that wait for each other (control.cpp): lets go of those whose partners have come, and does what they came for.
// False when nobody could go on. `waiting[i]`: the instruction that core i waits in, or null.
bool meet(const std::vector<Core*>& cores, std::vector<const Instruction*>& waiting);
// Who waits for what, for the report of a deadlock.
std::string who_waits(const std::vector<const Instruction*>& waiting);

}  // namespace neuron::engines::isa
