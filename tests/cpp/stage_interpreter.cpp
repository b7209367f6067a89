#include "stage_interpreter.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>
#include <utility>
#include <vector>

#include "engine_reference.h"

namespace reference {
namespace {

using namespace neuron::engines;

struct Line {
  Op op = Op::kLoad;
  Lane lane = Lane::kF32, to = Lane::kF32;
  Dtype dtype = Dtype::kF32;
  std::size_t out = 0, operand = 0;
  std::vector<std::pair<bool, std::size_t>> in;  // scalar?, index
};

struct Parsed {
  struct StageOperand {
    Dtype dtype;
    char kind;  // the first letter
    bool in, out;
  };
  std::vector<StageOperand> operands;
  std::map<std::size_t, Lane> scalars;
  std::vector<Line> lines;
  std::vector<Lane> lanes;  // of the values
};

[[noreturn]] void bad(const std::string& text, const std::string& what) {
  std::fprintf(stderr, "stage text: %s\n%s", what.c_str(), text.c_str());
  std::abort();
}

template <class T>
T named(const std::map<std::string, T>& names, const std::string& name, const std::string& text) {
  const auto found = names.find(name);
  if (found == names.end()) bad(text, "no such name: " + name);
  return found->second;
}

const std::map<std::string, Dtype> kDtypes{
    {"f32", Dtype::kF32}, {"f64", Dtype::kF64}, {"bf16", Dtype::kBF16}, {"f16", Dtype::kF16}, {"i64", Dtype::kI64},
    {"i32", Dtype::kI32}, {"i16", Dtype::kI16}, {"i8", Dtype::kI8},     {"u8", Dtype::kU8},   {"bool", Dtype::kBool}};
const std::map<std::string, Lane> kLaneNames{
    {"f32", Lane::kF32}, {"f64", Lane::kF64}, {"i64", Lane::kI64}, {"b8", Lane::kB8}};
const std::map<std::string, Op> kOpNames{
    {"add", Op::kAdd},     {"sub", Op::kSub},         {"mul", Op::kMul},       {"div", Op::kDiv},
    {"fma", Op::kFma},     {"min", Op::kMin},         {"max", Op::kMax},       {"neg", Op::kNeg},
    {"abs", Op::kAbs},     {"sqrt", Op::kSqrt},       {"floor", Op::kFloor},   {"ceil", Op::kCeil},
    {"trunc", Op::kTrunc}, {"nearest", Op::kNearest}, {"eq", Op::kEq},         {"ne", Op::kNe},
    {"lt", Op::kLt},       {"le", Op::kLe},           {"select", Op::kSelect}, {"and", Op::kAnd},
    {"or", Op::kOr},       {"xor", Op::kXor},         {"not", Op::kNot},       {"cast", Op::kCast},
    {"round", Op::kRound}};

class Parser {
 public:
  explicit Parser(const std::string& text) : text_(text) {}

  Parsed parse() {
    std::istringstream lines(text_);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string first;
      words >> first;
      if (first == "operand")
        operand(words);
      else if (first == "scalar")
        scalar(words);
      else if (first == "store")
        store(words);
      else
        value(first, words);
    }
    return parsed_;
  }

 private:
  void operand(std::istringstream& words) {
    std::size_t index;
    std::string dtype, kind, direction;
    words >> index >> dtype >> kind >> direction;
    if (index != parsed_.operands.size()) bad(text_, "operands out of order");
    parsed_.operands.push_back({named(kDtypes, dtype, text_), kind.at(0), direction.find("in") == 0,
                                direction.find("out") != std::string::npos});
  }

  void scalar(std::istringstream& words) {
    std::size_t index;
    std::string lane;
    words >> index >> lane;
    parsed_.scalars[index] = named(kLaneNames, lane, text_);
  }

  std::size_t number(const std::string& word, char sign, std::size_t limit) {
    if (word.empty() || word[0] != sign) bad(text_, "expected " + std::string(1, sign) + ", got " + word);
    const std::size_t n = std::stoul(word.substr(1));
    if (n >= limit) bad(text_, "not there yet: " + word);
    return n;
  }

  void inputs(Line& line, std::istringstream& words) {
    for (std::string word; words >> word;) {
      const bool is_scalar = word[0] == '$';
      const std::size_t n = number(word, is_scalar ? '$' : '%', is_scalar ? 65536 : parsed_.lanes.size());
      if (is_scalar && !parsed_.scalars.count(n)) bad(text_, "undeclared scalar " + word);
      line.in.emplace_back(is_scalar, n);
    }
  }

  Lane lane_of_input(const Line& line, std::size_t i) {
    return line.in[i].first ? parsed_.scalars.at(line.in[i].second) : parsed_.lanes[line.in[i].second];
  }

  void store(std::istringstream& words) {
    Line line;
    line.op = Op::kStore;
    std::string where;
    words >> where;
    line.operand = number(where, '@', parsed_.operands.size());
    if (!parsed_.operands[line.operand].out) bad(text_, "stores to an input");
    inputs(line, words);
    if (line.in.size() != 1 || lane_of_input(line, 0) != lane_of(parsed_.operands[line.operand].dtype))
      bad(text_, "stores another lane");
    parsed_.lines.push_back(line);
  }

  void value(const std::string& name, std::istringstream& words) {
    Line line;
    std::string equals, op, type;
    words >> equals >> op >> type;
    line.out = number(name, '%', parsed_.lanes.size() + 1);
    if (line.out != parsed_.lanes.size()) bad(text_, "values out of order");
    if (op == "load") {
      std::string where;
      words >> where;
      line.operand = number(where, '@', parsed_.operands.size());
      line.to = named(kLaneNames, type, text_);
      if (!parsed_.operands[line.operand].in) bad(text_, "loads an output");
      if (line.to != lane_of(parsed_.operands[line.operand].dtype)) bad(text_, "loads another lane");
    } else {
      line.op = named(kOpNames, op, text_);
      if (line.op == Op::kRound) {
        line.dtype = named(kDtypes, type, text_);
        line.lane = line.to = lane_of(line.dtype);
      } else {
        line.lane = line.to = named(kLaneNames, type, text_);
      }
      if (line.op == Op::kCast) {
        std::string to;
        words >> to;
        line.dtype = to == "i32" ? Dtype::kI32 : Dtype::kF32;
        line.to = to == "i32" ? Lane::kI64 : named(kLaneNames, to, text_);
      }
      if (line.op >= Op::kEq && line.op <= Op::kLe) line.to = Lane::kB8;
      inputs(line, words);
      for (std::size_t i = 0; i < line.in.size(); ++i) {
        const Lane expected = line.op == Op::kSelect && i == 0 ? Lane::kB8 : line.lane;
        if (lane_of_input(line, i) != expected) bad(text_, "operand of another lane in " + name);
      }
    }
    parsed_.lanes.push_back(line.to);
    parsed_.lines.push_back(line);
  }

  const std::string& text_;
  Parsed parsed_;
};

constexpr std::size_t kFunctions = 4096;
std::array<Parsed, kFunctions> g_stages;
std::size_t g_used = 0;
std::atomic<std::int64_t> g_calls{0};

void run(const Parsed& stage, void* const* operands, const Scalar* scalars, std::int64_t rows, std::int64_t cols) {
  ++g_calls;
  std::vector<Scalar> values(stage.lanes.size());
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c)
      for (const Line& line : stage.lines) {
        const auto& operand = stage.operands.empty() ? Parsed::StageOperand{} : stage.operands[line.operand];
        const std::int64_t at = operand.kind == 'd' ? r * cols + c : operand.kind == 'r' ? r : c;
        Scalar in[3] = {};
        for (std::size_t i = 0; i < line.in.size(); ++i)
          in[i] = line.in[i].first ? scalars[line.in[i].second] : values[line.in[i].second];
        if (line.op == Op::kLoad)
          values[line.out] = load(operand.dtype, operands[line.operand], at);
        else if (line.op == Op::kStore)
          store(operand.dtype, operands[line.operand], at, in[0]);
        else
          values[line.out] = apply(line.op, line.lane, line.to, line.dtype, in);
      }
}

template <std::size_t kIndex>
void trampoline(void* const* operands, const Scalar* scalars, std::int64_t rows, std::int64_t cols) {
  run(g_stages[kIndex], operands, scalars, rows, cols);
}

template <std::size_t... kIndices>
constexpr std::array<StageFn, sizeof...(kIndices)> trampolines(std::index_sequence<kIndices...>) {
  return {trampoline<kIndices>...};
}
constexpr auto kTrampolines = trampolines(std::make_index_sequence<kFunctions>{});

}  // namespace

StageFn interpret(const std::string& text) {
  static std::map<std::string, StageFn> known;
  if (const auto found = known.find(text); found != known.end()) return found->second;
  if (g_used == kFunctions) return nullptr;
  g_stages[g_used] = Parser(text).parse();
  return known[text] = kTrampolines[g_used++];
}

std::int64_t stage_calls() { return g_calls; }

}  // namespace reference
