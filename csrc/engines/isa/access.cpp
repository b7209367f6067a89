#include "engines/isa/access.h"

#include <numeric>

namespace neuron::engines::isa {

using std::int64_t;

namespace {

int64_t modulo(int64_t a, int64_t m) { return (a % m + m) % m; }

// Of the dimensions of a merged geometry from `first` on: the bytes they span and how they repeat.
void columns_of(const Geometry& m, int first, Access& a) {
  a.run = m.size[m.rank - 1];
  a.columns = a.run;
  a.spacing = 0;
  for (int d = first; d < m.rank - 1; ++d) {
    a.columns += m.stride[d] * (m.size[d] - 1);
    a.spacing = std::gcd(a.spacing, m.stride[d]);
  }
}

}  // namespace

Access access_of(const Geometry& g, int64_t pitch) {
  Access a;
  if (pitch > 0) {
    // The partition is dimension 0; the rest is merged by itself.
    a.pitch = pitch;
    Geometry inner = g;
    a.row = g.offset / pitch;
    a.rows = 1;
    if (g.rank > 0 && g.size[0] > 1 && g.stride[0] != 0) a.rows += g.stride[0] / pitch * (g.size[0] - 1);
    if (inner.rank > 0) inner.size[0] = 1;
    inner.offset = g.offset % pitch;
    const Geometry m = merged(inner);
    columns_of(m, 0, a);
    a.column = a.low = a.phase = m.offset;
    a.high = a.low + a.columns;
    a.solid = a.columns == a.run;
    return a;
  }
  const Geometry m = merged(g);
  a.low = a.phase = m.offset;
  columns_of(m, 0, a);
  a.high = a.low + a.columns;
  a.solid = m.rank == 1;
  if (m.rank < 2) return a;
  int longest = 0;
  for (int d = 1; d < m.rank - 1; ++d)
    if (m.stride[d] > m.stride[longest]) longest = d;
  const int64_t across = a.columns - m.stride[longest] * (m.size[longest] - 1);
  const int64_t column = m.offset % m.stride[longest];
  if (column + across > m.stride[longest]) return a;  // rows that reach into each other
  a.pitch = m.stride[longest];
  a.row = m.offset / a.pitch;
  a.rows = m.size[longest];
  a.column = column;
  a.columns = across;
  a.solid = m.rank == 2;
  return a;
}

Access Access::in_rows_of(int64_t other) const {
  Access a = *this;
  a.pitch = other;
  a.row = low / other;
  a.rows = (high - 1) / other - a.row + 1;
  a.column = a.rows == 1 ? low % other : 0;
  a.columns = a.rows == 1 ? high - low : other;
  return a;
}

bool Access::meets(const Access& b) const {
  if (high <= b.low || b.high <= low) return false;
  if (pitch > b.pitch) return meets(b.in_rows_of(pitch));
  if (pitch < b.pitch) return in_rows_of(b.pitch).meets(b);
  if (pitch != 0) {
    if (row + rows <= b.row || b.row + b.rows <= row) return false;
    if (column + columns <= b.column || b.column + b.columns <= column) return false;
  }
  const int64_t g = std::gcd(spacing, b.spacing);
  if (g == 0 || run > g || b.run > g) return true;
  const int64_t apart = modulo(b.phase - phase, g);
  return apart < run || apart + b.run > g;
}

bool Access::covers(const Access& b) const {
  if (!solid || b.low < low || b.high > high) return false;
  if (pitch == 0) return true;
  if (pitch > b.pitch) return covers(b.in_rows_of(pitch));
  return pitch == b.pitch && row <= b.row && b.row + b.rows <= row + rows && column <= b.column &&
         b.column + b.columns <= column + columns;
}

}  // namespace neuron::engines::isa
