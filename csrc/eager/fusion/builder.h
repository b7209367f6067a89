#pragma once
// Writes the recipe of one plan: what the recipes of the single ops (recipes_*.cpp) are made with.
#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>

#include <optional>

#include "eager/call.h"
#include "eager/fusion/recipe.h"

namespace neuron::eager::fusion {

// Null for types that the engines have no registers for.
std::optional<engines::Dtype> engine_dtype(c10::ScalarType type);

engines::Dtype required_dtype(c10::ScalarType type);  // throws Builder::Unfusable instead

// A value of a recipe and the type that it has in ATen's eyes.
struct Typed {
  Ref ref;
  c10::ScalarType type = c10::ScalarType::Undefined;
};

class Builder {
 public:
  // Thrown (and caught by Recipes) when the call cannot be fused.
  struct Unfusable {};

  Builder(const OpInfo& op, const Plan& plan, const Number* numbers);

  // -- Arguments by their place in the schema --
  bool has_number(int argument) const { return arg(argument).kind == ArgKind::kNumber; }
  int list_size(int argument) const;
  // Index of a tensor argument (of element `i` of a list) in the plan.
  int tensor(int argument, int i = 0) const;
  const TensorMeta& meta(int tensor) const { return plan_.tensors[static_cast<std::size_t>(tensor)]; }
  c10::ScalarType type(int tensor) const { return meta(tensor).dtype.toScalarType(); }
  const c10::IValue& constant(int argument) const { return arg(argument).constant; }
  // The number itself: only for ops with variants, whose recipe depends on it.
  double number_value(int argument, int i = 0) const;
  bool is_integer(int argument, int i = 0) const;
  bool is_bool(int argument) const;
  // ATen's result type of tensors and of number arguments (which count as wrapped numbers).
  c10::ScalarType result_type(std::initializer_list<int> tensors, std::initializer_list<int> numbers = {}) const;

  bool in_place() const { return in_place_; }
  c10::ScalarType out_type(int out = 0) const { return plan_.outs[static_cast<std::size_t>(out)].dtype.toScalarType(); }
  c10::IntArrayRef out_sizes(int out = 0) const { return plan_.outs[static_cast<std::size_t>(out)].sizes; }
  static c10::ScalarType default_type();
  // Does the iteration meet elements of this tensor more than once?
  bool repeats(int tensor) const;

  // -- Pieces --
  // The tensor that the results of a piece have the shape of: an argument, or fresh output `out`.
  void begin(int tensor);
  void begin_out(int out = 0);
  // Elements are taken in the order of the dimensions, not of memory; rows are those before dimension `dim`.
  void begin_rows(int tensor, std::int64_t dim);
  void begin_out_rows(std::int64_t dim);

  std::int64_t rows() const { return piece_->rows; }

  // -- Values --
  // A tensor argument in its own type; a CPU scalar becomes a number.
  Typed load(int tensor);
  // A tensor that has the rows of the piece and columns of its own.
  Typed load_part(int tensor);
  // The same in type `to`. A number keeps the precision of the register: kernels of reduced types take it so.
  Typed load_as(int tensor, c10::ScalarType to);
  Typed number(int argument, c10::ScalarType type, int i = 0);
  Typed number_rounded(int argument, c10::ScalarType type, int i = 0);  // has been of `type` before
  Typed literal(double value, c10::ScalarType type);
  Typed rounded_number(Typed number);  // has been of its type before
  Typed negated(Typed number);
  Typed plus(Typed number, double offset);
  Typed convert(Typed value, c10::ScalarType to);
  // As if stored in its type: after each op of a kernel that computes in a wider register.
  Typed round(Typed value);

  Typed op(engines::Op op, Typed a, Typed b = {}, Typed c = {});
  Typed compare(engines::Op op, Typed a, Typed b);
  Typed select(Typed condition, Typed a, Typed b);
  Typed call(engines::Function function, Typed a, Typed b = {});
  Typed row(engines::RowFunction function, std::initializer_list<Typed> in, bool reduces);
  Typed concat(Typed a, Typed b);

  // Converts and stores.
  void store(int tensor, Typed value);
  void store_out(Typed value, int out = 0);
  // A value per row, into an output that has one element for each.
  void store_out_rows(Typed value, int out = 0);

  std::unique_ptr<Recipe> take();

 private:
  struct Arg {
    ArgKind kind;
    int tensor = 0, number = 0, count = 0;
    c10::IValue constant;
    std::vector<bool> present;
  };
  const Arg& arg(int i) const { return args_[static_cast<std::size_t>(i)]; }
  void begin(c10::IntArrayRef sizes, c10::IntArrayRef strides, bool keep_order);
  Ref operand(int tensor, bool read, bool written);
  Ref operand(int tensor, bool read, bool written, c10::IntArrayRef iteration);
  int out_index(int out) const;
  Typed filled(Typed value);
  Typed cpu_number(int tensor, c10::ScalarType type);
  bool is_dense(Ref ref) const;
  Typed add_number(NumberSource source, c10::ScalarType type);
  Typed add_step(Step step, c10::ScalarType type);
  std::int64_t elements_of(Ref ref) const;
  engines::Lane lane_of(Ref ref) const;

  const Plan& plan_;
  const Number* numbers_;
  std::vector<Arg> args_;
  std::unique_ptr<Recipe> recipe_;
  Piece* piece_ = nullptr;
  c10::DimVector sizes_;  // of the iteration
  c10::SmallVector<std::size_t, 5> order_;
  std::int64_t elements_ = 0;
  bool in_place_;
};

// -- The ops --
using Build = void (*)(Builder&);

// The type of the only output of a pointwise op, where it is known without a run.
enum class Prediction : std::uint8_t {
  kNone,
  kCommon,      // ATen's result type of all tensors
  kFloating,    // the same, or the default type for integers
  kWithNumber,  // of the first tensor and the number behind it
  kChosen,      // of the second and third tensor
  kFirst,       // that of the first tensor
  kBool,
};

struct Fusable {
  Build build;
  int (*variant)(const Number*) = nullptr;
  Prediction prediction = Prediction::kNone;
};
// Null for other ops.
const Fusable* find_fusable(const std::string& name);

// Filled by the recipes_*.cpp.
void register_fusable(std::initializer_list<const char*> names, Fusable fusable);

}  // namespace neuron::eager::fusion
