#pragma once
// Attention in which a list of blocks says which keys a block of queries looks at, and machine code changes the scores:
// scores of a tile are made, changed, and used up in cache, and never stand in memory. Sums are kept in fp32 whatever
// the operands are.
#include <cstdint>
#include <vector>

#include "engines/attention_tiles.h"

namespace neuron::engines {

// A tensor of [batch, heads, rows, columns]; strides count elements. `data` may be null where that is said.
struct Heads {
  const void* data = nullptr;
  Format format = Format::kFloat32;
  std::int64_t batch = 0, head = 0, row = 0, column = 0;  // strides

  Strided matrix(std::int64_t b, std::int64_t h, std::int64_t first_row) const;
};

// For each block of queries, the blocks of keys: indices[b, h, row][0 .. counts[b, h, row]). A batch or head beyond the
// last one begins again with the first.
struct BlockLists {
  const std::int32_t* counts = nullptr;  // null: no blocks
  const std::int32_t* indices = nullptr;
  std::int64_t batches = 0, heads = 0, rows = 0, columns = 0;
  std::int64_t count_strides[3] = {}, index_strides[4] = {};
};

// Machine code for a tile: result = f(scores, gradients, positions). Its operands are these three, with rows `width`
// apart, and `captured`; its numbers the batch, the head, the first query, the first key, rows, columns, the width, and
// `ints`. Null leaves scores (or gradients) as they are.
struct TileCode {
  using Function = void (*)(char* const* operands, const std::int64_t* ints, char* scratch, std::int64_t begin,
                            std::int64_t end);
  Function function = nullptr;
  std::vector<char*> captured;
  std::vector<std::int64_t> ints;
};

struct FlexAttention {
  std::int64_t batch = 0, heads = 0, kv_heads = 0, queries = 0, keys = 0, depth = 0, value_depth = 0;
  Heads query, key, value;  // a key head serves heads / kv_heads query heads
  Heads out;                // written by the forward unless it is null, read by the backward
  // Base-2 logarithm of the sum of exponentials of a row's scores, and the greatest of them in the same unit. fp32,
  // without columns. The forward writes them unless they are null; the backward reads the first.
  Heads logsumexp, maxima;
  float scale = 1;
  BlockLists partial, full;
  std::int64_t query_block = 1, key_block = 1;  // of the lists
  TileCode change_partial, change_full;         // of the scores
};

void flex_attention(const FlexAttention& attention);

struct FlexAttentionGradient {
  FlexAttention attention;
  Heads grad_out, grad_logsumexp;          // null: zero
  Heads grad_query, grad_key, grad_value;  // written; null: not wanted
  TileCode pull_partial, pull_full;        // gradients of changed scores to those of scores
};

void flex_attention_backward(const FlexAttentionGradient& gradient);

}  // namespace neuron::engines
