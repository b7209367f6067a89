// Attention by blocks against the plain formula in double precision: odd sizes, lists of blocks, code for tiles.
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "checks.h"
#include "engines/flex_attention.h"
#include "test_engines.h"

using namespace neuron::engines;
using std::int64_t;
using std::vector;

namespace {

struct Shape {
  int64_t heads, kv_heads, queries, keys, depth, value_depth, query_block, key_block;
};

vector<float> random_numbers(int64_t count, unsigned seed) {
  std::mt19937 source(seed);
  std::normal_distribution<float> normal;
  vector<float> numbers(static_cast<std::size_t>(count));
  for (float& number : numbers) number = normal(source);
  return numbers;
}

Heads heads_of(const vector<float>& data, int64_t rows, int64_t columns) {
  return {data.data(), Format::kFloat32, 0, rows * columns, columns, 1};
}

// The mask of these tests, and how it changes scores. `ints` behind the positions: one number, which is added.
bool sees(int64_t query, int64_t key) { return key <= query && query - key < 40; }
constexpr double kShift = 3;

void change(char* const* operands, const int64_t* ints, char*, int64_t begin, int64_t end) {
  const auto* scores = reinterpret_cast<const float*>(operands[0]);
  auto* result = reinterpret_cast<float*>(operands[2]);
  for (int64_t i = begin; i < end; ++i)
    for (int64_t j = 0; j < ints[5]; ++j)
      result[i * ints[6] + j] = sees(ints[2] + i, ints[3] + j)
                                    ? 2 * scores[i * ints[6] + j] + static_cast<float>(ints[7])
                                    : -std::numeric_limits<float>::infinity();
}

void pull(char* const* operands, const int64_t* ints, char*, int64_t begin, int64_t end) {
  const auto* gradients = reinterpret_cast<const float*>(operands[1]);
  auto* result = reinterpret_cast<float*>(operands[2]);
  for (int64_t i = begin; i < end; ++i)
    for (int64_t j = 0; j < ints[5]; ++j)
      result[i * ints[6] + j] = sees(ints[2] + i, ints[3] + j) ? 2 * gradients[i * ints[6] + j] : 0;
}

// All blocks of keys that some query of a block sees, as partial blocks.
struct Lists {
  vector<int32_t> counts, indices;
  BlockLists lists;

  explicit Lists(const Shape& s) {
    const int64_t rows = (s.queries + s.query_block - 1) / s.query_block;
    const int64_t columns = (s.keys + s.key_block - 1) / s.key_block;
    for (int64_t r = 0; r < rows; ++r) {
      counts.push_back(0);
      indices.resize(static_cast<std::size_t>((r + 1) * columns));
      for (int64_t c = 0; c < columns; ++c) {
        bool any = false;
        for (int64_t q = r * s.query_block; q < std::min(s.queries, (r + 1) * s.query_block); ++q)
          for (int64_t k = c * s.key_block; k < std::min(s.keys, (c + 1) * s.key_block); ++k) any |= sees(q, k);
        if (any) indices[static_cast<std::size_t>(r * columns + counts.back()++)] = static_cast<int32_t>(c);
      }
    }
    lists = {counts.data(), indices.data(), 1, 1, rows, columns, {0, 0, 1}, {0, 0, columns, 1}};
  }
};

bool near(float actual, double expected) {
  if (std::isinf(expected)) return actual == static_cast<float>(expected);
  return std::abs(actual - expected) <= 2e-5 * (1 + std::abs(expected));
}

void test(const Shape& s) {
  const double scale = 0.25;
  const auto query = random_numbers(s.heads * s.queries * s.depth, 1),
             key = random_numbers(s.kv_heads * s.keys * s.depth, 2),
             value = random_numbers(s.kv_heads * s.keys * s.value_depth, 3),
             grad_out = random_numbers(s.heads * s.queries * s.value_depth, 4),
             grad_logsumexp = random_numbers(s.heads * s.queries, 5);
  vector<float> out(grad_out.size()), logsumexp(grad_logsumexp.size()), maxima(logsumexp.size());
  vector<float> grad_query(query.size()), grad_key(key.size()), grad_value(value.size());
  const Lists lists(s);

  FlexAttentionGradient g;
  FlexAttention& a = g.attention;
  a.batch = 1, a.heads = s.heads, a.kv_heads = s.kv_heads, a.queries = s.queries, a.keys = s.keys;
  a.depth = s.depth, a.value_depth = s.value_depth, a.scale = static_cast<float>(scale);
  a.query = heads_of(query, s.queries, s.depth), a.key = heads_of(key, s.keys, s.depth);
  a.value = heads_of(value, s.keys, s.value_depth), a.out = heads_of(out, s.queries, s.value_depth);
  a.logsumexp = heads_of(logsumexp, s.queries, 1), a.maxima = heads_of(maxima, s.queries, 1);
  a.partial = lists.lists, a.query_block = s.query_block, a.key_block = s.key_block;
  a.change_partial = {&change, {}, {static_cast<int64_t>(kShift)}};
  flex_attention(a);
  g.grad_out = heads_of(grad_out, s.queries, s.value_depth);
  g.grad_logsumexp = heads_of(grad_logsumexp, s.queries, 1);
  g.grad_query = heads_of(grad_query, s.queries, s.depth), g.grad_key = heads_of(grad_key, s.keys, s.depth);
  g.grad_value = heads_of(grad_value, s.keys, s.value_depth);
  g.pull_partial = {&pull, {}, {}};
  flex_attention_backward(g);

  vector<double> want_query(query.size()), want_key(key.size()), want_value(value.size());
  bool forward = true, backward = true;
  for (int64_t h = 0; h < s.heads; ++h) {
    const int64_t kv = h / (s.heads / s.kv_heads);
    for (int64_t i = 0; i < s.queries; ++i) {
      const std::size_t row = static_cast<std::size_t>(h * s.queries + i);
      const float* q = query.data() + row * static_cast<std::size_t>(s.depth);
      const float* go = grad_out.data() + row * static_cast<std::size_t>(s.value_depth);
      const auto k = [&](int64_t j) { return key.data() + (kv * s.keys + j) * s.depth; };
      const auto v = [&](int64_t j) { return value.data() + (kv * s.keys + j) * s.value_depth; };
      vector<double> p(static_cast<std::size_t>(s.keys)), wanted(static_cast<std::size_t>(s.value_depth));
      double sum = 0, most = -std::numeric_limits<double>::infinity(), shift = 0;
      for (int64_t j = 0; j < s.keys; ++j) {
        if (!sees(i, j)) continue;
        double score = 0;
        for (int64_t c = 0; c < s.depth; ++c) score += double(q[c]) * k(j)[c];
        score = 2 * scale * score + kShift;
        most = std::max(most, score);
        sum += p[static_cast<std::size_t>(j)] = std::exp(score);
      }
      for (int64_t j = 0; j < s.keys; ++j) {
        double& share = p[static_cast<std::size_t>(j)];
        if (sum != 0) share /= sum;
        for (int64_t c = 0; c < s.value_depth; ++c) wanted[static_cast<std::size_t>(c)] += share * v(j)[c];
      }
      for (int64_t c = 0; c < s.value_depth; ++c) {
        forward &= near(out[row * static_cast<std::size_t>(s.value_depth) + static_cast<std::size_t>(c)],
                        wanted[static_cast<std::size_t>(c)]);
        shift += wanted[static_cast<std::size_t>(c)] * go[c];
      }
      forward &= near(logsumexp[row], std::log2(sum)) && near(maxima[row], most / std::log(2));
      shift -= grad_logsumexp[row] / std::log(2);
      for (int64_t j = 0; j < s.keys; ++j) {
        const double share = p[static_cast<std::size_t>(j)];
        double gradient = -shift;
        for (int64_t c = 0; c < s.value_depth; ++c) {
          gradient += double(go[c]) * v(j)[c];
          want_value[static_cast<std::size_t>((kv * s.keys + j) * s.value_depth + c)] += share * go[c];
        }
        gradient *= share * 2 * scale;
        for (int64_t c = 0; c < s.depth; ++c) {
          want_query[row * static_cast<std::size_t>(s.depth) + static_cast<std::size_t>(c)] += gradient * k(j)[c];
          want_key[static_cast<std::size_t>((kv * s.keys + j) * s.depth + c)] += gradient * q[c];
        }
      }
    }
  }
  const auto same = [](const vector<float>& actual, const vector<double>& expected) {
    bool all = true;
    for (std::size_t i = 0; i < actual.size(); ++i) all &= near(actual[i], expected[i]);
    return all;
  };
  backward = same(grad_query, want_query) && same(grad_key, want_key) && same(grad_value, want_value);
  CHECK(forward);
  CHECK(backward);
}

}  // namespace

void test_attention() {
  test({2, 1, 200, 200, 16, 16, 128, 128});
  test({3, 3, 131, 77, 20, 33, 16, 48});   // the last queries see no key
  test({2, 2, 5, 300, 64, 64, 128, 128});  // few queries
  test({1, 1, 1, 1, 1, 1, 1, 1});
}
