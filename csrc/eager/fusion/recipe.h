#pragma once
// What a launch does, in the engines' terms: made once per launch plan, for ops that windows can fuse.
#include <cstdint>
#include <memory>
#include <vector>

#include "eager/op_info.h"
#include "eager/plan.h"
#include "engines/program.h"

namespace neuron::eager {
struct Number;
}

namespace neuron::eager::fusion {

// How the elements of a tensor meet those of the iteration.
enum class Map : std::uint8_t {
  kFull,       // one to one
  kRow,        // one for each row
  kColumns,    // one for each column, the same in all rows
  kUniform,    // one for all
  kBroadcast,  // any other repetition
};

// A tensor of the launch as one piece uses it.
struct Operand {
  std::uint16_t tensor = 0;  // of the plan's tensors; those behind them are the fresh outputs, in order
  bool read = false, written = false;
  bool writable = true;  // its elements are met once each, and lie apart
  engines::Dtype dtype = engines::Dtype::kF32;
  Map map = Map::kFull;
  bool dense = false;                  // the tensor's own elements lie without gaps in the order of the iteration
  std::int64_t elements = 0;           // of the tensor itself, without repetition
  std::int64_t rows = 0;               // kRow, kColumns
  std::int64_t lo = 0, hi = 0;         // bytes that it spans, from its first element
  std::int64_t storage_bytes = 0;      // of a fresh output; an argument's travel with the launch
  std::uint64_t layout = 0;            // equal for equal types and layouts of the tensor itself
  engines::Geometry::Strides strides;  // where the iteration finds it
};

struct Ref {
  enum class Kind : std::uint8_t { kNone, kStep, kOperand, kNumber } kind = Kind::kNone;
  std::uint16_t index = 0;
};

// A number of the launch, as `lane`.
struct NumberSource {
  enum class Kind : std::uint8_t { kNumber, kTensor, kLiteral } kind = Kind::kLiteral;
  std::uint16_t index = 0;  // of the payload's numbers, or of its tensors
  engines::Lane lane = engines::Lane::kF32;
  c10::ScalarType type = c10::ScalarType::Undefined;      // of the tensor
  c10::ScalarType round_to = c10::ScalarType::Undefined;  // a type that it goes through, if any
  bool negated = false;
  double offset = 0;  // added last, in the precision of the lane
  double literal = 0;

  bool operator==(const NumberSource&) const = default;
};

struct Step {
  engines::Op op;
  engines::Lane lane = engines::Lane::kF32;
  engines::Lane result = engines::Lane::kF32;
  engines::Dtype dtype = engines::Dtype::kF32;
  std::uint8_t function = 0;
  std::int64_t elements = 0;  // of the result
  std::array<Ref, 5> in{};
};

// Work on one iteration space; a launch on a list of tensors has a piece for each.
struct Piece {
  std::int64_t rows = 0;  // 0: it has none of its own
  std::vector<Operand> operands;
  std::vector<NumberSource> numbers;
  std::vector<Step> steps;
  struct Result {
    std::uint16_t operand;
    Ref value;
  };
  std::vector<Result> results;
};

struct Recipe {
  // A number that a kernel refuses when it does not fit the type: such calls are left to that kernel.
  struct Range {
    std::uint16_t number;
    c10::ScalarType type;
    bool operator==(const Range&) const = default;
  };
  bool numbers_fit(const Number* numbers) const;

  std::uint64_t id = 0;  // never given twice
  std::vector<Range> ranges;
  std::vector<Piece> pieces;
  std::int64_t elements = 0;  // of the largest operand
};

// The recipes of a plan: several where numbers decide what is done (a power of 2 is a square).
class Recipes {
 public:
  // Null when no window can fuse calls of this plan.
  static std::unique_ptr<const Recipes> make(const OpInfo& op, const Plan& plan, const Number* numbers);

  // Null when these numbers cannot be fused. Under the lock of the plan's cache.
  const Recipe* choose(const Plan& plan, const Number* numbers) const;

 private:
  const OpInfo* op_ = nullptr;
  int (*variant_)(const Number*) = nullptr;
  mutable std::vector<std::unique_ptr<const Recipe>> variants_;
};

}  // namespace neuron::eager::fusion
