// The engines' own functions of elements and rows, against double precision.
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <vector>

#include "checks.h"
#include "engines/functions.h"
#include "test_engines.h"

using namespace neuron::engines;

namespace {

bool close(double got, double expected, double tolerance) {
  if (std::isnan(expected)) return std::isnan(got);
  if (std::isinf(expected) || expected == got) return got == expected;
  return std::fabs(got - expected) <= tolerance * std::fmax(std::fabs(expected), 1e-30);
}

// Fp32 functions run in fp32: some cancel, so they get as many units as the plain formula may lose.
constexpr double kFp32 = 4e-6, kFp64 = 1e-12;

double normal_cdf(double x) { return std::erfc(-x / std::sqrt(2.0)) / 2; }

double slope(const std::function<double(double)>& f, double x) {
  constexpr double kStep = 1e-5;
  return (f(x + kStep) - f(x - kStep)) / (2 * kStep);
}

double gelu_tanh(double x) { return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

void functions_of_elements() {
  using F = std::function<double(double)>;
  const std::map<Function, F> expected = {
      {Function::kExp, [](double x) { return std::exp(x); }},
      {Function::kExp2, [](double x) { return std::exp2(x); }},
      {Function::kExpm1, [](double x) { return std::expm1(x); }},
      {Function::kLog, [](double x) { return std::log(x); }},
      {Function::kLog2, [](double x) { return std::log2(x); }},
      {Function::kLog10, [](double x) { return std::log10(x); }},
      {Function::kLog1p, [](double x) { return std::log1p(x); }},
      {Function::kSin, [](double x) { return std::sin(x); }},
      {Function::kCos, [](double x) { return std::cos(x); }},
      {Function::kTan, [](double x) { return std::tan(x); }},
      {Function::kTanh, [](double x) { return std::tanh(x); }},
      {Function::kAtan, [](double x) { return std::atan(x); }},
      {Function::kErf, [](double x) { return std::erf(x); }},
      {Function::kErfc, [](double x) { return std::erfc(x); }},
      {Function::kSigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }},
      {Function::kSilu, [](double x) { return x / (1 + std::exp(-x)); }},
      {Function::kGelu, [](double x) { return x * normal_cdf(x); }},
      {Function::kGeluTanh, gelu_tanh},
      {Function::kSoftplus, [](double x) { return std::log1p(std::exp(x)); }},
      {Function::kLogSigmoid, [](double x) { return -std::log1p(std::exp(-x)); }},
      {Function::kSqrt, [](double x) { return std::sqrt(x); }},
      {Function::kRsqrt, [](double x) { return 1 / std::sqrt(x); }},
  };
  const double points[] = {-2.5, -1, -0.75, -0.25, -1e-3, 1e-3, 0.3, 0.5, 1, 1.7, 3, 0};
  constexpr auto n = static_cast<std::int64_t>(std::size(points));
  for (const auto& [function, f] : expected) {
    float x32[n], y32[n];
    double x64[n], y64[n];
    for (std::int64_t i = 0; i < n; ++i) x64[i] = x32[i] = static_cast<float>(points[i]);
    element_function(function, Dtype::kF32).fn(y32, x32, nullptr, n);
    element_function(function, Dtype::kF64).fn(y64, x64, nullptr, n);
    bool ok = true;
    for (std::int64_t i = 0; i < n; ++i) ok &= close(y32[i], f(x64[i]), kFp32) && close(y64[i], f(x64[i]), kFp64);
    if (!CHECK(ok)) std::fprintf(stderr, "function %d\n", static_cast<int>(function));
    CHECK(element_function(function, Dtype::kBF16).fn != nullptr);
    CHECK(element_function(function, Dtype::kI32).fn == nullptr);
  }
}

void inverse_of_erf() {
  const double y[] = {-0.999999, -0.9, -0.3, -1e-9, 0, 1e-12, 0.5, 0.95, 0.9999, 1, -1, 1.5};
  double x[std::size(y)];
  element_function(Function::kErfinv, Dtype::kF64).fn(x, y, nullptr, std::size(y));
  bool ok = true;
  for (std::size_t i = 0; i + 3 < std::size(y); ++i) ok &= close(std::erf(x[i]), y[i], 1e-12);
  CHECK(ok);
  CHECK(std::isinf(x[9]) && x[9] > 0 && std::isinf(x[10]) && x[10] < 0 && std::isnan(x[11]));
}

void large_arguments_stay_finite() {
  const double x[] = {800, -800};
  double y[2];
  element_function(Function::kSoftplus, Dtype::kF64).fn(y, x, nullptr, 2);
  CHECK(y[0] == 800 && y[1] == 0);
  element_function(Function::kLogSigmoid, Dtype::kF64).fn(y, x, nullptr, 2);
  CHECK(y[0] == 0 && y[1] == -800);
  element_function(Function::kSigmoid, Dtype::kF64).fn(y, x, nullptr, 2);
  CHECK(y[0] == 1 && y[1] == 0);
}

// A backward function is the gradient times the slope of the forward one, whose input or output it is given.
void functions_of_gradients() {
  struct Pair {
    Function backward, forward;
    bool takes_output;
  };
  const Pair pairs[] = {{Function::kSigmoidBackward, Function::kSigmoid, true},
                        {Function::kTanhBackward, Function::kTanh, true},
                        {Function::kSiluBackward, Function::kSilu, false},
                        {Function::kGeluBackward, Function::kGelu, false},
                        {Function::kGeluTanhBackward, Function::kGeluTanh, false}};
  for (const Pair& pair : pairs) {
    const auto forward = [&](double x) {
      double y;
      element_function(pair.forward, Dtype::kF64).fn(&y, &x, nullptr, 1);
      return y;
    };
    for (const double x : {-2.0, -0.6, 0.0, 0.4, 1.9}) {
      const double gradient = 0.7, b = pair.takes_output ? forward(x) : x;
      double got;
      element_function(pair.backward, Dtype::kF64).fn(&got, &gradient, &b, 1);
      const float gradient32 = 0.7f, b32 = static_cast<float>(b);
      float got32;
      element_function(pair.backward, Dtype::kF32).fn(&got32, &gradient32, &b32, 1);
      CHECK(close(got, gradient * slope(forward, x), 1e-8));
      CHECK(close(got32, got, 1e-5));
    }
  }
  const double a[] = {2, -3, 0.5}, b[] = {10, 3, -2};
  double power[3];
  element_function(Function::kPow, Dtype::kF64).fn(power, a, b, 3);
  CHECK(power[0] == 1024 && power[1] == -27 && power[2] == 4);
}

constexpr std::int64_t kRows = 2, kCols = 5;

template <class T>
void functions_of_rows(Dtype dtype, double tolerance) {
  const T x[kRows * kCols] = {1, -2, 3.5, 0.25, 7, -1, -1.5, -2, 0, -8};
  const T g[kRows * kCols] = {0.5, 1, -1, 2, 0.125, 1, 1, 0, -3, 2};
  const T weight[kRows * kCols] = {1, 2, 3, 4, 5, 1, 2, 3, 4, 5}, bias[kRows * kCols] = {0, 1, 0, 1, 0, 0, 1, 0, 1, 0};
  T out[kRows * kCols], mean[kRows], rstd[kRows];
  const auto run = [&](RowFunction f, void* to, std::initializer_list<const void*> in, double number = 0) {
    const void* operands[5] = {};
    std::copy(in.begin(), in.end(), operands);
    Scalar s{};
    if (sizeof(T) == 4)
      s.f32 = static_cast<float>(number);
    else
      s.f64 = number;
    row_function(f, dtype)(to, operands, &s, kRows, kCols);
  };
  double sums[kRows] = {}, squares[kRows] = {}, exps[kRows] = {};
  for (std::int64_t i = 0; i < kRows * kCols; ++i) {
    sums[i / kCols] += x[i];
    exps[i / kCols] += std::exp(static_cast<double>(x[i]));
  }
  for (std::int64_t i = 0; i < kRows * kCols; ++i) squares[i / kCols] += std::pow(x[i] - sums[i / kCols] / kCols, 2);

  run(RowFunction::kRowMeanForNorm, mean, {x});
  run(RowFunction::kRowRstdForNorm, rstd, {x}, 0.5);
  for (std::int64_t r = 0; r < kRows; ++r) {
    CHECK(close(mean[r], sums[r] / kCols, tolerance));
    CHECK(close(rstd[r], 1 / std::sqrt(squares[r] / kCols + 0.5), tolerance));
  }
  run(RowFunction::kSum, out, {x});
  CHECK(close(out[0], sums[0], tolerance) && close(out[1], sums[1], tolerance));
  run(RowFunction::kMean, out, {x});
  CHECK(close(out[0], sums[0] / kCols, tolerance) && close(out[1], sums[1] / kCols, tolerance));
  run(RowFunction::kMax, out, {x});
  CHECK(out[0] == 7 && out[1] == 0);
  run(RowFunction::kMin, out, {x});
  CHECK(out[0] == -2 && out[1] == -8);
  run(RowFunction::kVar, out, {x}, 1);
  CHECK(close(out[0], squares[0] / (kCols - 1), tolerance) && close(out[1], squares[1] / (kCols - 1), tolerance));
  run(RowFunction::kVar, out, {x}, kCols);
  CHECK(std::isinf(out[0]));

  T soft[kRows * kCols], log_soft[kRows * kCols], normed[kRows * kCols];
  run(RowFunction::kSoftmax, soft, {x});
  run(RowFunction::kLogSoftmax, log_soft, {x});
  run(RowFunction::kLayerNorm, normed, {x, mean, rstd, weight, bias});
  run(RowFunction::kLayerNorm, out, {x, mean, rstd});
  for (std::int64_t i = 0; i < kRows * kCols; ++i) {
    const std::int64_t r = i / kCols;
    CHECK(close(soft[i], std::exp(x[i]) / exps[r], tolerance));
    CHECK(close(log_soft[i], x[i] - std::log(exps[r]), tolerance));
    const double centred = (static_cast<double>(x[i]) - mean[r]) * rstd[r];
    CHECK(close(out[i], centred, tolerance));
    CHECK(close(normed[i], centred * weight[i] + bias[i], tolerance));
  }
  T soft_gradient[kRows * kCols], log_gradient[kRows * kCols];
  run(RowFunction::kSoftmaxBackward, soft_gradient, {g, soft});
  run(RowFunction::kLogSoftmaxBackward, log_gradient, {g, log_soft});
  for (std::int64_t i = 0; i < kRows * kCols; ++i) {
    const std::int64_t r = i / kCols;
    double dot = 0, sum = 0;
    for (std::int64_t c = r * kCols; c < (r + 1) * kCols; ++c) {
      dot += static_cast<double>(g[c]) * soft[c];
      sum += g[c];
    }
    CHECK(close(soft_gradient[i], (g[i] - dot) * soft[i], 10 * tolerance));
    CHECK(close(log_gradient[i], g[i] - std::exp(static_cast<double>(log_soft[i])) * sum, 10 * tolerance));
  }
}

void extremes_of_rows() {
  const float x[] = {1, NAN, 3, -INFINITY, -INFINITY, -INFINITY};
  float out[6];
  const void* in[5] = {x};
  row_function(RowFunction::kMax, Dtype::kF32)(out, in, nullptr, 2, 3);
  CHECK(std::isnan(out[0]) && out[1] == -INFINITY);
  row_function(RowFunction::kMin, Dtype::kF32)(out, in, nullptr, 2, 3);
  CHECK(std::isnan(out[0]) && out[1] == -INFINITY);
  const std::int64_t i[] = {INT64_MAX, 1, -5, 4};
  std::int64_t sums[2];
  in[0] = i;
  row_function(RowFunction::kSum, Dtype::kI32)(sums, in, nullptr, 2, 2);
  CHECK(sums[0] == INT64_MIN && sums[1] == -1);
  row_function(RowFunction::kMin, Dtype::kI64)(sums, in, nullptr, 2, 2);
  CHECK(sums[0] == 1 && sums[1] == -5);
  CHECK(row_function(RowFunction::kSoftmax, Dtype::kI64) == nullptr);
  CHECK(row_function(RowFunction::kSum, Dtype::kBool) == nullptr);
}

}  // namespace

void test_functions() {
  functions_of_elements();
  inverse_of_erf();
  large_arguments_stay_finite();
  functions_of_gradients();
  functions_of_rows<float>(Dtype::kF32, 2e-6);
  functions_of_rows<float>(Dtype::kBF16, 2e-6);
  functions_of_rows<double>(Dtype::kF64, 1e-13);
  extremes_of_rows();
}
