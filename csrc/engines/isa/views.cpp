#include "engines/isa/views.h"

namespace neuron::engines::isa {

using std::int64_t;

int64_t Geometry::lowest() const {
  int64_t at = offset;
  for (int d = 0; d < rank; ++d) at += std::min<int64_t>(0, stride[d] * (size[d] - 1));
  return at;
}

int64_t Geometry::highest() const {
  int64_t at = offset;
  for (int d = 0; d < rank; ++d) at += std::max<int64_t>(0, stride[d] * (size[d] - 1));
  return at + bytes;
}

Geometry geometry(const View& view, const Storage& storage, int64_t pitch) {
  Geometry g;
  g.rank = view.rank;
  g.bytes = static_cast<int64_t>(bytes_of(view.type));
  const int64_t row = row_bytes(storage);
  // Only whole partitions move with the pitch; what lies within one does not.
  const auto placed = [&](int64_t bytes) { return bytes / row * pitch + bytes % row; };
  const bool apart = on_chip(storage) && row != 0 && pitch != row;
  g.offset = view.offset * g.bytes;
  if (apart) g.offset = placed(g.offset);
  for (int d = 0; d < view.rank; ++d) {
    g.size[d] = view.size[d];
    g.stride[d] = view.stride[d] * g.bytes;
    if (apart && d == 0) g.stride[d] = placed(g.stride[d]);
  }
  return g;
}

Geometry merged(const Geometry& g) {
  Geometry m;
  m.bytes = 1;
  m.offset = g.offset;
  int64_t size[kMaxRank + 1], stride[kMaxRank + 1];
  int rank = 0;
  for (int d = 0; d < g.rank; ++d) {
    if (g.size[d] == 1 || g.stride[d] == 0) continue;
    int64_t step = g.stride[d];
    if (step < 0) {
      m.offset += step * (g.size[d] - 1);
      step = -step;
    }
    size[rank] = g.size[d];
    stride[rank++] = step;
  }
  int64_t length = g.bytes;
  // From the innermost dimension outwards: what continues the run, or the dimension inside it.
  int64_t out_size[kMaxRank + 1], out_stride[kMaxRank + 1];
  int out = 0;
  for (int d = rank - 1; d >= 0; --d) {
    if (out == 0 && stride[d] == length) {
      length *= size[d];
    } else if (out > 0 && stride[d] == out_stride[out - 1] * out_size[out - 1]) {
      out_size[out - 1] *= size[d];
    } else {
      out_size[out] = size[d];
      out_stride[out++] = stride[d];
    }
  }
  m.rank = 0;
  for (int d = out - 1; d >= 0; --d) {
    m.size[m.rank] = out_size[d];
    m.stride[m.rank++] = out_stride[d];
  }
  m.size[m.rank] = length;
  m.stride[m.rank++] = 1;
  return m;
}

Cursor::Cursor(const Tile& tile) : data_(tile.data) {
  places_ = tile.places;
  int first = 0;
  indirect_ = tile.indirect;
  if (indirect_) {
    // One element at a time, each with a place of its own.
    size_[rank_++] = tile.elements();
    find();
    return;
  }
  if (places_) {
    size_[rank_] = tile.size[0];
    stride_[rank_++] = 0;
    first = 1;
  }
  for (int d = first; d < tile.rank; ++d) {
    if (tile.size[d] == 1) continue;
    if (rank_ > first && stride_[rank_ - 1] == tile.stride[d] * tile.size[d]) {
      size_[rank_ - 1] *= tile.size[d];
      stride_[rank_ - 1] = tile.stride[d];
    } else {
      size_[rank_] = tile.size[d];
      stride_[rank_++] = tile.stride[d];
    }
  }
  if (rank_ == first) {
    step_ = static_cast<int64_t>(bytes_of(tile.type));
  } else {
    --rank_;
    run_ = size_[rank_];
    step_ = stride_[rank_];
  }
  find();
}

void Cursor::find() {
  start_ = data_;
  skipped_ = false;
  for (int d = 0; d < rank_; ++d) start_ += stride_[d] * index_[d];
  if (!places_) return;
  const int64_t place = places_[row_];
  skipped_ = place < 0;
  start_ += place;
}

void Cursor::next() {
  at_ = 0;
  for (int d = rank_ - 1; d >= 0; --d) {
    start_ += stride_[d];
    if (++index_[d] < size_[d]) {
      if (places_) {
        row_ = index_[0];
        find();
      }
      return;
    }
    start_ -= stride_[d] * size_[d];
    index_[d] = 0;
  }
}

bool contiguous(const Tile& tile) {
  if (tile.places) return false;
  auto expected = static_cast<int64_t>(bytes_of(tile.type));
  for (int d = tile.rank - 1; d >= 0; --d) {
    if (tile.size[d] != 1 && tile.stride[d] != expected) return false;
    expected *= tile.size[d];
  }
  return true;
}

bool overlaps_differently(const Tile& a, const Tile& b) {
  const auto hull = [](const Tile& t, const std::byte*& low, const std::byte*& high) {
    low = high = t.data;
    for (int d = t.places ? 1 : 0; d < t.rank && !t.indirect; ++d) {
      const int64_t reach = t.stride[d] * (t.size[d] - 1);
      (reach < 0 ? low : high) += reach;
    }
    high += bytes_of(t.type);
    if (!t.places) return;
    int64_t furthest = 0;
    const int64_t count = t.indirect ? t.elements() : t.size[0];
    for (int64_t i = 0; i < count; ++i) furthest = std::max(furthest, t.places[i]);
    high += furthest;
  };
  const std::byte *a_low, *a_high, *b_low, *b_high;
  hull(a, a_low, a_high);
  hull(b, b_low, b_high);
  if (a_high <= b_low || b_high <= a_low) return false;
  if (a.places || b.places || a.data != b.data || a.rank != b.rank || a.type != b.type) return true;
  for (int d = 0; d < a.rank; ++d)
    if (a.size[d] != b.size[d] || (a.size[d] > 1 && a.stride[d] != b.stride[d])) return true;
  return false;
}

}  // namespace neuron::engines::isa
