// Every tile kernel of every instruction set against the definition, on numbers from the edges of the formats.
#include "test_engines.h"

#include <cstring>
#include <string>
#include <vector>

#include "checks.h"
#include "engine_reference.h"
#include "engines/kernels.h"

using namespace neuron::engines;

namespace {

constexpr Lane kAllLanes[] = {Lane::kF32, Lane::kF64, Lane::kI64, Lane::kB8};
constexpr Dtype kAllDtypes[] = {Dtype::kF32, Dtype::kF64, Dtype::kBF16, Dtype::kF16, Dtype::kI64,
                                Dtype::kI32, Dtype::kI16, Dtype::kI8,   Dtype::kU8,  Dtype::kBool};

// Arrays of lanes; room for a guard behind the elements.
struct Array {
  Array(Lane lane, std::int64_t n) : lane(lane), bytes(static_cast<std::size_t>(n + 64) * size_of(lane), 0xa5) {}
  void* data() { return bytes.data(); }
  const void* data() const { return bytes.data(); }
  Scalar get(std::int64_t i) const {
    Scalar s{};
    std::memcpy(&s, bytes.data() + static_cast<std::size_t>(i) * size_of(lane), size_of(lane));
    return s;
  }
  void set(std::int64_t i, Scalar s) {
    std::memcpy(bytes.data() + static_cast<std::size_t>(i) * size_of(lane), &s, size_of(lane));
  }
  Lane lane;
  std::vector<unsigned char> bytes;
};

Array random_array(Lane lane, std::int64_t n, std::mt19937& random) {
  Array a(lane, n);
  for (std::int64_t i = 0; i < n; ++i) a.set(i, reference::random_number(lane, random));
  return a;
}

struct Case {
  Kernel kernel;
  Op op;
  Lane lane, to;
  Dtype dtype = Dtype::kF32;
  Dtype rounded = Dtype::kF32;  // kBF16: of the fused kernels
  unsigned mask;
  int operands;
};

bool agrees(const Case& c, std::int64_t n, bool in_place, std::mt19937& random) {
  std::vector<Array> in;
  for (int i = 0; i < 3; ++i)
    in.push_back(random_array(c.op == Op::kSelect && i == 0 ? Lane::kB8 : c.lane, n + 1, random));
  const std::vector<Array> before = in;
  Array separate(c.to, n);
  // The last operand that has the size of the result is overwritten.
  int target = -1;
  for (int i = 0; in_place && i < c.operands; ++i)
    if ((c.mask & (1u << i)) == 0 && size_of(in[static_cast<std::size_t>(i)].lane) == size_of(c.to)) target = i;
  if (in_place && target < 0) return true;
  Array& out = target < 0 ? separate : in[static_cast<std::size_t>(target)];
  const Array untouched = out;
  c.kernel(out.data(), in[0].data(), in[1].data(), in[2].data(), n);
  bool ok = true;
  for (std::int64_t i = 0; i < n; ++i) {
    Scalar operands[3];
    for (unsigned k = 0; k < 3; ++k) operands[k] = before[k].get(c.mask & (1u << k) ? 0 : i);
    Scalar expected = reference::apply(c.op, c.lane, c.to, c.dtype, operands);
    if (c.rounded != Dtype::kF32) expected = reference::apply(Op::kRound, Lane::kF32, Lane::kF32, c.rounded, &expected);
    Scalar got{};
    std::memcpy(&got, static_cast<const unsigned char*>(out.data()) + static_cast<std::size_t>(i) * size_of(c.to),
                size_of(c.to));
    if (!reference::same(c.to, got, expected)) {
      if (ok)
        std::fprintf(stderr,
                     "%s op %d lane %d to %d dtype %d mask %u: element %lld of %lld: %a, %a, %a -> %a, not %a\n",
                     selected_isa(), static_cast<int>(c.op), static_cast<int>(c.lane), static_cast<int>(c.to),
                     static_cast<int>(c.dtype), c.mask, static_cast<long long>(i), static_cast<long long>(n),
                     c.lane == Lane::kF32 ? operands[0].f32 : operands[0].f64,
                     c.lane == Lane::kF32 ? operands[1].f32 : operands[1].f64,
                     c.lane == Lane::kF32 ? operands[2].f32 : operands[2].f64, c.to == Lane::kF32 ? got.f32 : got.f64,
                     c.to == Lane::kF32 ? expected.f32 : expected.f64);
      ok = false;
    }
  }
  const std::size_t used = static_cast<std::size_t>(n) * size_of(c.to);
  return ok && std::memcmp(out.bytes.data() + used, untouched.bytes.data() + used, out.bytes.size() - used) == 0;
}

std::vector<Case> all_cases(const Kernels& k) {
  std::vector<Case> cases;
  const auto add = [&](Kernel kernel, Case c) {
    if (kernel == nullptr) return;
    c.kernel = kernel;
    cases.push_back(c);
  };
  for (std::size_t op = 0; op < kOps; ++op)
    for (const Lane lane : kAllLanes)
      for (unsigned mask = 0; mask < kMasks; ++mask) {
        const bool compares = op >= index_of(Op::kEq) && op <= index_of(Op::kLe);
        const int operands = k.op[op][index_of(lane)][4] ? 3 : k.op[op][index_of(lane)][2] ? 2 : 1;
        add(k.op[op][index_of(lane)][mask], {nullptr, static_cast<Op>(op), lane, compares ? Lane::kB8 : lane,
                                             Dtype::kF32, Dtype::kF32, mask, operands});
        if (lane == Lane::kF32)
          add(k.rounded_bf16[op][mask],
              {nullptr, static_cast<Op>(op), lane, lane, Dtype::kF32, Dtype::kBF16, mask, operands});
      }
  for (const Lane from : kAllLanes)
    for (unsigned mask = 0; mask < 2; ++mask) {
      for (const Lane to : kAllLanes)
        if (from != to)
          add(k.cast[index_of(from)][index_of(to)][mask],
              {nullptr, Op::kCast, from, to, Dtype::kF32, Dtype::kF32, mask, 1});
      add(k.cast_through_i32[index_of(from)][mask],
          {nullptr, Op::kCast, from, Lane::kI64, Dtype::kI32, Dtype::kF32, mask, 1});
    }
  for (const Dtype dtype : kAllDtypes)
    for (unsigned mask = 0; mask < 2; ++mask)
      add(k.round[index_of(dtype)][mask],
          {nullptr, Op::kRound, lane_of(dtype), lane_of(dtype), dtype, Dtype::kF32, mask, 1});
  return cases;
}

void ops_agree() {
  std::mt19937 random(11);
  const std::vector<Case> cases = all_cases(kernels());
  // 6 binary and 9 unary ops on numbers, comparisons, logic, select: fewer would mean that the table has lost some.
  CHECK(cases.size() > 250);
  for (const Case& c : cases) {
    bool ok = true;
    for (const std::int64_t n : {0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 1000})
      for (const bool in_place : {false, true}) ok = ok && agrees(c, n, in_place, random);
    CHECK(ok);
  }
}

// All pairs of edge values: a random draw would hit few of them.
void pairs_agree() {
  const std::vector<double>& edges = reference::edges();
  const auto n = static_cast<std::int64_t>(edges.size() * edges.size());
  for (const Lane lane : {Lane::kF32, Lane::kF64}) {
    Array a(lane, n), b(lane, n);
    for (std::int64_t i = 0; i < n; ++i) {
      Scalar x{}, y{};
      const double p = edges[static_cast<std::size_t>(i) % edges.size()],
                   q = edges[static_cast<std::size_t>(i) / edges.size()];
      if (lane == Lane::kF32) {
        x.f32 = static_cast<float>(p);
        y.f32 = static_cast<float>(q);
      } else {
        x.f64 = p;
        y.f64 = q;
      }
      a.set(i, x);
      b.set(i, y);
    }
    for (const Op op :
         {Op::kAdd, Op::kSub, Op::kMul, Op::kDiv, Op::kMin, Op::kMax, Op::kEq, Op::kNe, Op::kLt, Op::kLe}) {
      const Lane to = op >= Op::kEq ? Lane::kB8 : lane;
      Array out(to, n);
      kernels().op[index_of(op)][index_of(lane)][0](out.data(), a.data(), b.data(), nullptr, n);
      bool ok = true;
      for (std::int64_t i = 0; i < n; ++i) {
        const Scalar in[3] = {a.get(i), b.get(i), {}};
        ok &= reference::same(to, out.get(i), reference::apply(op, lane, to, Dtype::kF32, in));
      }
      CHECK(ok);
    }
  }
}

void every_narrow_number_loads_and_stores() {
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF16, Dtype::kI16}) {
    constexpr std::int64_t kCount = 65536;
    std::vector<std::uint16_t> stored(kCount), back(kCount + 1, 0xa5a5);
    for (std::int64_t i = 0; i < kCount; ++i) stored[static_cast<std::size_t>(i)] = static_cast<std::uint16_t>(i);
    Array lanes(lane_of(dtype), kCount);
    kernels().load[index_of(dtype)](lanes.data(), stored.data(), nullptr, nullptr, kCount);
    kernels().store[index_of(dtype)][0](back.data(), lanes.data(), nullptr, nullptr, kCount);
    bool loads = true, stores = true;
    for (std::int64_t i = 0; i < kCount; ++i) {
      loads &= reference::same(lanes.lane, lanes.get(i), reference::load(dtype, stored.data(), i));
      stores &= reference::same_memory(dtype, stored.data(), back.data(), i);
    }
    CHECK(loads);
    CHECK(stores);
    CHECK(back[kCount] == 0xa5a5);
  }
}

void stores_round() {
  std::mt19937 random(5);
  constexpr std::int64_t kCount = 200003;
  for (const Dtype dtype : kAllDtypes) {
    const Lane lane = lane_of(dtype);
    Array lanes(lane, kCount);
    for (std::int64_t i = 0; i < kCount; ++i) {
      Scalar s = reference::random_number(lane, random);
      if (lane == Lane::kF32 && i % 2) {  // any bits
        const auto bits = static_cast<std::uint32_t>(random());
        std::memcpy(&s.f32, &bits, 4);
      }
      lanes.set(i, s);
    }
    const auto bytes = static_cast<std::size_t>(kCount) * size_of(dtype);
    std::vector<unsigned char> out(bytes + 64, 0xa5), expected(bytes + 64, 0xa5);
    kernels().store[index_of(dtype)][0](out.data(), lanes.data(), nullptr, nullptr, kCount);
    for (std::int64_t i = 0; i < kCount; ++i) reference::store(dtype, expected.data(), i, lanes.get(i));
    bool ok = true;
    for (std::int64_t i = 0; i < kCount; ++i) ok &= reference::same_memory(dtype, out.data(), expected.data(), i);
    CHECK(ok);
    CHECK(std::memcmp(out.data() + bytes, expected.data() + bytes, 64) == 0);

    Array loaded(lane, kCount);
    kernels().load[index_of(dtype)](loaded.data(), expected.data(), nullptr, nullptr, kCount);
    ok = true;
    for (std::int64_t i = 0; i < kCount; ++i)
      ok &= reference::same(lane, loaded.get(i), reference::load(dtype, expected.data(), i));
    CHECK(ok);

    kernels().store[index_of(dtype)][1](out.data(), lanes.data(), nullptr, nullptr, 77);  // one number for all
    ok = true;
    for (std::int64_t i = 0; i < 77; ++i) {
      reference::store(dtype, expected.data(), 0, lanes.get(0));
      ok &= reference::same(lane, reference::load(dtype, out.data(), i), reference::load(dtype, expected.data(), 0));
    }
    CHECK(ok);
  }
}

}  // namespace

void test_kernels() {
  const std::string before = selected_isa();
  std::string seen;
  for (const char* isa : {"default", "avx2", "avx512"}) {
    select_isa(isa);
    if (seen == selected_isa()) continue;  // the machine has no wider one
    seen = selected_isa();
    ops_agree();
    pairs_agree();
    every_narrow_number_loads_and_stores();
    stores_round();
  }
  select_isa(before.c_str());
  CHECK(before == selected_isa());
}
