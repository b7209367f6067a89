// The registry of functions, and the engines' own definitions of functions of elements.
#include "engines/functions.h"

#include <cmath>
#include <limits>

#include "engines/kernels.h"
#include "engines/row_functions.h"

namespace neuron::engines {
namespace {

constexpr double kSqrtHalf = 0.70710678118654752440;       // 1 / sqrt(2)
constexpr double kInvSqrtTwoPi = 0.39894228040143267794;   // 1 / sqrt(2 pi): height of the normal density
constexpr double kSqrtTwoOverPi = 0.79788456080286535588;  // sqrt(2 / pi)
constexpr double kGeluCubic = 0.044715;  // of the tanh approximation of GELU (Hendrycks and Gimpel, arXiv 1606.08415)

template <class T>
T sigmoid(T x) {
  return T(1) / (T(1) + std::exp(-x));
}

// Giles' single precision approximation would do for fp32; Newton's iteration on erf from Winitzki's formula serves
// every precision.
double erfinv(double y) {
  if (!(y > -1 && y < 1)) {
    if (y == 1 || y == -1) return y * std::numeric_limits<double>::infinity();
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (y == 0) return y;
  constexpr double kA = 0.147, kTwoOverPiA = 2 / (3.14159265358979323846 * kA);
  const double ln = std::log1p(-y * y), t = kTwoOverPiA + ln / 2;
  double x = std::copysign(std::sqrt(std::sqrt(t * t - ln / kA) - t), y);
  constexpr double kHalfSqrtPi = 0.88622692545275801365;
  for (int i = 0; i < 3; ++i) {
    // The complement keeps its precision where erf is close to one, erf itself does near zero.
    const double error = std::fabs(y) < 0.5 ? y - std::erf(x)
                         : x > 0            ? std::erfc(x) - (1 - y)
                                            : (1 + y) - std::erfc(-x);
    x += error * kHalfSqrtPi * std::exp(x * x);
  }
  return x;
}

template <class T>
T gelu_tanh_inner(T x) {
  return T(kSqrtTwoOverPi) * (x + T(kGeluCubic) * x * x * x);
}

template <Function kFunction, class T>
T of(T x) {
  switch (kFunction) {
    case Function::kExp:
      return std::exp(x);
    case Function::kExp2:
      return std::exp2(x);
    case Function::kExpm1:
      return std::expm1(x);
    case Function::kLog:
      return std::log(x);
    case Function::kLog2:
      return std::log2(x);
    case Function::kLog10:
      return std::log10(x);
    case Function::kLog1p:
      return std::log1p(x);
    case Function::kSin:
      return std::sin(x);
    case Function::kCos:
      return std::cos(x);
    case Function::kTan:
      return std::tan(x);
    case Function::kTanh:
      return std::tanh(x);
    case Function::kAtan:
      return std::atan(x);
    case Function::kErf:
      return std::erf(x);
    case Function::kErfc:
      return std::erfc(x);
    case Function::kErfinv:
      return static_cast<T>(erfinv(static_cast<double>(x)));
    case Function::kSigmoid:
      return sigmoid(x);
    case Function::kSilu:
      return x / (T(1) + std::exp(-x));
    case Function::kGelu:
      return x * T(0.5) * (T(1) + std::erf(x * T(kSqrtHalf)));
    case Function::kGeluTanh:
      return T(0.5) * x * (T(1) + std::tanh(gelu_tanh_inner(x)));
    case Function::kSqrt:
      return std::sqrt(x);
    case Function::kRsqrt:
      return T(1) / std::sqrt(x);
    case Function::kSoftplus:  // max(x, 0) + log1p(exp(-|x|)) neither overflows nor cancels
      return (x > 0 ? x : T(0)) + std::log1p(std::exp(-std::fabs(x)));
    case Function::kLogSigmoid:
      return (x < 0 ? x : T(0)) - std::log1p(std::exp(-std::fabs(x)));
    default:
      return x;
  }
}

// Backward functions: `a` is the gradient; `b` is the output for sigmoid and tanh, the input otherwise.
template <Function kFunction, class T>
T of(T a, T b) {
  switch (kFunction) {
    case Function::kSigmoidBackward:
      return a * (T(1) - b) * b;
    case Function::kTanhBackward:
      return a * (T(1) - b * b);
    case Function::kSiluBackward: {
      const T s = sigmoid(b);
      return a * s * (T(1) + b * (T(1) - s));
    }
    case Function::kGeluBackward: {
      const T cdf = T(0.5) * (T(1) + std::erf(b * T(kSqrtHalf)));
      return a * (cdf + b * T(kInvSqrtTwoPi) * std::exp(T(-0.5) * b * b));
    }
    case Function::kGeluTanhBackward: {
      const T t = std::tanh(gelu_tanh_inner(b));
      const T slope = T(kSqrtTwoOverPi) * (T(1) + T(3 * kGeluCubic) * b * b);
      return a * (T(0.5) * (T(1) + t) + T(0.5) * b * (T(1) - t * t) * slope);
    }
    default:
      return std::pow(a, b);
  }
}

constexpr bool has_two_arguments(Function function) {
  switch (function) {
    case Function::kSigmoidBackward:
    case Function::kTanhBackward:
    case Function::kSiluBackward:
    case Function::kGeluBackward:
    case Function::kGeluTanhBackward:
    case Function::kPow:
      return true;
    default:
      return false;
  }
}

template <Function kFunction, class T>
void map(void* out, const void* a, const void* b, std::int64_t n) {
  auto* o = static_cast<T*>(out);
  const auto* x = static_cast<const T*>(a);
  const auto* y = static_cast<const T*>(b);
  for (std::int64_t i = 0; i < n; ++i) {
    if constexpr (has_two_arguments(kFunction))
      o[i] = of<kFunction, T>(x[i], y[i]);
    else
      o[i] = of<kFunction, T>(x[i]);
  }
}

constexpr std::size_t kFunctions = static_cast<std::size_t>(Function::kCount);
constexpr std::size_t kRowFunctions = static_cast<std::size_t>(RowFunction::kCount);

struct Registry {
  ElementFunction element[kFunctions][kDtypes];
  RowFn row[kRowFunctions][kDtypes] = {};

  template <std::size_t kIndex>
  void add() {
    constexpr auto function = static_cast<Function>(kIndex);
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16, Dtype::kF16})
      element[kIndex][index_of(dtype)].fn = map<function, float>;
    element[kIndex][index_of(Dtype::kF64)].fn = map<function, double>;
  }

  template <std::size_t... kIndices>
  void add_all(std::index_sequence<kIndices...>) {
    (add<kIndices>(), ...);
  }

  Registry() {
    add_all(std::make_index_sequence<kFunctions>{});
    for (std::size_t f = 0; f < kRowFunctions; ++f)
      for (std::size_t d = 0; d < kDtypes; ++d)
        row[f][d] = default_row_function(static_cast<RowFunction>(f), static_cast<Dtype>(d));
  }
};

Registry& registry() {
  static Registry registry;
  return registry;
}

}  // namespace

void register_function(Function function, Dtype dtype, const ElementFunction& entry) {
  registry().element[static_cast<std::size_t>(function)][index_of(dtype)] = entry;
}

void register_function(RowFunction function, Dtype dtype, RowFn fn) {
  registry().row[static_cast<std::size_t>(function)][index_of(dtype)] = fn;
}

const ElementFunction& element_function(Function function, Dtype dtype) {
  return registry().element[static_cast<std::size_t>(function)][index_of(dtype)];
}

RowFn row_function(RowFunction function, Dtype dtype) {
  return registry().row[static_cast<std::size_t>(function)][index_of(dtype)];
}

}  // namespace neuron::engines
