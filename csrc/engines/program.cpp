// Programs as text.
#include "engines/program.h"

#include <cstddef>
#include <iterator>

#include "engines/names.h"

namespace neuron::engines {
namespace {

constexpr const char* kOpNames[] = {"load", "store", "add",   "sub",  "mul",    "div",    "fma",   "min",
                                    "max",  "neg",   "abs",   "sqrt", "floor",  "ceil",   "trunc", "nearest",
                                    "eq",   "ne",    "lt",    "le",   "select", "and",    "or",    "xor",
                                    "not",  "cast",  "round", "call", "expand", "concat", "row"};
static_assert(std::size(kOpNames) == static_cast<std::size_t>(Op::kRow) + 1);

constexpr const char* kLaneNames[] = {"f32", "f64", "i64", "b8"};
constexpr const char* kDtypeNames[] = {"f32", "f64", "bf16", "f16", "i64", "i32", "i16", "i8", "u8", "bool"};

constexpr const char* kFunctionNames[] = {"exp",           "exp2",          "expm1",         "log",
                                          "log2",          "log10",         "log1p",         "sin",
                                          "cos",           "tan",           "tanh",          "atan",
                                          "erf",           "erfc",          "erfinv",        "sigmoid",
                                          "silu",          "gelu",          "gelu_tanh",     "sigmoid_backward",
                                          "tanh_backward", "silu_backward", "gelu_backward", "gelu_tanh_backward",
                                          "pow",           "softplus",      "log_sigmoid",   "sqrt",
                                          "rsqrt"};
static_assert(std::size(kFunctionNames) == static_cast<std::size_t>(Function::kCount));

constexpr const char* kRowFunctionNames[] = {"sum",
                                             "mean",
                                             "max",
                                             "min",
                                             "var",
                                             "softmax",
                                             "log_softmax",
                                             "softmax_backward",
                                             "log_softmax_backward",
                                             "mean_for_norm",
                                             "rstd_for_norm",
                                             "layer_norm"};
static_assert(std::size(kRowFunctionNames) == static_cast<std::size_t>(RowFunction::kCount));

constexpr const char* kAccessNames[] = {"dense", "row", "columns", "strided", "streamed", "uniform"};

void append(std::string& text, const Operand& operand) {
  if (operand.kind == Operand::Kind::kNone) {
    text += " -";
    return;
  }
  text += operand.kind == Operand::Kind::kScalar ? " $" : " %";
  text += std::to_string(operand.index);
}

}  // namespace

const char* name_of(Op op) { return kOpNames[static_cast<std::size_t>(op)]; }
const char* name_of(Lane lane) { return kLaneNames[static_cast<std::size_t>(lane)]; }
const char* name_of(Dtype dtype) { return kDtypeNames[static_cast<std::size_t>(dtype)]; }
const char* name_of(Function function) { return kFunctionNames[static_cast<std::size_t>(function)]; }
const char* name_of(RowFunction function) { return kRowFunctionNames[static_cast<std::size_t>(function)]; }

std::string Program::text() const {
  std::string text = "classes " + std::to_string(cols_classes) + "\n";
  text.reserve(32 * (1 + accesses.size() + scalars.size() + code.size()));
  for (std::size_t i = 0; i < accesses.size(); ++i) {
    const Access& access = accesses[i];
    text += "access " + std::to_string(i) + " " + kAccessNames[static_cast<std::size_t>(access.kind)];
    text += std::string(" ") + name_of(access.dtype) + " ." + std::to_string(access.cols);
    if (access.written) text += " written";
    if (access.kind == Access::Kind::kUniform) text += " $" + std::to_string(access.scalar);
    text += '\n';
  }
  for (std::size_t i = 0; i < scalars.size(); ++i)
    text += "scalar " + std::to_string(i) + " " + name_of(scalars[i]) + "\n";
  for (const Instr& instr : code) {
    if (instr.op == Op::kStore) {
      text += "store @" + std::to_string(instr.access);
    } else {
      // With class and lane of the result, so that the table of values needs no lines of its own.
      text += "%" + std::to_string(instr.out) + " ." + std::to_string(instr.cols) + " " +
              name_of(values[instr.out].lane) + " = " + name_of(instr.op);
      if (instr.op == Op::kLoad) text += " @" + std::to_string(instr.access);
      if (instr.op == Op::kCall) text += std::string(" ") + name_of(static_cast<Function>(instr.function));
      if (instr.op == Op::kRow) text += std::string(" ") + name_of(static_cast<RowFunction>(instr.function));
    }
    text += std::string(" ") + name_of(instr.lane) + " " + name_of(instr.dtype);
    // Absent operands may come before others, so they are said.
    std::size_t given = instr.in.size();
    while (given > 0 && instr.in[given - 1].kind == Operand::Kind::kNone) --given;
    for (std::size_t i = 0; i < given; ++i) append(text, instr.in[i]);
    text += '\n';
  }
  return text;
}

}  // namespace neuron::engines
