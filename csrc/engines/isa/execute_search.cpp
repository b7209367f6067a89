// Searches along rows: largest values, places of values, what is not zero, bounds of segments.
#include <algorithm>
#include <vector>

#include "engines/isa/execute.h"
#include "engines/isa/rows.h"

namespace neuron::engines::isa {
namespace {

constexpr std::int64_t kWanted = 8;
constexpr std::int32_t kMissing = -1;  // all ones, in indices of any width

// One row as fp32 without gaps, in place where it can be.
const float* whole_row(const Walk& walk, std::int64_t row, std::vector<float>& room, Scratch& s) {
  const std::int64_t n = walk.free();
  if (n <= kBlock) return walk.floats({row, 1, 0, n}, s.values[0]).data;
  room.resize(static_cast<std::size_t>(n));
  for_blocks(row, row + 1, n, [&](const Rectangle& block) {
    float* to = room.data() + block.first;
    const auto in = walk.floats(block, to);
    if (in.data != to) std::copy_n(in.data, block.n, to);
  });
  return room.data();
}

void require(bool right, const char* what) {
  if (!right) throw ProgramFault(ProgramFault::Kind::kMismatch, what);
}

// body(row, its elements, scratch) on threads.
template <class Body>
void for_all_rows(const Walk& data, const Body& body) {
  split(data.rows(), data.rows() * data.free(), [&](std::int64_t begin, std::int64_t end) {
    Scratch& s = scratch();
    std::vector<float> room;
    for (std::int64_t r = begin; r < end; ++r) body(r, whole_row(data, r, room, s), s);
  });
}

}  // namespace

void execute_max8(Core& core, const Instruction& instruction) {
  const Walk dst(core.tile(output(instruction, 0)));
  const Input src(core.tile(input(instruction, 0)), dst);
  require(dst.rows() == src->rows() && dst.free() == kWanted, "max8 gives 8 elements per partition");
  for_all_rows(src.walk(), [&](std::int64_t r, const float* row, Scratch& s) {
    row_kernels().largest8(row, src->free(), s.values[1]);
    dst.put({r, 1, 0, kWanted}, {s.values[1], kWanted});
  });
}

// Equal values take one occurrence after the other.
void execute_find_index8(Core& core, const Instruction& instruction) {
  const Walk dst(core.tile(output(instruction, 0)));
  const Input data(core.tile(input(instruction, 0)), dst), vals(core.tile(input(instruction, 1)), dst);
  require(
      dst.rows() == data->rows() && vals->rows() == data->rows() && vals->free() == kWanted && dst.free() == kWanted,
      "find_index8 looks for 8 values per partition and gives 8 indices");
  const std::int64_t n = data->free();
  for_all_rows(data.walk(), [&](std::int64_t r, const float* row, Scratch& s) {
    const float* wanted = vals->floats({r, 1, 0, kWanted}, s.values[1]).data;
    std::int32_t* found = s.integers[0];
    for (int k = 0; k < kWanted; ++k) {
      std::int64_t from = 0;
      for (int j = 0; j < k; ++j)
        if (wanted[j] == wanted[k]) from = found[j] == kMissing ? n : std::int64_t{found[j]} + 1;
      const std::int64_t place = row_kernels().find(row, n, wanted[k], from);
      found[k] = place < n ? static_cast<std::int32_t>(place) : kMissing;
    }
    dst.put_integers({r, 1, 0, kWanted}, {found, kWanted});
  });
}

// The values go from the last to the first, so of equal ones the last takes the first occurrence.
void execute_match_replace8(Core& core, const Instruction& instruction) {
  const auto replacement = static_cast<float>(number_attribute(instruction, 0));
  const Walk dst(core.tile(output(instruction, 0)));
  const Input data(core.tile(input(instruction, 0)), dst), vals(core.tile(input(instruction, 1)), dst);
  require_equal_sizes(dst, data.walk());
  require(vals->rows() == data->rows() && vals->free() == kWanted, "match_replace8 takes 8 values per partition");
  const bool wants_places = instruction.outputs > 1 && core.has(output(instruction, 1));
  const Walk places(core.tile(output(instruction, wants_places ? 1 : 0)));
  require(!wants_places || (places.rows() == data->rows() && places.free() == kWanted),
          "match_replace8 gives 8 indices per partition");
  const std::int64_t n = data->free();
  for_all_rows(data.walk(), [&](std::int64_t r, const float* row, Scratch& s) {
    const float* wanted = vals->floats({r, 1, 0, kWanted}, s.values[1]).data;
    std::int32_t* found = s.integers[0];
    for (int k = kWanted - 1; k >= 0; --k) {
      std::int64_t from = 0;
      for (int j = kWanted - 1; j > k; --j)
        if (wanted[j] == wanted[k]) from = found[j] == kMissing ? n : std::int64_t{found[j]} + 1;
      const std::int64_t place = row_kernels().find(row, n, wanted[k], from);
      found[k] = place < n ? static_cast<std::int32_t>(place) : kMissing;
    }
    for_blocks(r, r + 1, n, [&](const Rectangle& block) {
      float* out = s.values[2];
      std::copy_n(row + block.first, block.n, out);
      for (int k = 0; k < kWanted; ++k)
        if (found[k] >= block.first && found[k] < block.first + block.n) out[found[k] - block.first] = replacement;
      dst.put(block, {out, block.n});
    });
    if (wants_places) places.put_integers({r, 1, 0, kWanted}, {found, kWanted});
  });
}

// Each core of the GpSimd engine has 16 partitions, and works on the first of them.
void execute_nonzero_with_count(Core& core, const Instruction& instruction) {
  constexpr std::int64_t kStep = 16;
  const auto offset = static_cast<std::int32_t>(integer_attribute(instruction, 0));
  const auto padding = static_cast<std::int32_t>(integer_attribute(instruction, 1, -1));
  const Walk dst(core.tile(output(instruction, 0)));
  const Input src(core.tile(input(instruction, 0)), dst);
  const std::int64_t n = src->free();
  require(dst.rows() == src->rows() && dst.free() == n + 1, "nonzero_with_count gives one element more than it reads");
  Scratch& s = scratch();
  std::vector<std::int32_t> result(static_cast<std::size_t>(n + 1));
  const bool floats = is_float(src->type());
  for (std::int64_t r = 0; r < src->rows(); r += kStep) {
    std::int32_t count = 0;
    for_blocks(r, r + 1, n, [&](const Rectangle& block) {
      const auto place = [&](std::int64_t i) { return static_cast<std::int32_t>(block.first + i) + offset; };
      if (floats) {
        const auto in = src->floats(block, s.values[0]);
        for (std::int64_t i = 0; i < block.n; ++i)
          if (in.data[i] != 0) result[static_cast<std::size_t>(count++)] = place(i);
      } else {
        const auto in = src->integers(block, s.integers[0]);
        for (std::int64_t i = 0; i < block.n; ++i)
          if (in.data[i] != 0) result[static_cast<std::size_t>(count++)] = place(i);
      }
    });
    std::fill(result.begin() + count, result.end() - 1, padding);
    result.back() = count;
    for_blocks(r, r + 1, n + 1,
               [&](const Rectangle& block) { dst.put_integers(block, {result.data() + block.first, block.n}); });
  }
}

// For each element the first place of its run of equal numbers and the one after its last; n and -1 where it is 0.
void execute_sequence_bounds(Core& core, const Instruction& instruction) {
  const Walk dst(core.tile(output(instruction, 0)));
  const Input ids(core.tile(input(instruction, 0)), dst);
  const std::int64_t n = ids->free();
  require(dst.rows() == ids->rows() && dst.free() == 2 * n,
          "sequence_bounds gives two elements for each that it reads");
  std::vector<float> room, bounds(static_cast<std::size_t>(2 * n));
  Scratch& s = scratch();
  for (std::int64_t r = 0; r < ids->rows(); ++r) {
    const float* row = whole_row(ids.walk(), r, room, s);
    for (std::int64_t begin = 0, end; begin < n; begin = end) {
      for (end = begin + 1; end < n && row[end] == row[begin];) ++end;
      const bool padding = row[begin] == 0;
      for (std::int64_t i = begin; i < end; ++i) {
        bounds[static_cast<std::size_t>(i)] = static_cast<float>(padding ? n : begin);
        bounds[static_cast<std::size_t>(n + i)] = static_cast<float>(padding ? -1 : end);
      }
    }
    for_blocks(r, r + 1, 2 * n,
               [&](const Rectangle& block) { dst.put(block, {bounds.data() + block.first, block.n}); });
  }
}

// Of the `n` elements that 16 partitions hold one after the other, column by column, the largest in ascending order;
// each of the partitions gets the same result. Of equal elements those with the lower index.
void execute_topk(Core& core, const Instruction& instruction) {
  constexpr std::int64_t kGroup = 16;
  const std::int64_t n = integer_attribute(instruction, 0);
  const Walk values(core.tile(output(instruction, 0))), indices(core.tile(output(instruction, 1)));
  const Input src(core.tile(input(instruction, 0)), values);
  const std::int64_t wanted = values.free(), columns = (n + kGroup - 1) / kGroup;
  require(values.rows() == src->rows() && indices.rows() == src->rows() && indices.free() == wanted && wanted <= n &&
              columns <= src->free() && src->rows() % kGroup == 0,
          "topk chooses among n elements of 16 partitions, and gives as many values as indices");
  Scratch& s = scratch();
  std::vector<float> elements(static_cast<std::size_t>(columns * kGroup)), chosen(static_cast<std::size_t>(wanted));
  std::vector<std::int32_t> order(static_cast<std::size_t>(n));
  for (std::int64_t group = 0; group < src->rows(); group += kGroup) {
    for (std::int64_t p = 0; p < kGroup; ++p)
      for (std::int64_t first = 0; first < columns; first += kBlock) {
        const std::int64_t part = std::min(kBlock, columns - first);
        const auto in = src->floats({group + p, 1, first, part}, s.values[0]);
        for (std::int64_t i = 0; i < part; ++i)
          elements[static_cast<std::size_t>((first + i) * kGroup + p)] = in.data[i];
      }
    for (std::int64_t i = 0; i < n; ++i) order[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i);
    const auto larger = [&](std::int32_t a, std::int32_t b) {
      const float x = elements[static_cast<std::size_t>(a)], y = elements[static_cast<std::size_t>(b)];
      return x != y ? x > y : a < b;
    };
    std::partial_sort(order.begin(), order.begin() + wanted, order.end(), larger);
    std::reverse(order.begin(), order.begin() + wanted);
    for (std::int64_t i = 0; i < wanted; ++i)
      chosen[static_cast<std::size_t>(i)] = elements[static_cast<std::size_t>(order[static_cast<std::size_t>(i)])];
    for (std::int64_t p = group; p < group + kGroup; ++p)
      for_blocks(p, p + 1, wanted, [&](const Rectangle& block) {
        values.put(block, {chosen.data() + block.first, block.n});
        indices.put_integers(block, {order.data() + block.first, block.n});
      });
  }
}

}  // namespace neuron::engines::isa
