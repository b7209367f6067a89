#include "engines/isa/copies.h"

#include <algorithm>

#include "engines/isa/collectives.h"
#include "engines/isa/elements.h"
#include "engines/isa/views.h"

namespace neuron::engines::isa {

using std::int64_t;

namespace {

constexpr int64_t kChunk = 512;

bool packed(Type type) { return type >= Type::kFloat8E4M3FNx4; }

// One run of elements to another.
struct RowCopy {
  Type to, from;
  int64_t bytes;
  bool same;

  RowCopy(const Tile& a, const Tile& b)
      : to(a.type), from(b.type), bytes(static_cast<int64_t>(bytes_of(a.type))), same(a.type == b.type) {
    if (same || (!packed(to) && !packed(from))) return;
    if (bytes_of(to) != bytes_of(from))
      throw ProgramFault(ProgramFault::Kind::kMismatch, "containers of MX elements are copied bit by bit only");
    same = true;
  }

  void operator()(std::byte* target, int64_t target_step, const std::byte* source, int64_t source_step,
                  int64_t n) const {
    if (same) return copy_row(source, source_step, target, target_step, n, bytes);
    float chunk[kChunk];
    for (int64_t i = 0; i < n; i += kChunk) {
      const int64_t part = std::min(kChunk, n - i);
      widen_row(from, source + i * source_step, source_step, chunk, part);
      narrow_row(to, chunk, target + i * target_step, target_step, part);
    }
  }
};

void copy_runs(const Tile& to, const Tile& from) {
  const RowCopy copy(to, from);
  Cursor target(to), source(from);
  for (int64_t left = to.elements(); left > 0;) {
    const int64_t run = std::min({target.left(), source.left(), left});
    std::byte* t = target.pointer();
    const std::byte* s = source.pointer();
    if (t && s) copy(t, target.step(), s, source.step(), run);
    left -= run;
    target.advance(run);
    source.advance(run);
  }
}

// Dimensions of two tiles of one shape, merged where both allow it.
struct Joint {
  int rank = 0;
  int64_t size[kMaxRank], to[kMaxRank], from[kMaxRank];

  Joint(const Tile& a, const Tile& b) {
    for (int d = 0; d < a.rank; ++d) {
      if (a.size[d] == 1) continue;
      if (rank > 0 && to[rank - 1] == a.stride[d] * a.size[d] && from[rank - 1] == b.stride[d] * b.size[d]) {
        size[rank - 1] *= a.size[d];
        to[rank - 1] = a.stride[d];
        from[rank - 1] = b.stride[d];
      } else {
        size[rank] = a.size[d];
        to[rank] = a.stride[d];
        from[rank++] = b.stride[d];
      }
    }
  }
};

void copy_same_shape(const Tile& to, const Tile& from) {
  const RowCopy copy(to, from);
  Joint j(to, from);
  while (j.rank < 2) {
    // Outer dimensions of one element, so that what follows is a block.
    std::copy_backward(j.size, j.size + j.rank, j.size + j.rank + 1);
    std::copy_backward(j.to, j.to + j.rank, j.to + j.rank + 1);
    std::copy_backward(j.from, j.from + j.rank, j.from + j.rank + 1);
    j.size[0] = 1;
    j.to[0] = j.from[0] = copy.bytes;
    ++j.rank;
  }
  int64_t index[kMaxRank] = {};
  std::byte* target = to.data;
  const std::byte* source = from.data;
  const int outer = j.rank - 2;
  while (true) {
    if (copy.same) {
      copy_block(target, j.to[outer], j.to[outer + 1], source, j.from[outer], j.from[outer + 1], j.size[outer],
                 j.size[outer + 1], copy.bytes);
    } else {
      for (int64_t r = 0; r < j.size[outer]; ++r)
        copy(target + r * j.to[outer], j.to[outer + 1], source + r * j.from[outer], j.from[outer + 1],
             j.size[outer + 1]);
    }
    int d = outer - 1;
    for (; d >= 0; --d) {
      target += j.to[d];
      source += j.from[d];
      if (++index[d] < j.size[d]) break;
      target -= j.to[d] * j.size[d];
      source -= j.from[d] * j.size[d];
      index[d] = 0;
    }
    if (d < 0) return;
  }
}

bool same_shape(const Tile& a, const Tile& b) {
  return a.rank == b.rank && std::equal(a.size, a.size + a.rank, b.size);
}

Tile rows_of(const Tile& tile, int64_t begin, int64_t end) {
  Tile part = tile;
  part.size[0] = end - begin;
  if (tile.places)
    part.places += begin * (tile.indirect ? tile.free() : 1);
  else
    part.data += begin * tile.stride[0];
  return part;
}

template <class T>
void copy_blocked(std::byte* to, int64_t to_row, int64_t to_column, const std::byte* from, int64_t from_row,
                  int64_t from_column, int64_t rows, int64_t columns) {
  constexpr int64_t kBlock = 32;
  for (int64_t r0 = 0; r0 < rows; r0 += kBlock) {
    const int64_t r1 = std::min(rows, r0 + kBlock);
    for (int64_t c0 = 0; c0 < columns; c0 += kBlock) {
      const int64_t c1 = std::min(columns, c0 + kBlock);
      for (int64_t r = r0; r < r1; ++r)
        for (int64_t c = c0; c < c1; ++c)
          std::memcpy(to + r * to_row + c * to_column, from + r * from_row + c * from_column, sizeof(T));
    }
  }
}

}  // namespace

void copy_block(std::byte* to, int64_t to_row, int64_t to_column, const std::byte* from, int64_t from_row,
                int64_t from_column, int64_t rows, int64_t columns, int64_t bytes) {
  if (to_column == bytes && from_column == bytes) {
    for (int64_t r = 0; r < rows; ++r)
      std::memcpy(to + r * to_row, from + r * from_row, static_cast<std::size_t>(columns * bytes));
    return;
  }
  switch (bytes) {
    case 1:
      return copy_blocked<std::uint8_t>(to, to_row, to_column, from, from_row, from_column, rows, columns);
    case 2:
      return copy_blocked<std::uint16_t>(to, to_row, to_column, from, from_row, from_column, rows, columns);
    case 4:
      return copy_blocked<std::uint32_t>(to, to_row, to_column, from, from_row, from_column, rows, columns);
    default:
      return copy_blocked<std::uint64_t>(to, to_row, to_column, from, from_row, from_column, rows, columns);
  }
}

void copy_tile(const Tile& to, const Tile& from) {
  const int64_t elements = to.elements();
  if (elements != from.elements())
    throw ProgramFault(ProgramFault::Kind::kMismatch, "a tensor of " + std::to_string(elements) +
                                                          " elements is to take those of one of " +
                                                          std::to_string(from.elements()));
  if (elements == 0) return;
  if (overlaps_differently(to, from) && !from.places) {
    const Buffer kept(from);
    return kept.write(to);
  }
  const auto part = [&](int64_t begin, int64_t end) {
    const Tile target = rows_of(to, begin, end), source = rows_of(from, begin, end);
    if (same_shape(to, from) && !to.places && !from.places)
      copy_same_shape(target, source);
    else
      copy_runs(target, source);
  };
  if (to.size[0] == from.size[0])
    split(to.size[0], elements, part);
  else
    copy_runs(to, from);
}

}  // namespace neuron::engines::isa
