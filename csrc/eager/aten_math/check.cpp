#include "eager/aten_math/check.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/atan.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/erfc.h>
#include <ATen/ops/erfinv.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/exp2.h>
#include <ATen/ops/expm1.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/log.h>
#include <ATen/ops/log10.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/log2.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tan.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/var.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <tuple>
#include <vector>

namespace neuron::eager {
namespace {

using engines::Dtype;
using engines::ElementFunction;
using engines::Function;
using engines::RowFunction;

at::ScalarType scalar_type(Dtype dtype) {
  constexpr std::array kTypes = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};
  return kTypes[static_cast<std::size_t>(dtype)];
}

// What the registers of the engines hold of a tensor.
at::Tensor registers_of(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? tensor : tensor.to(at::kFloat);
}

// Ordinary magnitudes, with large, tiny and special ones among them; the same for every run.
at::Tensor sample(Dtype dtype, at::IntArrayRef sizes, unsigned seed) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr std::array kSpecial = {0.0, -0.0, 1.0, -1.0, 0.5, 20.0, 1e-40, 65504.0, -kInfinity, kInfinity};
  constexpr int kSpecialOneIn = 50;
  constexpr double kHalfWidth = 4;
  std::mt19937 bits(seed);
  at::Tensor tensor = at::empty(sizes, at::kDouble);
  auto* values = tensor.data_ptr<double>();
  for (std::int64_t i = 0; i < tensor.numel(); ++i) {
    const auto pick = bits();
    values[i] = pick % kSpecialOneIn == 0 ? kSpecial[pick / kSpecialOneIn % kSpecial.size()]
                                          : kHalfWidth * (2.0 * pick / std::mt19937::max() - 1);
  }
  return tensor.to(scalar_type(dtype));
}

template <class T>
bool same_elements(const at::Tensor& a, const at::Tensor& b) {
  const auto* x = a.const_data_ptr<T>();
  const auto* y = b.const_data_ptr<T>();
  for (std::int64_t i = 0; i < a.numel(); ++i) {
    if (std::isnan(x[i]) ? !std::isnan(y[i]) : x[i] != y[i] || std::signbit(x[i]) != std::signbit(y[i])) return false;
  }
  return true;
}

// `ours` holds registers, which are rounded first as the program's next instruction does.
bool same_bits(const at::Tensor& ours, const at::Tensor& atens) {
  const at::Tensor rounded = registers_of(ours.to(atens.scalar_type()));
  const at::Tensor expected = registers_of(atens.contiguous());
  return expected.scalar_type() == at::kDouble ? same_elements<double>(rounded, expected)
                                               : same_elements<float>(rounded, expected);
}

at::Tensor aten_result(Function function, const at::Tensor& a, const at::Tensor& b) {
  switch (function) {
    case Function::kExp:
      return at::exp(a);
    case Function::kExp2:
      return at::exp2(a);
    case Function::kExpm1:
      return at::expm1(a);
    case Function::kLog:
      return at::log(a);
    case Function::kLog2:
      return at::log2(a);
    case Function::kLog10:
      return at::log10(a);
    case Function::kLog1p:
      return at::log1p(a);
    case Function::kSin:
      return at::sin(a);
    case Function::kCos:
      return at::cos(a);
    case Function::kTan:
      return at::tan(a);
    case Function::kTanh:
      return at::tanh(a);
    case Function::kAtan:
      return at::atan(a);
    case Function::kErf:
      return at::erf(a);
    case Function::kErfc:
      return at::erfc(a);
    case Function::kErfinv:
      return at::erfinv(a);
    case Function::kSigmoid:
      return at::sigmoid(a);
    case Function::kSilu:
      return at::silu(a);
    case Function::kGelu:
      return at::gelu(a);
    case Function::kGeluTanh:
      return at::gelu(a, "tanh");
    case Function::kSigmoidBackward:
      return at::sigmoid_backward(a, b);
    case Function::kTanhBackward:
      return at::tanh_backward(a, b);
    case Function::kSiluBackward:
      return at::silu_backward(a, b);
    case Function::kGeluBackward:
      return at::gelu_backward(a, b);
    case Function::kGeluTanhBackward:
      return at::gelu_backward(a, b, "tanh");
    case Function::kPow:
      return at::pow(a, b);
    case Function::kSoftplus:
      return at::softplus(a);
    case Function::kLogSigmoid:
      return at::log_sigmoid(a);
    case Function::kSqrt:
      return at::sqrt(a);
    case Function::kRsqrt:
      return at::rsqrt(a);
    case Function::kCount:
      break;
  }
  TORCH_INTERNAL_ASSERT(false, "no such function");
}

// With the remainder's code on what is left after whole steps, as one thread would.
at::Tensor our_result(const ElementFunction& entry, const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = registers_of(a);
  const at::Tensor y = registers_of(b);
  at::Tensor out = at::empty_like(x);
  const std::int64_t n = x.numel();
  entry.fn(out.data_ptr(), x.const_data_ptr(), y.const_data_ptr(), n);
  if (entry.remainder != nullptr) {
    const std::int64_t from = n / entry.step * entry.step;
    const auto rest_of = [&](const at::Tensor& tensor) {
      return static_cast<char*>(tensor.data_ptr()) + from * static_cast<std::int64_t>(tensor.element_size());
    };
    entry.remainder(rest_of(out), rest_of(x), rest_of(y), n - from);
  }
  return out;
}

struct RowInputs {
  at::Tensor x;
  at::Tensor y;  // the output that a backward function gets
  at::Tensor weight;
  at::Tensor bias;
};

constexpr double kEps = 1e-5;

at::Tensor aten_result(RowFunction function, const RowInputs& in) {
  const auto norm = [&] { return at::native_layer_norm(in.x, in.x.sizes().slice(1), in.weight, in.bias, kEps); };
  switch (function) {
    case RowFunction::kSum:
      return at::sum(in.x, {-1});
    case RowFunction::kMean:
      return at::mean(in.x, {-1});
    case RowFunction::kMax:
      return at::amax(in.x, {-1});
    case RowFunction::kMin:
      return at::amin(in.x, {-1});
    case RowFunction::kVar:
      return at::var(in.x, at::OptionalIntArrayRef(-1), at::Scalar(1));
    case RowFunction::kSoftmax:
      return at::_softmax(in.x, -1, false);
    case RowFunction::kLogSoftmax:
      return at::_log_softmax(in.x, -1, false);
    case RowFunction::kSoftmaxBackward:
      return at::_softmax_backward_data(in.x, in.y, -1, in.x.scalar_type());
    case RowFunction::kLogSoftmaxBackward:
      return at::_log_softmax_backward_data(in.x, in.y, -1, in.x.scalar_type());
    case RowFunction::kRowMeanForNorm:
      return std::get<1>(norm());
    case RowFunction::kRowRstdForNorm:
      return std::get<2>(norm());
    case RowFunction::kLayerNorm:
      return std::get<0>(norm());
    case RowFunction::kCount:
      break;
  }
  TORCH_INTERNAL_ASSERT(false, "no such function");
}

at::Tensor our_result(RowFunction function, Dtype dtype, const AtenMathTable& table, const RowInputs& in) {
  const at::Tensor x = registers_of(in.x);
  const std::int64_t rows = x.size(0);
  const std::int64_t cols = x.size(1);
  const auto run = [&](RowFunction which, at::Tensor out, std::vector<at::Tensor> operands, double number) {
    std::array<const void*, 5> pointers{};
    for (std::size_t i = 0; i < operands.size(); ++i) pointers[i] = operands[i].const_data_ptr();
    engines::Scalar scalar;
    if (dtype == Dtype::kF64) {
      scalar.f64 = number;
    } else {
      scalar.f32 = static_cast<float>(number);
    }
    table.at(which, dtype)(out.data_ptr(), pointers.data(), &scalar, rows, cols);
    return out;
  };
  const auto per_row = [&] { return at::empty({rows}, x.options()); };
  switch (function) {
    case RowFunction::kSum:
    case RowFunction::kMean:
    case RowFunction::kMax:
    case RowFunction::kMin:
    case RowFunction::kRowMeanForNorm:
      return run(function, per_row(), {x}, 0);
    case RowFunction::kVar:
      return run(function, per_row(), {x}, 1);
    case RowFunction::kRowRstdForNorm:
      return run(function, per_row(), {x}, kEps);
    case RowFunction::kLayerNorm: {
      const at::Tensor mean = run(RowFunction::kRowMeanForNorm, per_row(), {x}, 0);
      const at::Tensor rstd = run(RowFunction::kRowRstdForNorm, per_row(), {x}, kEps);
      const auto for_all_rows = [&](const at::Tensor& t) { return registers_of(t).expand_as(x).contiguous(); };
      return run(function, at::empty_like(x), {x, mean, rstd, for_all_rows(in.weight), for_all_rows(in.bias)}, 0);
    }
    default:
      return run(function, at::empty_like(x), {x, registers_of(in.y)}, 0);
  }
}

}  // namespace

bool same_bits_as_aten(Function function, Dtype dtype, const ElementFunction& candidate) {
  at::AutoDispatchBelowADInplaceOrView below;
  const at::Tensor a = sample(dtype, {1013}, 1);  // a prime: something is left over for every step
  const at::Tensor b = sample(dtype, {1013}, 2);
  const auto same = [&](std::int64_t from, std::int64_t n) {
    const at::Tensor x = a.narrow(0, from, n);
    const at::Tensor y = b.narrow(0, from, n);
    return same_bits(our_result(candidate, x, y), aten_result(function, x, y));
  };
  if (!same(0, a.numel())) return false;
  // Where the remainder begins shows in tensors of few elements.
  for (const std::int64_t n : {7, 24, 40}) {
    for (std::int64_t from = 0; from < 3 * n; from += n) {
      if (!same(from, n)) return false;
    }
  }
  return true;
}

bool same_bits_as_aten(RowFunction function, Dtype dtype, const AtenMathTable& candidate) {
  at::AutoDispatchBelowADInplaceOrView below;
  // From less than a vector to several levels of the chunked algorithms, with and without remainders.
  for (const std::int64_t cols : {3, 16, 29, 333, 1029}) {
    RowInputs in;
    in.x = sample(dtype, {9, cols}, 3);
    const at::Tensor logits = sample(dtype, {9, cols}, 4);
    in.y = function == RowFunction::kLogSoftmaxBackward ? at::_log_softmax(logits, -1, false)
                                                        : at::_softmax(logits, -1, false);
    in.weight = sample(dtype, {cols}, 5);
    in.bias = sample(dtype, {cols}, 6);
    if (!same_bits(our_result(function, dtype, candidate, in), aten_result(function, in))) return false;
  }
  return true;
}

}  // namespace neuron::eager
