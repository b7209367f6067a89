#pragma once
// Where the elements of views lie: in bytes, merged into runs, and how two of them meet.
#include <algorithm>
#include <cstdint>

#include "engines/isa/core.h"
#include "engines/isa/program.h"

namespace neuron::engines::isa {

constexpr bool on_chip(const Storage& storage) {
  return storage.region == Storage::Region::kSbuf || storage.region == Storage::Region::kPsum;
}
constexpr bool in_hbm(const Storage& storage) { return !on_chip(storage); }
inline std::int64_t row_bytes(const Storage& storage) {
  return storage.free * static_cast<std::int64_t>(bytes_of(storage.type));
}

// A view in bytes from the first byte of its storage, whose partitions lie `pitch` bytes apart.
struct Geometry {
  int rank = 0;
  std::int64_t offset = 0, bytes = 0;  // of the first element; of one element
  std::int64_t size[kMaxRank + 1] = {}, stride[kMaxRank + 1] = {};

  bool empty() const {
    return std::any_of(size, size + rank, [](std::int64_t n) { return n == 0; });
  }
  std::int64_t lowest() const;   // first byte
  std::int64_t highest() const;  // one past the last
};

Geometry geometry(const View& view, const Storage& storage, std::int64_t pitch);

// The same bytes with neighbouring dimensions merged where one continues the other, dimensions of one element dropped
// and the elements of contiguous runs as bytes of `size[rank - 1]` with stride 1. Repetitions (stride 0) appear once.
Geometry merged(const Geometry& geometry);

// body(first byte, bytes) for each run of a merged geometry.
template <class Body>
void for_each_run(const Geometry& merged, const Body& body) {
  const int outer = merged.rank - 1;
  const std::int64_t length = merged.size[outer];
  std::int64_t index[kMaxRank + 1] = {};
  std::int64_t at = merged.offset;
  while (true) {
    body(at, length);
    int d = outer - 1;
    for (; d >= 0; --d) {
      at += merged.stride[d];
      if (++index[d] < merged.size[d]) break;
      at -= merged.stride[d] * merged.size[d];
      index[d] = 0;
    }
    if (d < 0) return;
  }
}

// Walks a tile in row-major order, in runs of equally spaced elements.
class Cursor {
 public:
  explicit Cursor(const Tile& tile);
  std::int64_t left() const { return run_ - at_; }  // elements until the run ends
  std::int64_t step() const { return step_; }       // bytes between elements of a run
  // The next element; null when it is left out.
  std::byte* pointer() const { return skipped_ ? nullptr : start_ + at_ * step_; }
  void advance(std::int64_t elements) {
    at_ += elements;
    if (at_ == run_) next();
  }

 private:
  void next();
  void find();

  std::byte* data_;
  const std::int64_t* places_ = nullptr;
  bool indirect_ = false;
  int rank_ = 0;
  std::int64_t size_[kMaxRank + 1] = {}, stride_[kMaxRank + 1] = {}, index_[kMaxRank + 1] = {};
  std::int64_t run_ = 1, step_ = 0, at_ = 0, row_ = 0;
  std::byte* start_ = nullptr;
  bool skipped_ = false;
};

// Elements follow each other without a gap, and none is left out.
bool contiguous(const Tile& tile);
// The bytes of two tiles may meet, but not as the same elements in the same places.
bool overlaps_differently(const Tile& a, const Tile& b);

}  // namespace neuron::engines::isa
