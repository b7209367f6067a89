// How the tensors of a launch lie in memory, seen from the iteration of a piece.
#include <algorithm>
#include <numeric>

#include "eager/fusion/builder.h"

namespace neuron::eager::fusion {

using engines::Dtype;

namespace {

// Dimensions that follow each other without a gap become one.
void merge_dimensions(engines::Geometry::Strides& s) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < s.sizes.size(); ++i) {
    if (s.sizes[i] == 1) continue;
    if (kept && s.strides[kept - 1] == s.strides[i] * s.sizes[i]) {
      s.sizes[kept - 1] *= s.sizes[i];
      s.strides[kept - 1] = s.strides[i];
    } else {
      s.sizes[kept] = s.sizes[i];
      s.strides[kept++] = s.strides[i];
    }
  }
  s.sizes.resize(kept);
  s.strides.resize(kept);
}

void mix(std::uint64_t& hash, std::uint64_t word) {
  hash = (hash ^ word) * 0x9E3779B97F4A7C15ull;
  hash ^= hash >> 29;
}

std::uint64_t layout_of(Dtype dtype, const engines::Geometry::Strides& own) {
  std::uint64_t layout = static_cast<std::uint64_t>(dtype) + 1;
  for (std::size_t i = 0; i < own.sizes.size(); ++i) {
    mix(layout, static_cast<std::uint64_t>(own.sizes[i]));
    mix(layout, static_cast<std::uint64_t>(own.strides[i]));
  }
  return layout;
}

std::uint64_t dense_layout(Dtype dtype, std::int64_t elements) {
  return elements == 1 ? layout_of(dtype, {}) : layout_of(dtype, {{elements}, {1}});
}

std::int64_t product(c10::IntArrayRef sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

}  // namespace

void Builder::begin(int tensor) { begin(meta(tensor).sizes, meta(tensor).strides, false); }

void Builder::begin_out(int out) {
  const auto& o = plan_.outs[static_cast<std::size_t>(out)];
  begin(o.sizes, o.strides, false);
}

void Builder::begin_rows(int tensor, std::int64_t dim) {
  begin(meta(tensor).sizes, meta(tensor).strides, true);
  piece_->rows = product(c10::IntArrayRef(sizes_).slice(0, static_cast<std::size_t>(dim)));
}

void Builder::begin_out_rows(std::int64_t dim) {
  begin(plan_.outs[0].sizes, plan_.outs[0].strides, true);
  piece_->rows = product(c10::IntArrayRef(sizes_).slice(0, static_cast<std::size_t>(dim)));
}

void Builder::begin(c10::IntArrayRef sizes, c10::IntArrayRef strides, bool keep_order) {
  recipe_->pieces.emplace_back();
  piece_ = &recipe_->pieces.back();
  sizes_.assign(sizes.begin(), sizes.end());
  elements_ = product(sizes);
  if (elements_ == 0) throw Unfusable{};
  order_.resize(sizes.size());
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  // In the order of memory, so that dense tensors are one run of elements whatever the order of their dimensions.
  if (!keep_order)
    std::stable_sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) {
      if (sizes[a] == 1 || sizes[b] == 1) return false;
      return strides[a] > strides[b];
    });
}

Ref Builder::operand(int tensor, bool read, bool written, c10::IntArrayRef iteration) {
  for (std::size_t i = 0; i < piece_->operands.size(); ++i)
    if (piece_->operands[i].tensor == tensor) {
      piece_->operands[i].read |= read;
      piece_->operands[i].written |= written;
      if (written && !piece_->operands[i].writable) throw Unfusable{};
      return {Ref::Kind::kOperand, static_cast<std::uint16_t>(i)};
    }
  Operand o;
  o.tensor = static_cast<std::uint16_t>(tensor);
  o.read = read;
  o.written = written;
  const std::size_t arguments = plan_.tensors.size();
  c10::IntArrayRef sizes, strides;
  if (static_cast<std::size_t>(tensor) < arguments) {
    const auto& m = meta(tensor);
    if (m.conj || m.neg) throw Unfusable{};
    o.dtype = required_dtype(m.dtype.toScalarType());
    sizes = m.sizes;
    strides = m.strides;
  } else {
    std::size_t fresh = static_cast<std::size_t>(tensor) - arguments;
    for (const auto& out : plan_.outs) {
      if (out.kind != OutKind::kFresh || fresh-- != 0) continue;
      o.dtype = required_dtype(out.dtype.toScalarType());
      o.storage_bytes = static_cast<std::int64_t>(out.bytes);
      sizes = out.sizes;
      strides = out.strides;
      break;
    }
  }
  if (sizes.size() > iteration.size()) throw Unfusable{};
  const auto item = static_cast<std::int64_t>(size_of(o.dtype));
  const std::size_t missing = iteration.size() - sizes.size();
  engines::Geometry::Strides own;
  bool repeats = false;
  for (const std::size_t d : order_) {
    std::int64_t size = 1, stride = 0;
    if (d >= missing) {
      size = sizes[d - missing];
      stride = strides[d - missing];
    }
    if (size != 1 && size != iteration[d]) throw Unfusable{};
    if (size == 1) stride = 0;
    if (stride == 0 && iteration[d] != 1) repeats = true;
    if (size != 1 && stride == 0) o.writable = false;  // several of its own elements are one in memory
    o.strides.sizes.push_back(iteration[d]);
    o.strides.strides.push_back(stride);
    if (stride != 0 && size != 1) {
      own.sizes.push_back(size);
      own.strides.push_back(stride);
      (stride > 0 ? o.hi : o.lo) += (size - 1) * stride * item;
    }
  }
  o.hi += item;
  merge_dimensions(own);
  merge_dimensions(o.strides);
  o.elements = product(own.sizes);
  o.dense = own.sizes.empty() || (own.sizes.size() == 1 && own.strides[0] == 1);
  if (o.hi - o.lo < o.elements * item) o.writable = false;
  o.layout = layout_of(o.dtype, own);
  if (!repeats) {
    o.map = Map::kFull;
  } else if (o.elements == 1) {
    o.map = Map::kUniform;
  } else if (o.dense && o.strides.sizes.size() == 2 && o.strides.strides[0] == 1 && o.strides.strides[1] == 0) {
    o.map = Map::kRow;
    o.rows = o.strides.sizes[0];
  } else if (o.dense && o.strides.sizes.size() == 2 && o.strides.strides[0] == 0 && o.strides.strides[1] == 1) {
    o.map = Map::kColumns;
    o.rows = o.strides.sizes[0];
  } else {
    o.map = Map::kBroadcast;
  }
  if (o.map != Map::kFull) o.writable = false;
  if (written && !o.writable) throw Unfusable{};
  recipe_->elements = std::max(recipe_->elements, o.elements);
  piece_->operands.push_back(std::move(o));
  return {Ref::Kind::kOperand, static_cast<std::uint16_t>(piece_->operands.size() - 1)};
}

void Builder::store_out_rows(Typed value, int out) {
  const auto& planned = plan_.outs[static_cast<std::size_t>(out)];
  if (product(planned.sizes) != piece_->rows || !planned.contiguous) throw Unfusable{};
  value = convert(round(value), out_type(out));
  Operand o;
  o.tensor = static_cast<std::uint16_t>(out_index(out));
  o.written = true;
  o.dtype = required_dtype(out_type(out));
  o.map = piece_->rows == elements_ ? Map::kFull : Map::kRow;
  o.dense = true;
  o.elements = o.rows = piece_->rows;
  o.hi = o.elements * static_cast<std::int64_t>(size_of(o.dtype));
  o.storage_bytes = static_cast<std::int64_t>(planned.bytes);
  o.layout = dense_layout(o.dtype, o.elements);
  piece_->operands.push_back(std::move(o));
  piece_->results.push_back({static_cast<std::uint16_t>(piece_->operands.size() - 1), value.ref});
}

}  // namespace neuron::eager::fusion
