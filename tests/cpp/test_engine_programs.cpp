// Programs written by hand: what random ones do not reach, or would not show.
#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "checks.h"
#include "engine_memory.h"
#include "engines/functions.h"
#include "engines/run.h"
#include "stage_interpreter.h"
#include "test_engines.h"

using namespace neuron::engines;

namespace {

Operand value(std::uint16_t index) { return {Operand::Kind::kValue, index}; }
Operand scalar(std::uint16_t index) { return {Operand::Kind::kScalar, index}; }

// Writes programs down in few words. Values are numbered by their instructions.
struct Writer {
  Program program;

  std::uint16_t access(Access::Kind kind, Dtype dtype, std::uint8_t cols = 0, bool written = false) {
    program.accesses.push_back({kind, dtype, cols, written});
    return static_cast<std::uint16_t>(program.accesses.size() - 1);
  }
  std::uint16_t add(Instr instr, Lane out) {
    program.values.push_back({out, instr.cols});
    instr.out = static_cast<std::uint16_t>(program.values.size() - 1);
    program.code.push_back(instr);
    return instr.out;
  }
  std::uint16_t load(std::uint16_t from) {
    Instr instr{Op::kLoad};
    instr.access = from;
    instr.cols = program.accesses[from].cols;
    instr.lane = lane_of(program.accesses[from].dtype);
    return add(instr, instr.lane);
  }
  std::uint16_t op(Op op, std::initializer_list<Operand> in, Lane lane = Lane::kF32, std::uint8_t cols = 0) {
    Instr instr{op};
    instr.lane = lane;
    instr.cols = cols;
    std::copy(in.begin(), in.end(), instr.in.begin());
    return add(instr, op >= Op::kEq && op <= Op::kLe ? Lane::kB8 : lane);
  }
  std::uint16_t call(Function function, std::initializer_list<Operand> in) {
    Instr instr{Op::kCall};
    instr.function = static_cast<std::uint8_t>(function);
    std::copy(in.begin(), in.end(), instr.in.begin());
    return add(instr, Lane::kF32);
  }
  void store(std::uint16_t to, Operand what) {
    Instr instr{Op::kStore};
    instr.access = to;
    instr.cols = program.accesses[to].cols;
    instr.lane = lane_of(program.accesses[to].dtype);
    instr.in[0] = what;
    program.code.push_back(instr);
  }
};

Geometry flat(std::int64_t rows, std::size_t accesses) {
  Geometry g;
  g.rows = rows;
  g.cols = {1};
  g.strides.resize(accesses);
  return g;
}

// y = x * s + x
Program multiply_add() {
  Writer w;
  const auto x = w.access(Access::Kind::kDense, Dtype::kF32), y = w.access(Access::Kind::kDense, Dtype::kF32, 0, true);
  w.program.scalars = {Lane::kF32};
  const auto v = w.load(x);
  const auto m = w.op(Op::kMul, {value(v), scalar(0)});
  w.store(y, value(w.op(Op::kAdd, {value(m), value(v)})));
  return w.program;
}

void stage_text_is_the_contract() {
  const Executable executable(multiply_add());
  CHECK(executable.stages() == 1);
  CHECK(executable.stage_text(0) ==
        "operand 0 f32 dense in\n"
        "operand 1 f32 dense out\n"
        "scalar 0 f32\n"
        "%0 = load f32 @0\n"
        "%1 = mul f32 %0 $0\n"
        "%2 = add f32 %1 %0\n"
        "store @1 %2\n");

  // Softmax-like: per-row values become row operands, shared columns stay columns, bfloat16 is rounded where it was.
  Writer w;
  w.program.cols_classes = 2;
  const auto x = w.access(Access::Kind::kDense, Dtype::kBF16, 1, true),
             s = w.access(Access::Kind::kColumns, Dtype::kF32, 1);
  const auto v = w.load(x);
  Instr row{Op::kRow};
  row.dtype = Dtype::kBF16;
  row.function = static_cast<std::uint8_t>(RowFunction::kMax);
  row.in[0] = value(v);
  const auto most = w.add(row, Lane::kF32);
  const auto wide = w.op(Op::kExpand, {value(most)}, Lane::kF32, 1);
  const auto scaled =
      w.op(Op::kMul, {value(w.op(Op::kSub, {value(v), value(wide)}, Lane::kF32, 1)), value(w.load(s))}, Lane::kF32, 1);
  Instr round{Op::kRound};
  round.dtype = Dtype::kBF16;
  round.cols = 1;
  round.in[0] = value(scaled);
  w.store(x, value(w.add(round, Lane::kF32)));
  const Executable rows(w.program);
  CHECK(rows.stages() == 1);
  CHECK(rows.stage_text(0) ==
        "operand 0 f32 row in\n"
        "operand 1 f32 dense in\n"
        "operand 2 f32 columns in\n"
        "operand 3 bf16 dense out\n"
        "%0 = load f32 @0\n"
        "%1 = load f32 @1\n"
        "%2 = sub f32 %1 %0\n"
        "%3 = load f32 @2\n"
        "%4 = mul f32 %2 %3\n"
        "%5 = round bf16 %4\n"
        "store @3 %5\n");
}

void in_place_is_one_operand() {
  Writer w;
  const auto x = w.access(Access::Kind::kDense, Dtype::kI64, 0, true);
  w.store(x, value(w.op(Op::kNeg, {value(w.load(x))}, Lane::kI64)));
  Executable executable(w.program);
  CHECK(executable.stage_text(0) ==
        "operand 0 i64 dense inout\n"
        "%0 = load i64 @0\n"
        "%1 = neg i64 %0\n"
        "store @0 %1\n");
}

void text_tells_programs_apart() {
  const Program a = multiply_add();
  CHECK(a.text() == multiply_add().text());
  std::vector<Program> others(9, a);
  others[0].code[1].op = Op::kSub;
  others[1].accesses[0].dtype = Dtype::kBF16;
  others[2].accesses[0].kind = Access::Kind::kStrided;
  others[3].code[2].in[1] = value(1);
  others[4].scalars.push_back(Lane::kF64);
  others[5].accesses[0].written = true;
  others[6].code[1].in[1] = value(0);
  others[7].values[2].lane = Lane::kF64;
  others[8].cols_classes = 2;
  for (std::size_t i = 0; i < others.size(); ++i) {
    CHECK(others[i].text() != a.text());
    for (std::size_t j = 0; j < i; ++j) CHECK(others[i].text() != others[j].text());
  }
  Writer exp, log;
  for (Writer* w : {&exp, &log}) {
    const auto x = w->access(Access::Kind::kDense, Dtype::kF32);
    w->call(w == &exp ? Function::kExp : Function::kLog, {value(w->load(x))});
  }
  CHECK(exp.program.text() != log.program.text());
}

bool refused(const Program& program) {
  try {
    Executable executable(program);
  } catch (const std::invalid_argument&) {
    return true;
  }
  return false;
}

void broken_programs_are_refused() {
  const Program good = multiply_add();
  CHECK(!refused(good));
  std::vector<Program> bad(13, good);
  bad[0].accesses[1].written = false;
  bad[1].code.push_back(good.code.back());  // stored twice
  bad[2].code[3].access = 7;                // no such access
  bad[3].code[1].in[0] = value(2);          // used before it is made
  bad[4].code[2].out = 1;                   // made twice
  bad[5].code[1].op = Op::kAnd;             // not on floating point
  bad[6].code[1].in[1] = Operand{};         // an operand is missing
  bad[7].code[1].in[2] = value(0);          // one too many
  bad[8].code[1].cols = 1;                  // no such class
  bad[9].code[1].in[1] = scalar(1);         // no such scalar
  bad[10].accesses[1].kind = Access::Kind::kColumns;
  bad[11].accesses[0].dtype = Dtype::kF64;  // its load has another lane
  bad[12].scalars[0] = Lane::kI64;
  for (const Program& program : bad) CHECK(refused(program));

  Program reload = good;  // loaded after it was stored
  Instr load{Op::kLoad};
  load.access = 1;
  load.out = 3;
  reload.values.push_back({Lane::kF32, 0});
  reload.code.push_back(load);
  CHECK(refused(reload));

  Program call = good;
  call.code[1] = {Op::kCall};
  call.code[1].function = static_cast<std::uint8_t>(Function::kExp);
  call.code[1].dtype = Dtype::kI64;
  call.code[1].in[0] = value(0);
  call.code[1].out = 1;
  CHECK(refused(call));
}

// A bias without a weight: operands keep their numbers.
void absent_operands_are_null() {
  Writer w;
  w.program.cols_classes = 2;
  const auto x = w.access(Access::Kind::kDense, Dtype::kF32, 1), b = w.access(Access::Kind::kColumns, Dtype::kF32, 1),
             y = w.access(Access::Kind::kDense, Dtype::kF32, 1, true);
  w.program.scalars = {Lane::kF32};
  const auto v = w.load(x), bias = w.load(b);
  const auto row = [&](RowFunction function, std::uint8_t cols, std::array<Operand, 5> in) {
    Instr instr{Op::kRow};
    instr.function = static_cast<std::uint8_t>(function);
    instr.cols = cols;
    instr.in = in;
    return value(w.add(instr, Lane::kF32));
  };
  const Operand mean = row(RowFunction::kRowMeanForNorm, 0, {value(v)});
  const Operand rstd = row(RowFunction::kRowRstdForNorm, 0, {value(v), scalar(0)});
  w.store(y, row(RowFunction::kLayerNorm, 1, {value(v), mean, rstd, {}, value(bias)}));
  float in[] = {1, 3, -5, 5}, added[] = {100, 200}, out[4];
  void* memory[3] = {in, added, out};
  Scalar eps;
  eps.f32 = 0;
  Geometry g;
  g.rows = 2;
  g.cols = {1, 2};
  g.strides.resize(3);
  Executable(w.program).run(g, memory, &eps, nullptr, 1);
  CHECK(out[0] == 99 && out[1] == 201 && out[2] == 99 && out[3] == 201);

  Program other = w.program;  // a weight without a bias
  std::swap(other.code[4].in[3], other.code[4].in[4]);
  CHECK(other.text() != w.program.text());
}

void empty_work_touches_nothing() {
  Executable executable(multiply_add());
  Scalar s{};
  void* memory[2] = {};
  executable.run(flat(0, 2), memory, &s, parallel_ranges, 2);
  CHECK(true);  // nothing crashed on the null addresses
}

// Ones where the function was, twos where its remainder was.
void ones(void* out, const void* a, const void*, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) static_cast<float*>(out)[i] = 1 + static_cast<const float*>(a)[i];
}
void twos(void* out, const void* a, const void*, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) static_cast<float*>(out)[i] = 2 + static_cast<const float*>(a)[i];
}

void remainders_of_calls() {
  const ElementFunction before = element_function(Function::kErfinv, Dtype::kF32);
  constexpr std::int64_t kStep = 16;
  register_function(Function::kErfinv, Dtype::kF32,
                    {ones, twos, kStep, [](std::int64_t, int) -> std::int64_t { return 1000; }});
  Writer w;
  const auto x = w.access(Access::Kind::kDense, Dtype::kF32, 0, true);
  w.store(x, value(w.call(Function::kErfinv, {value(w.load(x))})));
  const Executable executable(w.program);
  for (const std::int64_t n : {1, 15, 16, 999, 1000, 1001, 2500, 20000, 300001})
    for (const int threads : {1, 2, 3}) {
      std::vector<float> data(static_cast<std::size_t>(n), 0.0f), expected(static_cast<std::size_t>(n), 1.0f);
      const std::int64_t ranges = threads == 1 || n <= 1000 ? 1 : std::min<std::int64_t>(threads, (n + 999) / 1000);
      const std::int64_t length = (n + ranges - 1) / ranges;
      for (std::int64_t begin = 0; begin < n; begin += length) {
        const std::int64_t end = std::min(n, begin + length);
        for (std::int64_t i = begin + (end - begin) / kStep * kStep; i < end; ++i)
          expected[static_cast<std::size_t>(i)] = 2;
      }
      void* memory[1] = {data.data()};
      executable.run(flat(n, 1), memory, nullptr, parallel_ranges, threads);
      CHECK(data == expected);
    }
  register_function(Function::kErfinv, Dtype::kF32, before);
}

std::atomic<int> g_whole_calls{0};
std::atomic<std::int64_t> g_whole_rows{0};
void count_rows(void* const*, const Scalar*, std::int64_t rows, std::int64_t cols) {
  ++g_whole_calls;
  g_whole_rows += rows * cols;
}

void one_stage_is_one_call_per_thread() {
  Executable executable(multiply_add());
  executable.install(0, count_rows);
  constexpr std::int64_t kRows = 1'000'003;
  std::vector<float> x(kRows), y(kRows);
  void* memory[2] = {x.data(), y.data()};
  Scalar s{};
  for (const int threads : {1, 2}) {
    g_whole_calls = 0;
    g_whole_rows = 0;
    executable.run(flat(kRows, 2), memory, &s, parallel_ranges, threads);
    CHECK(g_whole_calls == threads);
    CHECK(g_whole_rows == kRows);
  }
}

void code_may_come_while_others_run() {
  const Program program = multiply_add();
  constexpr std::int64_t kRows = 5000;
  std::vector<float> x(kRows), expected(kRows);
  std::iota(x.begin(), x.end(), 0.0f);
  for (std::size_t i = 0; i < x.size(); ++i) expected[i] = x[i] * 3 + x[i];
  Scalar s;
  s.f32 = 3;
  for (int round = 0; round < 20; ++round) {
    Executable executable(program);
    const StageFn code = reference::interpret(executable.stage_text(0));
    std::atomic<bool> wrong{false}, done{false};
    std::thread runner([&] {
      std::vector<float> y(kRows);
      void* memory[2] = {x.data(), y.data()};
      do {
        executable.run(flat(kRows, 2), memory, &s, nullptr, 1);
        if (y != expected) wrong = true;
      } while (!done);
    });
    executable.install(0, code);
    done = true;
    runner.join();
    CHECK(!wrong);
  }
}

void several_threads_run_one_executable() {
  const Executable executable(multiply_add());
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      // Of different lengths, so that scratch memory of the threads differs too.
      const std::size_t n = static_cast<std::size_t>(100 + 7000 * t);
      std::vector<float> x(n, static_cast<float>(t)), y(n);
      void* memory[2] = {x.data(), y.data()};
      Scalar s;
      s.f32 = 2;
      for (int i = 0; i < 50; ++i) {
        executable.run(flat(static_cast<std::int64_t>(n), 2), memory, &s, nullptr, 1);
        for (const float v : y) wrong += v != static_cast<float>(3 * t);
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

// A transposed operand, with rows so long that a tile holds one.
void transposed_rows() {
  Writer w;
  w.program.cols_classes = 2;
  const auto x = w.access(Access::Kind::kStrided, Dtype::kF16, 1),
             y = w.access(Access::Kind::kDense, Dtype::kF16, 1, true);
  w.store(y, value(w.op(Op::kNeg, {value(w.load(x))}, Lane::kF32, 1)));
  constexpr std::int64_t kRows = 3, kCols = 20011;
  std::vector<std::uint16_t> in(kRows * kCols), out(kRows * kCols);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<std::uint16_t>(i % 0x7c00);
  Geometry g;
  g.rows = kRows;
  g.cols = {1, kCols};
  g.strides.resize(2);
  g.strides[0] = {{kRows, kCols}, {1, kRows}};
  void* memory[2] = {in.data(), out.data()};
  Executable(w.program).run(g, memory, nullptr, nullptr, 1);
  bool ok = true;
  for (std::int64_t r = 0; r < kRows; ++r)
    for (std::int64_t c = 0; c < kCols; ++c)
      ok &= out[static_cast<std::size_t>(r * kCols + c)] == (in[static_cast<std::size_t>(c * kRows + r)] ^ 0x8000);
  CHECK(ok);
}

}  // namespace

void test_programs() {
  stage_text_is_the_contract();
  in_place_is_one_operand();
  text_tells_programs_apart();
  broken_programs_are_refused();
  absent_operands_are_null();
  empty_work_touches_nothing();
  remainders_of_calls();
  one_stage_is_one_call_per_thread();
  code_may_come_while_others_run();
  several_threads_run_one_executable();
  transposed_rows();
}
