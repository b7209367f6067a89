#include "eager/aten_math/exact.h"

#include <ATen/Context.h>
#include <ATen/Version.h>

#include <array>
#include <cstddef>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

#include "eager/aten_math/check.h"
#include "eager/aten_math/table.h"

namespace neuron::eager {
namespace {

using engines::Dtype;
using engines::Function;
using engines::RowFunction;

bool cpu_has_avx2() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#else
  return false;
#endif
}

// Candidates, the likeliest first. ATen has no AVX-512 version of many kernels and uses that for AVX2 instead; oneDNN
// goes by the CPU, whatever ATen was told to use.
std::vector<AtenMathTable> candidates() {
  const std::string capability = at::get_cpu_capability();
  std::vector<AtenMathTable> tables;
  if (capability == "AVX512") tables.push_back(aten_math_avx512());
  if (capability == "DEFAULT") tables.push_back(aten_math_default());
  if (cpu_has_avx2()) tables.push_back(aten_math_avx2());
  return tables;
}

const std::vector<AtenMathTable>& tables() {
  static const std::vector<AtenMathTable> all = candidates();
  return all;
}

void find(Function function, Dtype dtype) {
  engines::ElementFunction entry;
  for (const AtenMathTable& table : tables()) {
    const engines::ElementFunction& candidate = table.at(function, dtype);
    if (candidate.fn != nullptr && same_bits_as_aten(function, dtype, candidate)) {
      entry = candidate;
      break;
    }
  }
  engines::register_function(function, dtype, entry);
}

void find(RowFunction function, Dtype dtype) {
  engines::RowFn fn = nullptr;
  for (const AtenMathTable& table : tables()) {
    if (table.at(function, dtype) != nullptr && same_bits_as_aten(function, dtype, table)) {
      fn = table.at(function, dtype);
      break;
    }
  }
  engines::register_function(function, dtype, fn);
}

// Whether one has been found for the engines. The search is made when somebody asks first.
template <class F>
bool is_registered(F function, Dtype dtype) {
  static std::array<std::array<std::once_flag, kFloatDtypes>, static_cast<std::size_t>(F::kCount)> once;
  if (static_cast<std::size_t>(dtype) >= kFloatDtypes) return false;
  std::call_once(once[static_cast<std::size_t>(function)][static_cast<std::size_t>(dtype)],
                 [&] { find(function, dtype); });
  if constexpr (std::is_same_v<F, Function>) {
    return engines::element_function(function, dtype).fn != nullptr;
  } else {
    return engines::row_function(function, dtype) != nullptr;
  }
}

bool is_reduction(RowFunction function) {
  return function == RowFunction::kSum || function == RowFunction::kMean || function == RowFunction::kMax ||
         function == RowFunction::kMin;
}

}  // namespace

void register_aten_functions() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (std::size_t d = 0; d < kFloatDtypes; ++d) {
      const auto dtype = static_cast<Dtype>(d);
      for (int f = 0; f < static_cast<int>(Function::kCount); ++f) {
        engines::register_function(static_cast<Function>(f), dtype, engines::ElementFunction{});
      }
      for (int f = 0; f < static_cast<int>(RowFunction::kCount); ++f) {
        engines::register_function(static_cast<RowFunction>(f), dtype, nullptr);
      }
    }
  });
}

// What no function of single elements or rows can give:
//   GELU of fp32 and its gradient: oneDNN's formula on contiguous tensors of two elements or more, at::vec's else.
//   Where something is strided or broadcast, remainders are those of the inner loop, or all is scalar code.
//   hardtanh_backward, maximum, minimum: NaN and signed zeros come out differently in remainders.
//   add with alpha != 1 of bf16, fp16 or a broadcast operand: the product is rounded in remainders.
//   One row: reductions cut it for the threads; var takes another algorithm.
bool aten_element_exact(Function function, Dtype dtype, std::int64_t elements, bool contiguous) {
  if (!is_registered(function, dtype)) return false;
  if (dtype == Dtype::kF32 && (function == Function::kGelu || function == Function::kGeluBackward)) {
    return contiguous && elements > 1 && at::globalContext().userEnabledMkldnn();
  }
  return contiguous || engines::element_function(function, dtype).remainder == nullptr;
}

bool aten_row_exact(RowFunction function, Dtype dtype, std::int64_t rows, std::int64_t cols, int threads) {
  if (!is_registered(function, dtype)) return false;
  constexpr std::int64_t kGrain = 32768;  // at::internal::GRAIN_SIZE
  if (rows == 1 && function == RowFunction::kVar) return false;
  if (rows == 1 && is_reduction(function)) return threads == 1 || cols < kGrain;
  if (function == RowFunction::kSoftmaxBackward && dtype == Dtype::kF32 && rows > 1 && threads > 1) {
    // The copy of the kernel that threads run rounds the products of the last, partial vector.
    const std::int64_t width = at::get_cpu_capability() == "AVX512" ? 16 : 8;
    return cols <= width || cols % width == 0;
  }
  return true;
}

}  // namespace neuron::eager
