// Random programs: on tile kernels and with interpreted stages, on one and on several threads, against the definition.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "checks.h"
#include "engine_memory.h"
#include "engine_reference.h"
#include "engines/functions.h"
#include "engines/kernels.h"
#include "engines/run.h"
#include "stage_interpreter.h"
#include "test_engines.h"

using namespace neuron::engines;

namespace {

constexpr Dtype kAllDtypes[] = {Dtype::kF32, Dtype::kF64, Dtype::kBF16, Dtype::kF16, Dtype::kI64,
                                Dtype::kI32, Dtype::kI16, Dtype::kI8,   Dtype::kU8,  Dtype::kBool};

class Generator {
 public:
  explicit Generator(unsigned seed) : random_(seed) {}

  void make() {
    rows_of_work();
    for (std::size_t s = 0; s < 3; ++s) add_scalar(static_cast<Lane>(pick(3)));
    const std::size_t inputs = 1 + pick(4);
    for (std::size_t i = 0; i < inputs; ++i) add_input();
    const std::size_t steps = 1 + pick(20);
    for (std::size_t i = 0; i < steps; ++i) {
      add_step();
      if (pick(8) == 0) add_output(false);  // what it overwrites may still be needed
    }
    const std::size_t outputs = 1 + pick(3);
    for (std::size_t i = 0; i < outputs; ++i) add_output(i == 0);
  }

  Program program;
  Geometry geometry;
  std::vector<Scalar> scalars;

 private:
  std::size_t pick(std::size_t n) { return random_() % n; }
  Dtype pick_dtype() { return pick(2) ? Dtype::kF32 : kAllDtypes[pick(std::size(kAllDtypes))]; }

  void rows_of_work() {
    const bool has_columns = pick(2);
    if (has_columns) {
      constexpr std::int64_t kCols[] = {1, 2, 7, 16, 33, 130};
      geometry.rows = 1 + static_cast<std::int64_t>(pick(pick(3) ? 40 : 700));
      geometry.cols = {1, kCols[pick(6)], kCols[pick(6)]};
      geometry.cols.push_back(geometry.cols[1] + geometry.cols[2]);
      program.cols_classes = 4;
    } else {
      geometry.rows = 1 + static_cast<std::int64_t>(pick(pick(4) ? 300 : 30000));
      geometry.cols = {1};
    }
  }

  std::uint16_t add_scalar(Lane lane) {
    program.scalars.push_back(lane);
    scalars.push_back(reference::random_number(lane, random_));
    return static_cast<std::uint16_t>(scalars.size() - 1);
  }

  std::uint16_t add_value(Lane lane, std::uint8_t cols) {
    program.values.push_back({lane, cols});
    return static_cast<std::uint16_t>(program.values.size() - 1);
  }

  std::uint16_t add_access(Access::Kind kind, Dtype dtype, std::uint8_t cols, bool written) {
    program.accesses.push_back({kind, dtype, cols, written});
    geometry.strides.emplace_back();
    if (kind == Access::Kind::kStrided) make_strides(geometry.rows * geometry.cols[cols], written);
    return static_cast<std::uint16_t>(program.accesses.size() - 1);
  }

  // Splits the elements into dimensions and gives those a random order in memory; what is only read may repeat.
  void make_strides(std::int64_t elements, bool written) {
    Geometry::Strides& s = geometry.strides.back();
    for (const std::int64_t factor : {2, 3, 5, 2, 7})
      if (elements % factor == 0 && pick(2)) {
        s.sizes.push_back(factor);
        elements /= factor;
      }
    s.sizes.push_back(elements);
    std::shuffle(s.sizes.begin(), s.sizes.end(), random_);
    std::vector<std::size_t> order(s.sizes.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random_);
    s.strides.resize(s.sizes.size());
    std::int64_t stride = 1 + static_cast<std::int64_t>(pick(2));
    for (const std::size_t d : order) {
      s.strides[d] = stride;
      stride *= s.sizes[d];
      if (!written && pick(4) == 0) s.strides[d] = 0;
    }
  }

  std::uint8_t pick_class() { return static_cast<std::uint8_t>(pick(program.cols_classes)); }

  void add_load(std::uint16_t access) {
    Instr load{Op::kLoad};
    load.access = access;
    load.cols = program.accesses[access].cols;
    load.lane = lane_of(program.accesses[access].dtype);
    load.out = add_value(load.lane, load.cols);
    program.code.push_back(load);
  }

  void add_input() {
    const std::uint8_t cols = pick_class();
    const Dtype dtype = pick_dtype();
    switch (pick(8)) {
      case 0:
        add_uniform(dtype);
        [[fallthrough]];
      case 1:
      case 2:
        return add_load(add_access(Access::Kind::kStrided, dtype, cols, pick(3) == 0));
      case 3:
        return add_load(add_access(cols == 0 ? Access::Kind::kRow : Access::Kind::kColumns, dtype, cols, false));
      default:
        return add_load(add_access(Access::Kind::kDense, dtype, cols, pick(2)));
    }
  }

  void add_uniform(Dtype dtype) {
    const std::uint16_t access = add_access(Access::Kind::kUniform, dtype, 0, false);
    program.accesses[access].scalar = add_scalar(lane_of(dtype));
  }

  Operand value_of(Lane lane, std::uint8_t cols) {
    std::vector<std::uint16_t> fits;
    for (std::size_t v = 0; v < program.values.size(); ++v)
      if (program.values[v].lane == lane && program.values[v].cols == cols)
        fits.push_back(static_cast<std::uint16_t>(v));
    if (!fits.empty()) {
      // Recent values more often, so that chains come about.
      const std::size_t recent = std::min<std::size_t>(fits.size(), pick(2) ? 2 : fits.size());
      return {Operand::Kind::kValue, fits[fits.size() - 1 - pick(recent)]};
    }
    return {};
  }

  Operand scalar_of(Lane lane) {
    std::vector<std::uint16_t> fits;
    for (std::size_t s = 0; s < program.scalars.size(); ++s)
      if (program.scalars[s] == lane) fits.push_back(static_cast<std::uint16_t>(s));
    if (fits.empty()) fits.push_back(add_scalar(lane));
    return {Operand::Kind::kScalar, fits[pick(fits.size())]};
  }

  Operand operand_of(Lane lane, std::uint8_t cols) {
    const Operand value = value_of(lane, cols);
    return value.kind == Operand::Kind::kNone || pick(5) == 0 ? scalar_of(lane) : value;
  }

  void finish(Instr instr, Lane out) {
    instr.out = add_value(out, instr.cols);
    program.code.push_back(instr);
  }

  void add_step() {
    const std::size_t from = program.values.size() - 1 - pick(std::min<std::size_t>(program.values.size(), 4));
    const Value value = program.values[from];
    const Operand a{Operand::Kind::kValue, static_cast<std::uint16_t>(from)};
    Instr instr{Op::kAdd};
    instr.lane = value.lane;
    instr.cols = value.cols;
    instr.in[0] = a;
    switch (pick(12)) {
      case 0:
        return add_cast(instr);
      case 1:
        return add_round(instr);
      case 2:
        return add_select(instr);
      case 3:
        return add_across(instr);
      case 4:
        return add_call(instr);
      default:
        return add_plain(instr);
    }
  }

  void add_plain(Instr instr) {
    const Kernels& k = kernels();
    do {
      instr.op = static_cast<Op>(index_of(Op::kAdd) + pick(index_of(Op::kNot) - index_of(Op::kAdd) + 1));
    } while (instr.op == Op::kSelect || k.op[index_of(instr.op)][index_of(instr.lane)][0] == nullptr);
    const Kernel* row = k.op[index_of(instr.op)][index_of(instr.lane)];
    if (row[2] != nullptr) instr.in[1] = operand_of(instr.lane, instr.cols);
    if (row[4] != nullptr) instr.in[2] = operand_of(instr.lane, instr.cols);
    if (row[2] != nullptr && pick(3) == 0) std::swap(instr.in[0], instr.in[1]);
    const bool compares = instr.op >= Op::kEq && instr.op <= Op::kLe;
    const Lane lane = compares ? Lane::kB8 : instr.lane;
    finish(instr, lane);
    if (lane == Lane::kF32 && pick(4) == 0) {  // as low precision programs have it everywhere
      Instr round{Op::kRound};
      round.cols = instr.cols;
      round.dtype = Dtype::kBF16;
      round.in[0] = {Operand::Kind::kValue, static_cast<std::uint16_t>(program.values.size() - 1)};
      finish(round, lane);
    }
  }

  void add_cast(Instr instr) {
    instr.op = Op::kCast;
    if (pick(2)) instr.dtype = Dtype::kI32;
    finish(instr, static_cast<Lane>(pick(4)));
  }

  void add_round(Instr instr) {
    instr.op = Op::kRound;
    do {
      instr.dtype = kAllDtypes[pick(std::size(kAllDtypes))];
    } while (lane_of(instr.dtype) != instr.lane);
    finish(instr, instr.lane);
  }

  void add_select(Instr instr) {
    instr.op = Op::kSelect;
    instr.in[1] = instr.in[0];
    instr.in[0] = operand_of(Lane::kB8, instr.cols);
    instr.in[2] = operand_of(instr.lane, instr.cols);
    finish(instr, instr.lane);
  }

  void add_call(Instr instr) {
    if (instr.lane != Lane::kF32 && instr.lane != Lane::kF64) return add_cast(instr);
    instr.op = Op::kCall;
    instr.dtype = instr.lane == Lane::kF64 ? Dtype::kF64 : Dtype::kF32;
    instr.function = static_cast<std::uint8_t>(pick(2) ? Function::kTanh : Function::kPow);
    if (instr.function == static_cast<std::uint8_t>(Function::kPow)) instr.in[1] = operand_of(instr.lane, instr.cols);
    finish(instr, instr.lane);
  }

  // Between classes.
  void add_across(Instr instr) {
    if (pick(4) == 0) {
      instr.op = Op::kExpand;
      instr.in[0] = scalar_of(instr.lane);
      return finish(instr, instr.lane);
    }
    if (program.cols_classes == 1) return add_plain(instr);
    if (instr.cols == 0) {
      instr.op = Op::kExpand;
      instr.cols = static_cast<std::uint8_t>(1 + pick(2));
      if (pick(6) == 0) instr.in[0] = scalar_of(instr.lane);
      return finish(instr, instr.lane);
    }
    if (instr.cols != 3 && pick(2)) {
      const Operand a = value_of(instr.lane, 1), b = value_of(instr.lane, 2);
      if (a.kind != Operand::Kind::kNone && b.kind != Operand::Kind::kNone) {
        instr.op = Op::kConcat;
        instr.cols = 3;
        instr.in[0] = a;
        instr.in[1] = b;
        return finish(instr, instr.lane);
      }
    }
    if (instr.lane == Lane::kB8) return add_plain(instr);
    instr.op = Op::kRow;
    instr.dtype = instr.lane == Lane::kF32 ? Dtype::kF32 : instr.lane == Lane::kF64 ? Dtype::kF64 : Dtype::kI64;
    const bool softmax = instr.lane == Lane::kF32 && pick(3) == 0;
    instr.function = static_cast<std::uint8_t>(softmax   ? RowFunction::kSoftmax
                                               : pick(2) ? RowFunction::kSum
                                                         : RowFunction::kMax);
    if (!softmax) instr.cols = 0;
    finish(instr, instr.lane);
  }

  void add_output(bool must) {
    const std::size_t from = program.values.size() - 1 - pick(std::min<std::size_t>(program.values.size(), 6));
    const Value value = program.values[from];
    Instr store{Op::kStore};
    store.lane = value.lane;
    store.cols = value.cols;
    store.in[0] = {Operand::Kind::kValue, static_cast<std::uint16_t>(from)};
    if (pick(12) == 0) store.in[0] = scalar_of(value.lane);
    // In place where something fits.
    for (std::size_t a = 0; a < program.accesses.size(); ++a) {
      const Access& access = program.accesses[a];
      const bool stored = std::any_of(program.code.begin(), program.code.end(),
                                      [&](const Instr& i) { return i.op == Op::kStore && i.access == a; });
      if (!access.written || stored || access.cols != value.cols || lane_of(access.dtype) != value.lane) continue;
      store.access = static_cast<std::uint16_t>(a);
      program.code.push_back(store);
      return;
    }
    if (!must && pick(2)) return;
    Dtype dtype;
    do {
      dtype = kAllDtypes[pick(std::size(kAllDtypes))];
    } while (lane_of(dtype) != value.lane);
    constexpr Access::Kind kKinds[] = {Access::Kind::kDense, Access::Kind::kDense, Access::Kind::kStreamed,
                                       Access::Kind::kStrided};
    store.access = add_access(kKinds[pick(std::size(kKinds))], dtype, value.cols, true);
    program.code.push_back(store);
  }

  std::mt19937 random_;
};

bool equals_reference(unsigned seed, const Executable& executable, const Generator& g, const char* how, int threads) {
  std::mt19937 random(seed);
  Memory expected(g.program, g.geometry, random);
  Memory got = expected;
  reference::run(g.program, g.geometry, expected.pointers(), g.scalars.data());
  executable.run(g.geometry, got.pointers(), g.scalars.data(), threads == 1 ? nullptr : parallel_ranges, threads);
  std::string where;
  if (got.same_as(expected, where)) return true;
  std::fprintf(stderr, "program of seed %u, %s, %s, %d threads: %s\n%s", seed, selected_isa(), how, threads,
               where.c_str(), g.program.text().c_str());
  for (std::size_t s = 0; s < executable.stages(); ++s)
    std::fprintf(stderr, "stage %zu\n%s", s, executable.stage_text(s).c_str());
  return false;
}

}  // namespace

void test_random_programs() {
  const std::string before = selected_isa();
  constexpr unsigned kPrograms = 600;
  int multi_stage = 0, failed = 0;
  const std::int64_t calls_before = reference::stage_calls();
  for (unsigned seed = 1; seed <= kPrograms && failed < 3; ++seed) {
    constexpr const char* kIsas[] = {"default", "avx2", "avx512"};
    select_isa(kIsas[seed % 3]);
    Generator g(seed);
    g.make();
    Executable executable(g.program);
    bool ok =
        equals_reference(seed, executable, g, "kernels", 1) && equals_reference(seed, executable, g, "kernels", 3);
    multi_stage += executable.stages() > 1;
    // One stage after the other becomes code, as when they are compiled in the background.
    for (std::size_t s = 0; s < executable.stages(); ++s) {
      executable.install(s, reference::interpret(executable.stage_text(s)));
      ok = ok && equals_reference(seed, executable, g, "stages", s % 2 ? 1 : 3);
    }
    failed += !ok;
    CHECK(ok);
    CHECK(executable.compiled());
  }
  CHECK(multi_stage > 100);
  CHECK(reference::stage_calls() - calls_before > kPrograms);
  select_isa(before.c_str());
}
