// The row kernels of every instruction set that the machine has: formats against plain rounding, functions against
// <cmath> in double, operators against each other at all the lengths that end in a partial vector.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "checks.h"
#include "engines/isa/attributes.h"
#include "engines/isa/row_kernels.h"
#include "test_engines.h"

using namespace neuron::engines::isa;

namespace {

constexpr std::int64_t kCount = 1000;

std::vector<float> spread(float low, float high) {
  std::vector<float> result(kCount);
  for (std::int64_t i = 0; i < kCount; ++i)
    result[static_cast<std::size_t>(i)] = low + (high - low) * static_cast<float>(i) / (kCount - 1);
  return result;
}

void test_function(Function function, double (*reference)(double), float low, float high, double relative,
                   double absolute) {
  const std::vector<float> x = spread(low, high);
  std::vector<float> y(kCount);
  row_kernels().function[index_of(function)](x.data(), y.data(), kCount, 0);
  bool close = true;
  for (std::size_t i = 0; i < kCount; ++i) {
    const double exact = reference(x[i]);
    close &= std::fabs(y[i] - exact) <= relative * std::fabs(exact) + absolute;
  }
  CHECK(close);
}

void test_functions_of_isa() {
  test_function(Function::kExp, [](double x) { return std::exp(x); }, -87, 88, 2e-7, 0);
  test_function(Function::kLog, [](double x) { return std::log(x); }, 1e-3f, 1e6f, 2e-7, 2e-8);
  test_function(Function::kTanh, [](double x) { return std::tanh(x); }, -12, 12, 3e-7, 0);
  test_function(Function::kErf, [](double x) { return std::erf(x); }, -5, 5, 3e-7, 0);
  test_function(Function::kGelu, [](double x) { return x * 0.5 * std::erfc(-x / std::sqrt(2.0)); }, -12, 12, 1e-6, 0);
  test_function(Function::kSoftplus, [](double x) { return std::log1p(std::exp(x)); }, -20, 20, 3e-7, 0);
  test_function(Function::kArctan, [](double x) { return std::atan(x); }, -50, 50, 3e-7, 0);
  test_function(Function::kCos, [](double x) { return std::cos(x); }, -1000, 1000, 2e-7, 1e-9);
  test_function(Function::kFloor, [](double x) { return std::floor(x); }, -50, 50, 0, 0);
  test_function(Function::kCeil, [](double x) { return std::ceil(x); }, -50, 50, 0, 0);
  test_function(Function::kTrunc, [](double x) { return std::trunc(x); }, -50, 50, 0, 0);
}

// The element nearest to x among all of an 8-bit type, the even one of two; finite x within the type's range.
std::uint8_t nearest_of(const std::vector<float>& elements, float x) {
  int best = -1;
  for (int i = 0; i < 256; ++i) {
    const float element = elements[static_cast<std::size_t>(i)];
    if (!std::isfinite(element) || std::signbit(element) != std::signbit(x)) continue;
    if (best < 0) best = i;
    const float closest = elements[static_cast<std::size_t>(best)];
    const float distance = std::fabs(element - x), least = std::fabs(closest - x);
    if (distance < least || (distance == least && (i & 1) == 0)) best = i;
  }
  return static_cast<std::uint8_t>(best);
}

void test_formats_of_isa() {
  const RowKernels& k = row_kernels();
  std::vector<std::uint8_t> patterns(256), back(256);
  for (int i = 0; i < 256; ++i) patterns[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(i);
  for (const Type type : {Type::kFloat8E4M3, Type::kFloat8E4M3FN, Type::kFloat8E5M2}) {
    std::vector<float> elements(256);
    k.widen[index_of(type)](patterns.data(), elements.data(), 256);
    k.narrow[index_of(type)](elements.data(), back.data(), 256);
    bool same = true;
    for (std::size_t i = 0; i < 256; ++i) same &= std::isnan(elements[i]) || back[i] == patterns[i];
    CHECK(same);
    const std::vector<float> x = spread(-200.0f, 200.0f);
    std::vector<std::uint8_t> narrow(kCount);
    k.narrow[index_of(type)](x.data(), narrow.data(), kCount);
    bool nearest = true;
    for (std::size_t i = 0; i < kCount; ++i) nearest &= narrow[i] == nearest_of(elements, x[i]);
    CHECK(nearest);
  }
  const std::vector<float> x = {0.5f,
                                1.5f,
                                2.5f,
                                -0.5f,
                                -1.5f,
                                3e9f,
                                -3e9f,
                                300.0f,
                                -300.0f,
                                std::numeric_limits<float>::quiet_NaN(),
                                std::numeric_limits<float>::infinity()};
  std::int32_t wide[11];
  std::int8_t byte[11];
  std::uint32_t positive[11];
  k.narrow[index_of(Type::kInt32)](x.data(), wide, 11);
  k.narrow[index_of(Type::kInt8)](x.data(), byte, 11);
  k.narrow[index_of(Type::kUInt32)](x.data(), positive, 11);
  constexpr std::int32_t kTop = 0x7fffffff;
  const std::int32_t wide_expected[] = {0, 2, 2, 0, -2, kTop, -kTop - 1, 300, -300, 0, kTop};
  const std::int8_t byte_expected[] = {0, 2, 2, 0, -2, 127, -128, 127, -128, 0, 127};
  const std::uint32_t positive_expected[] = {0, 2, 2, 0, 0, 3000000000u, 0, 300, 0, 0, 0xffffffffu};
  CHECK(std::memcmp(wide, wide_expected, sizeof wide) == 0);
  CHECK(std::memcmp(byte, byte_expected, sizeof byte) == 0);
  CHECK(std::memcmp(positive, positive_expected, sizeof positive) == 0);
}

void test_lengths_of_isa() {
  const RowKernels& k = row_kernels();
  const std::vector<float> a = spread(-3, 3), b = spread(2, -1);
  bool right = true;
  for (std::int64_t n = 1; n < 80; ++n) {
    std::vector<float> out(80, 7.0f);
    k.binary[index_of(Alu::kMaximum)][kTiles]({out.data(), n}, {a.data(), n}, {b.data(), n}, 1, n);
    float sum = 0, total = 0;
    k.reduce[index_of(Alu::kAdd)]({a.data(), n}, &sum, 1, n);
    for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
      right &= out[i] == std::max(a[i], b[i]);
      total += a[i];
    }
    right &= out[static_cast<std::size_t>(n)] == 7.0f && std::fabs(sum - total) < 1e-3f;
    right &= k.find(a.data(), n, a[static_cast<std::size_t>(n - 1)], 0) == n - 1;
    right &= k.find(a.data(), n, 99.0f, 0) == n;
  }
  CHECK(right);
}

}  // namespace

void test_isa_rows() {
  for (const char* isa : {"default", "avx2", "avx512"}) {
    select_row_kernels(isa);
    test_functions_of_isa();
    test_formats_of_isa();
    test_lengths_of_isa();
  }
}
