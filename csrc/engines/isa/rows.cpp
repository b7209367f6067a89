#include "engines/isa/rows.h"

#include <cstring>
#include <memory>

namespace neuron::engines::isa {
namespace {

// Below this many elements a row is brought together with its neighbours: calls cost more than the copy.
constexpr std::int64_t kShortRow = 8;

constexpr bool is_fp32(Type type) { return type == Type::kFloat32; }

[[noreturn]] void no_number(Type type) {
  throw ProgramFault(ProgramFault::Kind::kOther, "elements of type number " + std::to_string(static_cast<int>(type)) +
                                                     " are containers, which no engine computes with");
}

}  // namespace

Scratch& scratch() {
  thread_local const std::unique_ptr<Scratch> memory(new Scratch);
  return *memory;
}

Walk::Walk(const Tile& tile)
    : data_(tile.data),
      type_(tile.type),
      indirect_(tile.indirect),
      rank_(0),
      width_(static_cast<std::int64_t>(bytes_of(tile.type))),
      rows_(tile.size[0]),
      row_stride_(tile.stride[0]),
      free_(1),
      step_(width_),
      places_(tile.places) {
  for (int i = 1; i < tile.rank; ++i) {
    const std::int64_t size = tile.size[i], stride = tile.stride[i];
    free_ *= size;
    if (size == 1) continue;
    if (rank_ > 0 && stride_[rank_ - 1] == stride * size) {
      size_[rank_ - 1] *= size;
      stride_[rank_ - 1] = stride;
    } else {
      size_[rank_] = size;
      stride_[rank_++] = stride;
    }
  }
  if (rank_ > 0) step_ = stride_[rank_ - 1];
}

bool Walk::same_places(const Walk& other) const {
  if (data_ != other.data_ || width_ != other.width_ || rank_ != other.rank_ || places_ != nullptr ||
      other.places_ != nullptr || (rows_ > 1 && row_stride_ != other.row_stride_))
    return false;
  for (int i = 0; i < rank_; ++i)
    if (size_[i] != other.size_[i] || stride_[i] != other.stride_[i]) return false;
  return true;
}

bool Walk::in_place(const Rectangle& block) const {
  return contiguous() && (block.rows == 1 || block.n >= kShortRow || row_stride_ == block.n * width_) &&
         row_stride_ % width_ == 0;
}

// Brings elements together (kIn), or spreads them.
template <class T, bool kIn>
void Walk::move(const Rectangle& block, std::byte* dense) const {
  auto* out = reinterpret_cast<T*>(dense);
  const auto one = [&](std::byte* p) {
    if constexpr (kIn) {
      *out++ = *reinterpret_cast<const T*>(p);
    } else {
      *reinterpret_cast<T*>(p) = *out++;
    }
  };
  for (std::int64_t r = block.row; r < block.row + block.rows; ++r) {
    std::byte* row = data_ + r * row_stride_;
    if (places_ != nullptr) {
      if (indirect_) {
        for (std::int64_t i = block.first; i < block.first + block.n; ++i) {
          const std::int64_t place = places_[r * free_ + i];
          if (place >= 0) {
            one(data_ + place);
          } else {
            ++out;
          }
        }
        continue;
      }
      if (places_[r] < 0) {
        out += block.n;
        continue;
      }
      row = data_ + places_[r];
    }
    if (rank_ <= 1) {
      std::byte* p = row + block.first * step_;
      for (std::int64_t i = 0; i < block.n; ++i) one(p + i * step_);
      continue;
    }
    // Runs of the innermost dimension; `index` counts the outer ones.
    const std::int64_t run = size_[rank_ - 1];
    std::int64_t index[kMaxRank], inner = block.first % run, rest = block.first / run;
    std::byte* p = row;
    for (int d = rank_ - 2; d >= 0; --d) {
      index[d] = rest % size_[d];
      rest /= size_[d];
      p += index[d] * stride_[d];
    }
    for (std::int64_t left = block.n; left > 0;) {
      const std::int64_t count = run - inner < left ? run - inner : left;
      std::byte* q = p + inner * step_;
      for (std::int64_t i = 0; i < count; ++i) one(q + i * step_);
      left -= count;
      inner = 0;
      for (int d = rank_ - 2; d >= 0; --d) {
        p += stride_[d];
        if (++index[d] < size_[d]) break;
        p -= stride_[d] * size_[d];
        index[d] = 0;
      }
    }
  }
}

template <bool kIn>
void Walk::move_any(const Rectangle& block, std::byte* dense) const {
  switch (width_) {
    case 1:
      return move<std::uint8_t, kIn>(block, dense);
    case 2:
      return move<std::uint16_t, kIn>(block, dense);
    case 4:
      return move<std::uint32_t, kIn>(block, dense);
    default:
      return move<std::uint64_t, kIn>(block, dense);
  }
}

Rows<const std::byte> Walk::bytes(const Rectangle& block, std::byte* to) const {
  if (in_place(block)) return {start(block), row_stride_ / width_};
  move_any<true>(block, to);
  return {to, block.n};
}

void Walk::put_bytes(const Rectangle& block, const std::byte* dense) const {
  if (contiguous() && in_place(block)) {
    for (std::int64_t r = 0; r < block.rows; ++r)
      std::memcpy(start(block) + r * row_stride_, dense + r * block.n * width_,
                  static_cast<std::size_t>(block.n * width_));
    return;
  }
  move_any<false>(block, const_cast<std::byte*>(dense));
}

Rows<const float> Walk::floats(const Rectangle& block, float* to) const {
  if (type_ == Type::kFloat32 || type_ == Type::kTFloat32) {
    const Rows<const std::byte> found = bytes(block, reinterpret_cast<std::byte*>(to));
    return {reinterpret_cast<const float*>(found.data), found.stride};
  }
  const auto widen = row_kernels().widen[index_of(type_)];
  if (widen == nullptr) no_number(type_);
  const Rows<const std::byte> found = bytes(block, scratch().raw[0]);
  if (found.stride == block.n) {
    widen(found.data, to, block.rows * block.n);
  } else {
    for (std::int64_t r = 0; r < block.rows; ++r)
      widen(found.data + r * found.stride * width_, to + r * block.n, block.n);
  }
  return {to, block.n};
}

const float* Walk::dense_floats(const Rectangle& block, float* to) const {
  const Rows<const float> found = floats(block, to);
  if (found.stride == block.n || block.rows == 1) return found.data;
  for (std::int64_t r = 0; r < block.rows; ++r)
    std::memcpy(to + r * block.n, found.data + r * found.stride, static_cast<std::size_t>(block.n) * sizeof(float));
  return to;
}

Rows<const std::int32_t> Walk::integers(const Rectangle& block, std::int32_t* to) const {
  if (width_ == 4) {
    const Rows<const std::byte> found = bytes(block, reinterpret_cast<std::byte*>(to));
    return {reinterpret_cast<const std::int32_t*>(found.data), found.stride};
  }
  const auto widen = row_kernels().widen_bits[index_of(type_)];
  const Rows<const std::byte> found = bytes(block, scratch().raw[0]);
  for (std::int64_t r = 0; r < block.rows; ++r)
    widen(found.data + r * found.stride * width_, to + r * block.n, block.n);
  return {to, block.n};
}

Rows<float> Walk::target(const Rectangle& block, float* to) const {
  if (is_fp32(type_) && in_place(block)) return {reinterpret_cast<float*>(start(block)), row_stride_ / width_};
  return {to, block.n};
}

void Walk::put(const Rectangle& block, Rows<const float> values) const {
  const bool direct = in_place(block);
  if (is_fp32(type_)) {
    if (direct && reinterpret_cast<const std::byte*>(values.data) == start(block)) return;
    if (!direct && values.stride == block.n)
      return move_any<false>(block, reinterpret_cast<std::byte*>(const_cast<float*>(values.data)));
  }
  const auto narrow = row_kernels().narrow[index_of(type_)];
  if (narrow == nullptr) no_number(type_);
  std::byte* to = direct ? start(block) : scratch().raw[1];
  const std::int64_t pitch = direct ? row_stride_ : block.n * width_;
  if (values.stride == block.n && pitch == block.n * width_) {
    narrow(values.data, to, block.rows * block.n);
  } else {
    for (std::int64_t r = 0; r < block.rows; ++r) narrow(values.data + r * values.stride, to + r * pitch, block.n);
  }
  if (!direct) move_any<false>(block, to);
}

Rows<std::int32_t> Walk::integer_target(const Rectangle& block, std::int32_t* to) const {
  if (width_ == 4 && in_place(block)) return {reinterpret_cast<std::int32_t*>(start(block)), row_stride_ / width_};
  return {to, block.n};
}

void Walk::put_integers(const Rectangle& block, Rows<const std::int32_t> values) const {
  const bool direct = in_place(block);
  if (direct && reinterpret_cast<const std::byte*>(values.data) == start(block)) return;
  const auto narrow = row_kernels().narrow_bits[index_of(type_)];
  std::byte* to = direct ? start(block) : scratch().raw[1];
  const std::int64_t pitch = direct ? row_stride_ : block.n * width_;
  for (std::int64_t r = 0; r < block.rows; ++r) narrow(values.data + r * values.stride, to + r * pitch, block.n);
  if (!direct) move_any<false>(block, to);
}

bool overlap(const Walk& a, const Walk& b) {
  if (a.places_ != nullptr || b.places_ != nullptr) return true;
  // Bytes of one row, relative to its first element.
  const auto extent = [](const Walk& walk, std::int64_t& low, std::int64_t& high) {
    low = 0;
    high = walk.width_;
    for (int i = 0; i < walk.rank_; ++i) {
      const std::int64_t reach = walk.stride_[i] * (walk.size_[i] - 1);
      (reach < 0 ? low : high) += reach;
    }
  };
  std::int64_t a_low, a_high, b_low, b_high;
  extent(a, a_low, a_high);
  extent(b, b_low, b_high);
  const std::int64_t apart = b.data_ - a.data_;
  const auto rows_meet = [&](std::int64_t shift) { return shift + b_low < a_high && a_low < shift + b_high; };
  const std::int64_t pitch = a.row_stride_;
  if (a.rows_ == 1 && b.rows_ == 1) return rows_meet(apart);
  if (pitch != b.row_stride_ || pitch <= 0) {
    const auto all = [](const Walk& walk, std::int64_t& low, std::int64_t& high) {
      const std::int64_t reach = walk.row_stride_ * (walk.rows_ - 1);
      (reach < 0 ? low : high) += reach;
    };
    all(a, a_low, a_high);
    all(b, b_low, b_high);
    return rows_meet(apart);
  }
  // Row p of a and row p + k of b lie apart + k * pitch from each other: only k around -apart / pitch can meet.
  const std::int64_t width = a_high - a_low + b_high - b_low;
  const std::int64_t spread = width / pitch + 2, middle = -apart / pitch;
  for (std::int64_t k = middle - spread; k <= middle + spread; ++k)
    if (k > -a.rows_ && k < b.rows_ && rows_meet(apart + k * pitch)) return true;
  return false;
}

Input::Input(const Tile& in, const Walk& out) : walk_(in) {
  if (walk_.same_places(out) || !overlap(walk_, out)) return;
  const std::int64_t width = static_cast<std::int64_t>(bytes_of(in.type)), n = walk_.free();
  copy_.resize(static_cast<std::size_t>(in.partitions() * n * width + 1));
  std::byte* to = copy_.data();
  for_blocks(0, in.partitions(), n, [&](const Rectangle& block) {
    const Rows<const std::byte> found = walk_.bytes(block, to);
    if (found.data != to)
      for (std::int64_t r = 0; r < block.rows; ++r)
        std::memcpy(to + r * block.n * width, found.data + r * found.stride * width,
                    static_cast<std::size_t>(block.n * width));
    to += block.rows * block.n * width;
  });
  Tile copied;
  copied.data = copy_.data();
  copied.type = in.type;
  copied.rank = 2;
  copied.size[0] = in.partitions();
  copied.size[1] = n;
  copied.stride[0] = n * width;
  copied.stride[1] = width;
  walk_ = Walk(copied);
}

void require_equal_sizes(const Walk& out, const Walk& in) {
  if (out.rows() == in.rows() && out.free() == in.free()) return;
  throw ProgramFault(ProgramFault::Kind::kMismatch, "operands have " + std::to_string(in.rows()) + " partitions of " +
                                                        std::to_string(in.free()) + " elements, the destination " +
                                                        std::to_string(out.rows()) + " of " +
                                                        std::to_string(out.free()));
}

void truth(const Walk& walk, const Rectangle& block, std::uint8_t* mask, std::byte* raw) {
  const Rows<const std::byte> found = walk.bytes(block, raw);
  const std::int64_t width = static_cast<std::int64_t>(bytes_of(walk.type()));
  const auto kernel = row_kernels().truth[width == 1 ? 0 : width == 2 ? 1 : 2];
  for (std::int64_t r = 0; r < block.rows; ++r)
    kernel(found.data + r * found.stride * width, mask + r * block.n, block.n);
}

void put_column(Core& core, const Operand& operand, const float* values, std::int64_t rows, bool negate) {
  if (!core.has(operand)) return;
  const Walk out(core.tile(operand));
  float* column = scratch().values[0];
  for (std::int64_t r = 0; r < rows; ++r) column[r] = negate ? -values[r] : values[r];
  for_blocks(0, rows, 1, [&](const Rectangle& block) { out.put(block, {column + block.row, 1}); });
}

}  // namespace neuron::engines::isa
