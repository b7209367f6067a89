// Plain algorithms. Sums of fp32 lanes are accumulated in double, so their error is that of one rounding; those of
// double lanes in double, from left to right; those of integers wrap.
#include "engines/row_functions.h"

#include <cmath>

namespace neuron::engines {
namespace {

template <class T>
double sum_of(const T* x, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]);
  return sum;
}

template <class T>
double squares_about(const T* x, std::int64_t n, double mean) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const double d = static_cast<double>(x[i]) - mean;
    sum += d * d;
  }
  return sum;
}

template <class T>
T greatest(const T* x, std::int64_t n) {
  T m = x[0];
  for (std::int64_t i = 1; i < n; ++i) m = (x[i] > m || x[i] != x[i]) && m == m ? x[i] : m;
  return m;
}

template <class T>
T least(const T* x, std::int64_t n) {
  T m = x[0];
  for (std::int64_t i = 1; i < n; ++i) m = (x[i] < m || x[i] != x[i]) && m == m ? x[i] : m;
  return m;
}

// One row: `o` has one element for reductions, `n` otherwise; `in` points to this row of each operand.
template <RowFunction kFunction, class T>
void row(T* o, const T* const (&in)[5], const Scalar* scalars, std::int64_t n) {
  const auto number = [](const Scalar& s) {
    if constexpr (sizeof(T) == 4)
      return static_cast<double>(s.f32);
    else
      return s.f64;
  };
  const T* x = in[0];
  const auto count = static_cast<double>(n);
  if constexpr (kFunction == RowFunction::kSum) {
    *o = static_cast<T>(sum_of(x, n));
  } else if constexpr (kFunction == RowFunction::kMean || kFunction == RowFunction::kRowMeanForNorm) {
    *o = static_cast<T>(sum_of(x, n) / count);
  } else if constexpr (kFunction == RowFunction::kMax) {
    *o = greatest(x, n);
  } else if constexpr (kFunction == RowFunction::kMin) {
    *o = least(x, n);
  } else if constexpr (kFunction == RowFunction::kVar) {
    *o = static_cast<T>(squares_about(x, n, sum_of(x, n) / count) / std::fmax(0, count - number(scalars[0])));
  } else if constexpr (kFunction == RowFunction::kRowRstdForNorm) {
    const double variance = squares_about(x, n, sum_of(x, n) / count) / count;
    *o = static_cast<T>(1 / std::sqrt(variance + number(scalars[0])));
  } else if constexpr (kFunction == RowFunction::kSoftmax || kFunction == RowFunction::kLogSoftmax) {
    const T most = greatest(x, n);
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(std::exp(x[i] - most));
    const double log_sum = std::log(sum);
    for (std::int64_t i = 0; i < n; ++i)
      o[i] = static_cast<T>(kFunction == RowFunction::kSoftmax ? static_cast<double>(std::exp(x[i] - most)) / sum
                                                               : static_cast<double>(x[i] - most) - log_sum);
  } else if constexpr (kFunction == RowFunction::kSoftmaxBackward) {
    const T* y = in[1];
    double dot = 0;
    for (std::int64_t i = 0; i < n; ++i) dot += static_cast<double>(x[i]) * static_cast<double>(y[i]);
    for (std::int64_t i = 0; i < n; ++i)
      o[i] = static_cast<T>((static_cast<double>(x[i]) - dot) * static_cast<double>(y[i]));
  } else if constexpr (kFunction == RowFunction::kLogSoftmaxBackward) {
    const T* y = in[1];
    const double sum = sum_of(x, n);
    for (std::int64_t i = 0; i < n; ++i)
      o[i] = static_cast<T>(static_cast<double>(x[i]) - std::exp(static_cast<double>(y[i])) * sum);
  } else {
    static_assert(kFunction == RowFunction::kLayerNorm);
    const auto mean = static_cast<double>(*in[1]), rstd = static_cast<double>(*in[2]);
    for (std::int64_t i = 0; i < n; ++i) {
      double y = (static_cast<double>(x[i]) - mean) * rstd;
      if (in[3] != nullptr) y *= static_cast<double>(in[3][i]);
      if (in[4] != nullptr) y += static_cast<double>(in[4][i]);
      o[i] = static_cast<T>(y);
    }
  }
}

template <RowFunction kFunction, class T>
void rows(void* out, const void* const* in, const Scalar* scalars, std::int64_t rows, std::int64_t cols) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* of_row[5] = {};
    for (std::size_t i = 0; i < 5; ++i) {
      const bool per_row = is_per_row(kFunction, i);
      if (in[i] != nullptr) of_row[i] = static_cast<const T*>(in[i]) + r * (per_row ? 1 : cols);
    }
    row<kFunction, T>(static_cast<T*>(out) + r * (keeps_columns(kFunction) ? cols : 1), of_row, scalars, cols);
  }
}

template <RowFunction kFunction>
void integer_rows(void* out, const void* const* in, const Scalar*, std::int64_t rows, std::int64_t cols) {
  const auto* x = static_cast<const std::int64_t*>(in[0]);
  for (std::int64_t r = 0; r < rows; ++r, x += cols) {
    std::int64_t result;
    if constexpr (kFunction == RowFunction::kSum) {
      std::uint64_t sum = 0;
      for (std::int64_t i = 0; i < cols; ++i) sum += static_cast<std::uint64_t>(x[i]);
      result = static_cast<std::int64_t>(sum);
    } else {
      result = kFunction == RowFunction::kMax ? greatest(x, cols) : least(x, cols);
    }
    static_cast<std::int64_t*>(out)[r] = result;
  }
}

template <RowFunction kFunction>
RowFn typed(Dtype dtype) {
  switch (lane_of(dtype)) {
    case Lane::kF32:
      return rows<kFunction, float>;
    case Lane::kF64:
      return rows<kFunction, double>;
    case Lane::kI64:
      if constexpr (kFunction == RowFunction::kSum || kFunction == RowFunction::kMax || kFunction == RowFunction::kMin)
        return integer_rows<kFunction>;
      [[fallthrough]];
    default:
      return nullptr;
  }
}

}  // namespace

RowFn default_row_function(RowFunction function, Dtype dtype) {
  switch (function) {
    case RowFunction::kSum:
      return typed<RowFunction::kSum>(dtype);
    case RowFunction::kMean:
      return typed<RowFunction::kMean>(dtype);
    case RowFunction::kMax:
      return typed<RowFunction::kMax>(dtype);
    case RowFunction::kMin:
      return typed<RowFunction::kMin>(dtype);
    case RowFunction::kVar:
      return typed<RowFunction::kVar>(dtype);
    case RowFunction::kSoftmax:
      return typed<RowFunction::kSoftmax>(dtype);
    case RowFunction::kLogSoftmax:
      return typed<RowFunction::kLogSoftmax>(dtype);
    case RowFunction::kSoftmaxBackward:
      return typed<RowFunction::kSoftmaxBackward>(dtype);
    case RowFunction::kLogSoftmaxBackward:
      return typed<RowFunction::kLogSoftmaxBackward>(dtype);
    case RowFunction::kRowMeanForNorm:
      return typed<RowFunction::kRowMeanForNorm>(dtype);
    case RowFunction::kRowRstdForNorm:
      return typed<RowFunction::kRowRstdForNorm>(dtype);
    case RowFunction::kLayerNorm:
      return typed<RowFunction::kLayerNorm>(dtype);
    default:
      return nullptr;
  }
}

}  // namespace neuron::engines
