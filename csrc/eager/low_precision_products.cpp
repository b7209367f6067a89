// ATen's matrix products on the tensor engine. Calls that ATen would refuse go to ATen, which words the error.
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>

#include <array>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "eager/low_precision.h"
#include "engines/tensor_engine.h"

namespace neuron::eager {

namespace {

using at::Tensor;
using engines::Format;
using engines::Matrices;
using torch::jit::Stack;

std::optional<Format> format_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return Format::kFloat32;
    case at::kBFloat16:
      return Format::kBFloat16;
    case at::kHalf:
      return Format::kFloat16;
    case at::kFloat8_e4m3fn:
      return Format::kFloat8E4M3;
    case at::kFloat8_e5m2:
      return Format::kFloat8E5M2;
    default:
      return std::nullopt;
  }
}

// A tensor of two dimensions, or of three with the batch first.
Matrices matrices(const Tensor& t) {
  Matrices m;
  m.data = t.const_data_ptr();
  m.format = *format_of(t.scalar_type());
  const auto d = t.dim();
  m.batch_stride = d == 3 ? t.stride(0) : 0;
  m.row_stride = t.stride(d - 2);
  m.column_stride = t.stride(d - 1);
  return m;
}

// The bytes from the first element of a tensor to its last.
std::pair<const char*, const char*> extent(const Tensor& t) {
  const auto* begin = static_cast<const char*>(t.const_data_ptr());
  if (t.numel() == 0) return {begin, begin};
  std::int64_t last = 0;
  for (std::int64_t d = 0; d < t.dim(); ++d) last += (t.size(d) - 1) * t.stride(d);
  return {begin, begin + (last + 1) * t.element_size()};
}

bool overlap(const Tensor& a, const Tensor& b) {
  const auto [a_begin, a_end] = extent(a);
  const auto [b_begin, b_end] = extent(b);
  return a_begin < b_end && b_begin < a_end;
}

// What a product is called with, and how its operands are shaped.
enum class Shape { kMatrices, kBatches, kSummedBatches, kMatrixVector, kVectors };
enum class Target { kNew, kOut, kInPlace };

struct Op {
  const char* name;
  const char* overload;
  Shape shape;
  bool addend;  // arguments: addend, left, right, beta, alpha; otherwise: left, right
  Target target;

  std::size_t arguments() const { return (addend ? 5 : 2) + (target == Target::kOut ? 1 : 0); }
};

struct Operands {
  Tensor addend, left, right, out;
  at::DimVector sizes;  // of the output
  float alpha = 1, beta = 0;
};

// The sizes of the output; nothing when the operands do not fit each other.
std::optional<at::DimVector> product_sizes(Shape shape, const Tensor& left, const Tensor& right) {
  const auto dims = [&](std::int64_t l, std::int64_t r) { return left.dim() == l && right.dim() == r; };
  switch (shape) {
    case Shape::kMatrices:
      if (!dims(2, 2) || left.size(1) != right.size(0)) break;
      return at::DimVector{left.size(0), right.size(1)};
    case Shape::kBatches:
    case Shape::kSummedBatches:
      if (!dims(3, 3) || left.size(0) != right.size(0) || left.size(2) != right.size(1)) break;
      if (shape == Shape::kSummedBatches) return at::DimVector{left.size(1), right.size(2)};
      return at::DimVector{left.size(0), left.size(1), right.size(2)};
    case Shape::kMatrixVector:
      if (!dims(2, 1) || left.size(1) != right.size(0)) break;
      return at::DimVector{left.size(0)};
    case Shape::kVectors:
      if (!dims(1, 1) || left.size(0) != right.size(0)) break;
      return at::DimVector{};
  }
  return std::nullopt;
}

std::optional<Operands> operands(const Op& op, const Stack& stack) {
  const auto argument = [&](std::size_t i) -> const c10::IValue& { return torch::jit::peek(stack, i, op.arguments()); };
  Operands o;
  const std::size_t first = op.addend ? 1 : 0;
  o.left = argument(first).toTensor();
  o.right = argument(first + 1).toTensor();
  auto sizes = product_sizes(op.shape, o.left, o.right);
  if (!sizes) return std::nullopt;
  o.sizes = std::move(*sizes);
  if (op.addend) {
    o.addend = argument(0).toTensor();
    o.beta = argument(3).toScalar().toFloat();
    o.alpha = argument(4).toScalar().toFloat();
    if (!at::is_expandable_to(o.addend.sizes(), o.sizes)) return std::nullopt;
  }
  if (op.target == Target::kOut) o.out = argument(op.arguments() - 1).toTensor();
  if (op.target == Target::kInPlace) o.out = o.addend;
  if (o.out.defined() && at::has_internal_overlap(o.out) != at::MemOverlap::No) return std::nullopt;
  if (op.target == Target::kInPlace && !o.out.sizes().equals(o.sizes)) return std::nullopt;
  return o;
}

// A vector stands for a matrix of one column, on the left of another vector for one of one row. The stride along a side
// of length 1 is never used.
Matrices left_matrices(const Operands& o, Shape shape) {
  if (shape != Shape::kVectors) return matrices(o.left);
  return {o.left.const_data_ptr(), *format_of(o.left.scalar_type()), 0, 0, o.left.stride(0)};
}
Matrices column_or_matrices(const Tensor& t, Shape shape) {
  if (shape != Shape::kMatrixVector && shape != Shape::kVectors) return matrices(t);
  return {t.const_data_ptr(), *format_of(t.scalar_type()), 0, t.dim() ? t.stride(0) : 0, 0};
}

void multiply(const Operands& o, Shape shape, const Tensor& out) {
  engines::Product p;
  p.left = left_matrices(o, shape);
  p.right = column_or_matrices(o.right, shape);
  p.out = column_or_matrices(out, shape);
  const bool batches = shape == Shape::kBatches || shape == Shape::kSummedBatches;
  p.batch = batches ? o.left.size(0) : 1;
  p.sum_over_batch = shape == Shape::kSummedBatches;
  p.rows = shape == Shape::kVectors ? 1 : o.left.size(batches ? 1 : 0);
  p.columns = shape == Shape::kVectors || shape == Shape::kMatrixVector ? 1 : o.right.size(batches ? 2 : 1);
  p.depth = o.left.size(o.left.dim() - 1);
  p.alpha = o.alpha;
  if (o.addend.defined() && o.beta != 0) {
    p.beta = o.beta;
    p.addend = column_or_matrices(o.addend.sizes().equals(o.sizes) ? o.addend : o.addend.expand(o.sizes), shape);
  }
  engines::multiply(p);
}

// Whether the output may be written while the operands are still read.
bool may_write_through(const Operands& o) {
  if (overlap(o.out, o.left) || overlap(o.out, o.right)) return false;
  if (!o.addend.defined() || o.beta == 0 || !overlap(o.out, o.addend)) return true;
  return o.addend.const_data_ptr() == o.out.const_data_ptr() && o.addend.sizes().equals(o.out.sizes()) &&
         o.addend.strides().equals(o.out.strides());
}

void redispatch(const c10::OperatorHandle& op, Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

template <const Op& op>
void product(Stack* stack) {
  auto o = operands(op, *stack);
  if (!o) {
    static const auto aten = c10::Dispatcher::singleton().findSchemaOrThrow(op.name, op.overload);
    return redispatch(aten, stack);
  }
  if (op.target == Target::kNew) {
    o->out = at::empty(o->sizes, o->left.options());
    multiply(*o, op.shape, o->out);
  } else {
    if (op.target == Target::kOut) at::native::resize_output(o->out, o->sizes);
    if (may_write_through(*o)) {
      multiply(*o, op.shape, o->out);
    } else {
      const auto result = at::empty(o->sizes, o->left.options());
      multiply(*o, op.shape, result);
      o->out.copy_(result);
    }
  }
  torch::jit::drop(*stack, op.arguments());
  stack->emplace_back(std::move(o->out));
}

// The activation is computed on the fp32 sums, as ScalarE computes it on PSUM.
void addmm_activation(Stack* stack) {
  static constexpr Op kLayout{"aten::addmm", "", Shape::kMatrices, true, Target::kNew};
  const bool gelu = stack->back().toBool();
  Stack arguments(stack->end() - 6, stack->end() - 1);
  const auto o = operands(kLayout, arguments);
  if (!o) {
    static const auto aten = c10::Dispatcher::singleton().findSchemaOrThrow("aten::_addmm_activation", "");
    return redispatch(aten, stack);
  }
  auto sums = at::empty(o->sizes, o->left.options().dtype(at::kFloat));
  multiply(*o, kLayout.shape, sums);
  sums = gelu ? at::gelu(sums, "tanh") : at::relu(sums);
  torch::jit::drop(*stack, 6);
  stack->emplace_back(sums.to(o->left.scalar_type()));
}

// How ATen reads the scales of an fp8 product: one for the tensor, or one for each row of the left operand and each
// column of the right one.
bool is_tensor_scale(const Tensor& scale) { return scale.scalar_type() == at::kFloat && scale.numel() == 1; }
bool is_row_scale(const Tensor& scale, std::int64_t rows, std::int64_t columns) {
  return scale.scalar_type() == at::kFloat && scale.dim() == 2 && scale.size(0) == rows && scale.size(1) == columns &&
         scale.is_contiguous();
}

struct ScaledOperands {
  Tensor left, right, row_scale, column_scale, bias, out;
  float out_scale = 1;
  at::ScalarType out_dtype;
};

std::optional<ScaledOperands> scaled_operands(c10::ArrayRef<c10::IValue> arguments) {
  ScaledOperands o;
  const auto optional = [&](std::size_t i) { return arguments[i].isNone() ? Tensor() : arguments[i].toTensor(); };
  o.left = arguments[0].toTensor();
  o.right = arguments[1].toTensor();
  o.row_scale = arguments[2].toTensor();
  o.column_scale = arguments[3].toTensor();
  o.bias = optional(4);
  const Tensor result_scale = optional(5);
  const auto dtype = arguments[6].toOptional<at::ScalarType>();
  if (arguments.size() == 9) o.out = arguments[8].toTensor();
  o.out_dtype = o.out.defined() ? o.out.scalar_type() : dtype.value_or(o.left.scalar_type());
  const auto sizes = product_sizes(Shape::kMatrices, o.left, o.right);
  if (!sizes || !format_of(o.out_dtype) || (dtype && *dtype != o.out_dtype)) return std::nullopt;
  const auto rows = o.left.size(0), columns = o.right.size(1);
  if (!(is_tensor_scale(o.row_scale) && is_tensor_scale(o.column_scale)) &&
      !(is_row_scale(o.row_scale, rows, 1) && is_row_scale(o.column_scale, 1, columns)))
    return std::nullopt;
  if (o.bias.defined() && (o.bias.dim() != 1 || o.bias.size(0) != columns || !format_of(o.bias.scalar_type())))
    return std::nullopt;
  if (result_scale.defined()) {
    if (!is_tensor_scale(result_scale)) return std::nullopt;
    if (dtype == at::kFloat8_e4m3fn || dtype == at::kFloat8_e5m2)
      o.out_scale = 1 / *result_scale.const_data_ptr<float>();
  }
  if (o.out.defined() && (at::has_internal_overlap(o.out) != at::MemOverlap::No || overlap(o.out, o.left) ||
                          overlap(o.out, o.right) || (o.bias.defined() && overlap(o.out, o.bias))))
    return std::nullopt;
  return o;
}

template <bool has_out>
void scaled_mm(Stack* stack) {
  constexpr std::size_t kArguments = has_out ? 9 : 8;
  auto o = scaled_operands(torch::jit::last(*stack, kArguments));
  if (!o) {
    static const auto aten = c10::Dispatcher::singleton().findSchemaOrThrow("aten::_scaled_mm", has_out ? "out" : "");
    return redispatch(aten, stack);
  }
  const at::DimVector sizes{o->left.size(0), o->right.size(1)};
  if (has_out)
    at::native::resize_output(o->out, sizes);
  else
    o->out = at::empty(sizes, o->left.options().dtype(o->out_dtype));
  engines::Product p;
  p.rows = sizes[0];
  p.columns = sizes[1];
  p.depth = o->left.size(1);
  p.left = matrices(o->left);
  p.right = matrices(o->right);
  p.out = matrices(o->out);
  p.alpha = o->out_scale;
  p.row_scale = o->row_scale.const_data_ptr<float>();
  p.column_scale = o->column_scale.const_data_ptr<float>();
  p.row_scale_stride = o->row_scale.numel() == 1 ? 0 : 1;
  p.column_scale_stride = o->column_scale.numel() == 1 ? 0 : 1;
  if (o->bias.defined()) {
    p.beta = o->out_scale;
    p.addend = {o->bias.const_data_ptr(), *format_of(o->bias.scalar_type()), 0, 0, o->bias.stride(0)};
  }
  engines::multiply(p);
  torch::jit::drop(*stack, kArguments);
  stack->emplace_back(std::move(o->out));
}

constexpr Op kOps[] = {
    {"aten::mm", "", Shape::kMatrices, false, Target::kNew},
    {"aten::mm", "out", Shape::kMatrices, false, Target::kOut},
    {"aten::bmm", "", Shape::kBatches, false, Target::kNew},
    {"aten::bmm", "out", Shape::kBatches, false, Target::kOut},
    {"aten::mv", "", Shape::kMatrixVector, false, Target::kNew},
    {"aten::mv", "out", Shape::kMatrixVector, false, Target::kOut},
    {"aten::dot", "", Shape::kVectors, false, Target::kNew},
    {"aten::dot", "out", Shape::kVectors, false, Target::kOut},
    {"aten::vdot", "", Shape::kVectors, false, Target::kNew},
    {"aten::vdot", "out", Shape::kVectors, false, Target::kOut},
    {"aten::addmm", "", Shape::kMatrices, true, Target::kNew},
    {"aten::addmm", "out", Shape::kMatrices, true, Target::kOut},
    {"aten::addmm_", "", Shape::kMatrices, true, Target::kInPlace},
    {"aten::baddbmm", "", Shape::kBatches, true, Target::kNew},
    {"aten::baddbmm", "out", Shape::kBatches, true, Target::kOut},
    {"aten::baddbmm_", "", Shape::kBatches, true, Target::kInPlace},
    {"aten::addbmm", "", Shape::kSummedBatches, true, Target::kNew},
    {"aten::addbmm", "out", Shape::kSummedBatches, true, Target::kOut},
    {"aten::addbmm_", "", Shape::kSummedBatches, true, Target::kInPlace},
    {"aten::addmv", "", Shape::kMatrixVector, true, Target::kNew},
    {"aten::addmv", "out", Shape::kMatrixVector, true, Target::kOut},
    {"aten::addmv_", "", Shape::kMatrixVector, true, Target::kInPlace},
};

template <std::size_t... I>
auto named_kernels(std::index_sequence<I...>) {
  return std::array<NamedKernel, sizeof...(I)>{
      NamedKernel{kOps[I].name, kOps[I].overload, LowPrecision::kAllTensors, &product<kOps[I]>}...};
}

}  // namespace

c10::ArrayRef<NamedKernel> low_precision_products() {
  static const auto kernels = [] {
    const auto products = named_kernels(std::make_index_sequence<std::size(kOps)>());
    std::vector<NamedKernel> all(products.begin(), products.end());
    all.push_back({"aten::_addmm_activation", "", LowPrecision::kAllTensors, &addmm_activation});
    all.push_back({"aten::_scaled_mm", "", LowPrecision::kFloat8, &scaled_mm<false>});
    all.push_back({"aten::_scaled_mm", "out", LowPrecision::kFloat8, &scaled_mm<true>});
    return all;
  }();
  return kernels;
}

}  // namespace neuron::eager
