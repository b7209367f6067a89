#include <algorithm>

#include "engines/isa/coverage.h"

namespace neuron::engines::isa {

using std::int64_t;
using std::uint64_t;

namespace {

constexpr int64_t kBits = 64;

int64_t words_for(int64_t bits) { return (bits + kBits - 1) / kBits; }

}  // namespace

// Each index of dimension 0 is a row, and the other dimensions stay inside of it.
bool ByteSet::within_rows(const Geometry& g) const {
  if (g.rank < 2 || (g.size[0] > 1 && g.stride[0] % pitch_ != 0)) return false;
  Geometry row = g;
  row.offset %= pitch_;
  row.size[0] = 1;
  return row.lowest() >= 0 && row.highest() <= pitch_;
}

bool ByteSet::all_rows(const Geometry& g) const {
  return rows_ > 1 && within_rows(g) && g.size[0] == rows_ && g.stride[0] == pitch_;
}

// body(word, mask) for the words of bits of the geometry, or of its columns alone, until it returns false; true when it
// never did.
template <class Body>
bool ByteSet::words(const Geometry& g, bool one_row, const Body& body) const {
  Geometry part = g;
  if (one_row) {
    part.size[0] = 1;
    part.offset %= pitch_;
  }
  bool going = true;
  for_each_run(merged(part), [&](int64_t begin, int64_t length) {
    int64_t first = begin / unit_;
    const int64_t last = (begin + length + unit_ - 1) / unit_;
    while (going && first < last) {
      const int64_t word = first / kBits, bit = first % kBits, count = std::min(kBits - bit, last - first);
      const uint64_t mask = (count == kBits ? ~uint64_t{0} : (uint64_t{1} << count) - 1) << bit;
      going = body(static_cast<std::size_t>(word), mask);
      first += count;
    }
  });
  return going;
}

void ByteSet::expand() {
  if (!by_columns_ || rows_ == 1) return;
  const std::vector<uint64_t> row = std::move(bits_);
  by_columns_ = false;
  bits_.assign(static_cast<std::size_t>(words_for(rows_ * pitch_ / unit_ + 1)), 0);
  if (row.empty()) return;
  const int64_t columns = pitch_ / unit_;
  for (int64_t c = 0; c < columns; ++c) {
    if (!(row[static_cast<std::size_t>(c / kBits)] >> (c % kBits) & 1)) continue;
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t bit = r * columns + c;
      bits_[static_cast<std::size_t>(bit / kBits)] |= uint64_t{1} << (bit % kBits);
    }
  }
}

void ByteSet::add(const Geometry& g) {
  if (full_ || g.empty()) return;
  const Geometry m = merged(g);
  if (m.rank == 1 && m.size[0] == rows_ * pitch_) {
    full_ = true;
    bits_ = {};
    return;
  }
  if (!all_rows(g)) expand();
  const bool one_row = by_columns_ && rows_ > 1;
  if (bits_.empty()) bits_.assign(static_cast<std::size_t>(words_for((one_row ? 1 : rows_) * pitch_ / unit_ + 1)), 0);
  words(g, one_row, [&](std::size_t word, uint64_t mask) {
    bits_[word] |= mask;
    return true;
  });
}

bool ByteSet::contains(const Geometry& g) {
  if (full_ || g.empty()) return true;
  if (bits_.empty()) return false;
  if (!within_rows(g)) expand();
  return words(g, by_columns_ && rows_ > 1,
               [&](std::size_t word, uint64_t mask) { return (bits_[word] & mask) == mask; });
}

bool ByteSet::meets(const Geometry& g) {
  if (g.empty()) return false;
  if (full_) return true;
  if (bits_.empty()) return false;
  if (!within_rows(g)) expand();
  return !words(g, by_columns_ && rows_ > 1,
                [&](std::size_t word, uint64_t mask) { return (bits_[word] & mask) == 0; });
}

}  // namespace neuron::engines::isa
