#pragma once
// Names of operators, functions and commands as kernels spell them, and their numbers.
#include <array>
#include <cstdint>
#include <string_view>

#include "engines/isa/program.h"

namespace neuron::engines::isa {

inline constexpr std::array<std::string_view, static_cast<std::size_t>(Alu::kCount)> kAluNames = {
    "bypass",      "add",           "subtract",    "multiply",   "divide",      "maximum",     "minimum",
    "abs_max",     "abs_min",       "power",       "mod",        "fmod",        "equal",       "not_equal",
    "greater",     "greater_equal", "less",        "less_equal", "logical_and", "logical_or",  "logical_xor",
    "bitwise_and", "bitwise_or",    "bitwise_xor", "invert",     "left_shift",  "right_shift", "arithmetic_right_shift",
    "abs",         "square",        "relu",        "rsqrt",      "reciprocal",  "average"};

inline constexpr std::array<std::string_view, static_cast<std::size_t>(Function::kCount)> kFunctionNames = {
    "copy",
    "square",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "exp",
    "log",
    "sin",
    "cos",
    "tan",
    "arctan",
    "tanh",
    "sigmoid",
    "relu",
    "prelu",
    "gelu",
    "gelu_dx",
    "gelu_apprx_tanh",
    "gelu_apprx_tanh_dx",
    "gelu_apprx_sigmoid",
    "gelu_apprx_sigmoid_dx",
    "silu",
    "silu_dx",
    "softplus",
    "mish",
    "erf",
    "erf_dx",
    "sign",
    "abs",
    "floor",
    "ceil",
    "trunc"};

inline constexpr std::array<std::string_view, 5> kReduceCommandNames = {"idle", "reset", "reduce", "reset_reduce",
                                                                        "load_reduce"};

// The number of `name` in `names`; their length where it is not among them.
template <std::size_t N>
constexpr std::size_t number_of(const std::array<std::string_view, N>& names, std::string_view name) {
  std::size_t i = 0;
  while (i < N && names[i] != name) ++i;
  return i;
}

// kCount where there is no such operator or function.
constexpr Alu alu_of(std::string_view name) {
  if (name == "max") return Alu::kMaximum;
  if (name == "min") return Alu::kMinimum;
  return static_cast<Alu>(number_of(kAluNames, name));
}
constexpr Function function_of(std::string_view name) { return static_cast<Function>(number_of(kFunctionNames, name)); }
// 5 where there is no such command.
constexpr ReduceCommand command_of(std::string_view name) {
  return static_cast<ReduceCommand>(number_of(kReduceCommandNames, name));
}

// Operators on bit patterns; all others compute in fp32.
constexpr bool is_bitwise(Alu op) { return op >= Alu::kBitwiseAnd && op <= Alu::kArithmeticRightShift; }
// Operators with one operand.
constexpr bool is_unary(Alu op) { return op == Alu::kInvert || (op >= Alu::kAbs && op <= Alu::kReciprocal); }

}  // namespace neuron::engines::isa
