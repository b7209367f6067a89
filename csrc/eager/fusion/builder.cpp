#include "eager/fusion/builder.h"

#include <c10/core/DefaultDtype.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>
#include <string>

#include "eager/aten_math/exact.h"
#include "engines/functions.h"

namespace neuron::eager::fusion {

using c10::ScalarType;
using engines::Dtype;
using engines::Lane;
using engines::Op;

std::optional<Dtype> engine_dtype(ScalarType type) {
  switch (type) {
    case ScalarType::Float:
      return Dtype::kF32;
    case ScalarType::Double:
      return Dtype::kF64;
    case ScalarType::BFloat16:
      return Dtype::kBF16;
    case ScalarType::Half:
      return Dtype::kF16;
    case ScalarType::Long:
      return Dtype::kI64;
    case ScalarType::Int:
      return Dtype::kI32;
    case ScalarType::Short:
      return Dtype::kI16;
    case ScalarType::Char:
      return Dtype::kI8;
    case ScalarType::Byte:
      return Dtype::kU8;
    case ScalarType::Bool:
      return Dtype::kBool;
    default:
      return std::nullopt;
  }
}

Dtype required_dtype(ScalarType type) {
  const auto dtype = engine_dtype(type);
  if (!dtype) throw Builder::Unfusable{};
  return *dtype;
}

namespace {

ScalarType promote(ScalarType a, ScalarType b) {
  if (a == ScalarType::Undefined) return b;
  if (b == ScalarType::Undefined) return a;
  return c10::promoteTypes(a, b);
}

// ATen's rule: a category of operands decides unless a weaker one has a higher kind of number.
ScalarType combine(ScalarType higher, ScalarType lower) {
  if (higher != ScalarType::Undefined && c10::isFloatingType(higher)) return higher;
  if (higher == ScalarType::Bool || (lower != ScalarType::Undefined && c10::isFloatingType(lower)))
    return promote(higher, lower);
  return higher != ScalarType::Undefined ? higher : lower;
}

std::int64_t product(c10::IntArrayRef sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

}  // namespace

Builder::Builder(const OpInfo& op, const Plan& plan, const Number* numbers)
    : plan_(plan),
      numbers_(numbers),
      recipe_(std::make_unique<Recipe>()),
      in_place_(!op.args.empty() && op.args[0].written) {
  int tensor = 0, number = 0;
  for (const auto& a : plan.args) {
    Arg arg{a.kind, tensor, number, a.count, a.constant, a.present};
    switch (a.kind) {
      case ArgKind::kTensor:
        ++tensor;
        break;
      case ArgKind::kNumber:
        ++number;
        break;
      case ArgKind::kTensorList:
      case ArgKind::kOptionalTensorList:
        tensor += static_cast<int>(std::count(a.present.begin(), a.present.end(), true));
        break;
      case ArgKind::kNumberList:
        number += a.count;
        break;
      default:
        break;
    }
    args_.push_back(std::move(arg));
  }
}

ScalarType Builder::default_type() { return c10::get_default_dtype_as_scalartype(); }

bool Builder::repeats(int tensor) const {
  const auto& m = meta(tensor);
  return product(m.sizes) != elements_ || m.on_cpu;
}

int Builder::list_size(int argument) const { return arg(argument).count; }

int Builder::tensor(int argument, int i) const {
  const Arg& a = arg(argument);
  if (a.kind == ArgKind::kTensorList) {
    if (!a.present[static_cast<std::size_t>(i)]) throw Unfusable{};
  } else if (a.kind != ArgKind::kTensor) {
    throw Unfusable{};
  }
  return a.tensor + i;
}

double Builder::number_value(int argument, int i) const {
  if (!numbers_) throw Unfusable{};
  const auto value = numbers_[arg(argument).number + i].ivalue();
  return value.isDouble() ? value.toDouble() : static_cast<double>(value.toScalar().toLong());
}

bool Builder::is_integer(int argument, int i) const {
  return numbers_ && numbers_[arg(argument).number + i].type != Number::Type::kDouble;
}

bool Builder::is_bool(int argument) const {
  return numbers_ && numbers_[arg(argument).number].type == Number::Type::kBool;
}

ScalarType Builder::result_type(std::initializer_list<int> tensors, std::initializer_list<int> numbers) const {
  ScalarType with_dim = ScalarType::Undefined, without = ScalarType::Undefined, wrapped = ScalarType::Undefined;
  for (const int t : tensors) {
    auto current = type(t);
    if (meta(t).wrapped && c10::isFloatingType(current)) current = c10::get_default_dtype_as_scalartype();
    auto& category = !meta(t).sizes.empty() ? with_dim : meta(t).wrapped ? wrapped : without;
    category = promote(category, current);
  }
  for (const int n : numbers) {
    if (arg(n).kind != ArgKind::kNumber || !numbers_) throw Unfusable{};
    const auto kind = numbers_[arg(n).number].type;
    wrapped = promote(wrapped, kind == Number::Type::kBool  ? ScalarType::Bool
                               : kind == Number::Type::kInt ? ScalarType::Long
                                                            : c10::get_default_dtype_as_scalartype());
  }
  return combine(with_dim, combine(without, wrapped));
}

Ref Builder::operand(int tensor, bool read, bool written) { return operand(tensor, read, written, sizes_); }

Lane Builder::lane_of(Ref ref) const {
  switch (ref.kind) {
    case Ref::Kind::kStep:
      return piece_->steps[ref.index].result;
    case Ref::Kind::kOperand:
      return engines::lane_of(piece_->operands[ref.index].dtype);
    default:
      return piece_->numbers[ref.index].lane;
  }
}

std::int64_t Builder::elements_of(Ref ref) const {
  switch (ref.kind) {
    case Ref::Kind::kStep:
      return piece_->steps[ref.index].elements;
    case Ref::Kind::kOperand: {
      const auto& o = piece_->operands[ref.index];
      return o.map == Map::kFull ? o.elements : elements_;
    }
    default:
      return 0;
  }
}

Typed Builder::add_number(NumberSource source, ScalarType type) {
  source.lane = engines::lane_of(required_dtype(type));
  for (std::size_t i = 0; i < piece_->numbers.size(); ++i)
    if (piece_->numbers[i] == source) return {{Ref::Kind::kNumber, static_cast<std::uint16_t>(i)}, type};
  piece_->numbers.push_back(source);
  return {{Ref::Kind::kNumber, static_cast<std::uint16_t>(piece_->numbers.size() - 1)}, type};
}

// A CPU scalar as a number of `type`.
Typed Builder::cpu_number(int tensor, ScalarType type) {
  NumberSource source;
  source.kind = NumberSource::Kind::kTensor;
  source.index = static_cast<std::uint16_t>(tensor);
  source.type = this->type(tensor);
  required_dtype(source.type);
  return add_number(source, type);
}

Typed Builder::load(int tensor) {
  if (meta(tensor).on_cpu) return cpu_number(tensor, type(tensor));
  return {operand(tensor, true, false), type(tensor)};
}

Typed Builder::load_part(int tensor) {
  if (meta(tensor).on_cpu) throw Unfusable{};
  const Ref ref = operand(tensor, true, false, meta(tensor).sizes);
  if (piece_->operands[ref.index].map != Map::kFull) throw Unfusable{};
  return {ref, type(tensor)};
}

Typed Builder::load_as(int tensor, ScalarType to) {
  return meta(tensor).on_cpu ? cpu_number(tensor, to) : convert(load(tensor), to);
}

Typed Builder::number(int argument, ScalarType type, int i) {
  const Arg& a = arg(argument);
  if (a.kind == ArgKind::kConstant && a.constant.isScalar()) return literal(a.constant.toScalar().toDouble(), type);
  if (a.kind != ArgKind::kNumber && a.kind != ArgKind::kNumberList) throw Unfusable{};
  NumberSource source;
  source.kind = NumberSource::Kind::kNumber;
  source.index = static_cast<std::uint16_t>(a.number + i);
  const Recipe::Range range{source.index, type};
  auto& ranges = recipe_->ranges;
  if (std::find(ranges.begin(), ranges.end(), range) == ranges.end()) ranges.push_back(range);
  return add_number(source, type);
}

Typed Builder::number_rounded(int argument, ScalarType type, int i) {
  return rounded_number(number(argument, type, i));
}

Typed Builder::literal(double value, ScalarType type) {
  NumberSource source;
  source.literal = value;
  return add_number(source, type);
}

Typed Builder::rounded_number(Typed number) {
  NumberSource source = piece_->numbers[number.ref.index];
  source.round_to = number.type;
  return add_number(source, number.type);
}

Typed Builder::negated(Typed number) {
  NumberSource source = piece_->numbers[number.ref.index];
  source.negated = true;
  return add_number(source, number.type);
}

Typed Builder::plus(Typed number, double offset) {
  NumberSource source = piece_->numbers[number.ref.index];
  source.offset += offset;
  return add_number(source, number.type);
}

bool Builder::is_dense(Ref ref) const {
  if (ref.kind != Ref::Kind::kOperand) return ref.kind == Ref::Kind::kStep;
  const auto& o = piece_->operands[ref.index];
  return o.map == Map::kFull && o.dense;
}

Typed Builder::add_step(Step step, ScalarType type) {
  for (const auto& ref : step.in)
    if (ref.kind != Ref::Kind::kNone) step.elements = std::max(step.elements, elements_of(ref));
  if (!step.elements) step.elements = elements_;
  piece_->steps.push_back(step);
  return {{Ref::Kind::kStep, static_cast<std::uint16_t>(piece_->steps.size() - 1)}, type};
}

Typed Builder::convert(Typed value, ScalarType to) {
  if (value.type == to) return value;
  if (value.ref.kind == Ref::Kind::kNumber) {
    NumberSource source = piece_->numbers[value.ref.index];
    return add_number(source, to);
  }
  const Lane from_lane = lane_of(value.ref), to_lane = engines::lane_of(required_dtype(to));
  if (from_lane != to_lane) {
    Step step{Op::kCast};
    step.lane = from_lane;
    step.result = to_lane;
    step.in[0] = value.ref;
    value = add_step(step, to);
  }
  value.type = to;
  return round(value);
}

Typed Builder::round(Typed value) {
  const Dtype dtype = required_dtype(value.type);
  if (engines::is_lane(dtype) || value.ref.kind == Ref::Kind::kNumber) return value;
  Step step{Op::kRound};
  step.lane = step.result = engines::lane_of(dtype);
  step.dtype = dtype;
  step.in[0] = value.ref;
  return add_step(step, value.type);
}

Typed Builder::op(Op op, Typed a, Typed b, Typed c) {
  Step step{op};
  step.lane = step.result = lane_of(a.ref);
  step.in = {a.ref, b.ref, c.ref, {}, {}};
  return add_step(step, a.type);
}

Typed Builder::compare(Op op, Typed a, Typed b) {
  Step step{op};
  step.lane = lane_of(a.ref);
  step.result = Lane::kB8;
  step.in = {a.ref, b.ref, {}, {}, {}};
  return add_step(step, ScalarType::Bool);
}

Typed Builder::select(Typed condition, Typed a, Typed b) {
  Step step{Op::kSelect};
  step.lane = step.result = lane_of(a.ref);
  step.in = {condition.ref, a.ref, b.ref, {}, {}};
  return add_step(step, a.type);
}

Typed Builder::call(engines::Function function, Typed a, Typed b) {
  const Dtype dtype = required_dtype(a.type);
  // Where ATen asks for contiguous tensors, dense ones with their dimensions in another order do as well, except for
  // GELU of fp32, which oneDNN computes only in the usual order.
  const bool is_gelu = function == engines::Function::kGelu || function == engines::Function::kGeluBackward;
  const bool usual_order = std::is_sorted(order_.begin(), order_.end());
  const bool contiguous =
      is_dense(a.ref) && (b.ref.kind == Ref::Kind::kNone || is_dense(b.ref)) && (usual_order || !is_gelu);
  if (!aten_element_exact(function, dtype, elements_, contiguous)) throw Unfusable{};
  const auto& entry = engines::element_function(function, dtype);
  if (!entry.fn || a.ref.kind == Ref::Kind::kNumber || b.ref.kind == Ref::Kind::kNumber) throw Unfusable{};
  // Remainders are counted in the order of memory, over the whole tensor.
  if (entry.remainder && !contiguous) throw Unfusable{};
  Step step{Op::kCall};
  step.lane = step.result = lane_of(a.ref);
  step.dtype = dtype;
  step.function = static_cast<std::uint8_t>(function);
  step.in = {a.ref, b.ref, {}, {}, {}};
  return add_step(step, a.type);
}

Typed Builder::row(engines::RowFunction function, std::initializer_list<Typed> in, bool reduces) {
  const Typed first = *in.begin();
  const Dtype dtype = required_dtype(first.type);
  if (!engines::row_function(function, dtype) || !piece_->rows) throw Unfusable{};
  Step step{Op::kRow};
  step.lane = step.result = lane_of(first.ref);
  step.dtype = dtype;
  step.function = static_cast<std::uint8_t>(function);
  std::size_t i = 0;
  for (const auto& value : in) {
    if (!is_dense(value.ref)) throw Unfusable{};
    step.in[i++] = value.ref;
  }
  auto result = add_step(step, first.type);
  if (reduces) piece_->steps.back().elements = piece_->rows;
  return result;
}

Typed Builder::concat(Typed a, Typed b) {
  Step step{Op::kConcat};
  step.lane = step.result = lane_of(a.ref);
  step.in = {a.ref, b.ref, {}, {}, {}};
  auto result = add_step(step, a.type);
  piece_->steps.back().elements = elements_of(a.ref) + elements_of(b.ref);
  return result;
}

// A number in as many elements as the iteration has.
Typed Builder::filled(Typed value) {
  if (value.ref.kind != Ref::Kind::kNumber) return value;
  Step step{Op::kExpand};
  step.lane = step.result = lane_of(value.ref);
  step.in[0] = value.ref;
  return round(add_step(step, value.type));
}

void Builder::store(int tensor, Typed value) {
  const auto target = operand(tensor, false, true);
  piece_->results.push_back({target.index, filled(convert(round(value), type(tensor))).ref});
}

int Builder::out_index(int out) const {
  if (plan_.outs[static_cast<std::size_t>(out)].kind != OutKind::kFresh) throw Unfusable{};
  std::size_t fresh = 0;
  for (int i = 0; i < out; ++i) fresh += plan_.outs[static_cast<std::size_t>(i)].kind == OutKind::kFresh;
  return static_cast<int>(plan_.tensors.size() + fresh);
}

void Builder::store_out(Typed value, int out) {
  const auto target = operand(out_index(out), false, true);
  piece_->results.push_back({target.index, filled(convert(round(value), out_type(out))).ref});
}

std::unique_ptr<Recipe> Builder::take() {
  static std::atomic<std::uint64_t> next{1};
  recipe_->id = next.fetch_add(1);
  return std::move(recipe_);
}

}  // namespace neuron::eager::fusion
