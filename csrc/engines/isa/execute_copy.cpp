// Copies: whole tiles, constants, by predicate, between partitions.
#include <array>
#include <cstring>

#include "engines/isa/execute.h"
#include "engines/isa/rows.h"

namespace neuron::engines::isa {
namespace {

// Bits of `value` as an element: numbers rounded as any result, integers exactly.
std::uint64_t element_bits(Type type, double value) {
  std::uint64_t bits = 0;
  const auto keep = [&](auto element) { std::memcpy(&bits, &element, sizeof(element)); };
  switch (type) {
    case Type::kInt32:
      keep(static_cast<std::int32_t>(static_cast<std::int64_t>(value)));
      break;
    case Type::kUInt32:
      keep(static_cast<std::uint32_t>(static_cast<std::int64_t>(value)));
      break;
    case Type::kInt64:
      keep(static_cast<std::int64_t>(value));
      break;
    case Type::kUInt64:
      keep(static_cast<std::uint64_t>(value));
      break;
    case Type::kFloat8E4M3FNx4:
    case Type::kFloat8E5M2x4:
    case Type::kFloat4E2M1FNx4:
      break;  // only 0 is a value of these
    default: {
      const float element = static_cast<float>(value);
      row_kernels().narrow[index_of(type)](&element, &bits, 1);
    }
  }
  return bits;
}

template <class T>
void repeat(T element, std::byte* to, std::int64_t n) {
  auto* elements = reinterpret_cast<T*>(to);
  for (std::int64_t i = 0; i < n; ++i) elements[i] = element;
}
void repeat_bits(std::uint64_t bits, std::size_t width, std::byte* to, std::int64_t n) {
  switch (width) {
    case 1:
      return repeat(static_cast<std::uint8_t>(bits), to, n);
    case 2:
      return repeat(static_cast<std::uint16_t>(bits), to, n);
    case 4:
      return repeat(static_cast<std::uint32_t>(bits), to, n);
    default:
      return repeat(bits, to, n);
  }
}

// A block's bytes without gaps between the rows.
const std::byte* dense_bytes(const Walk& walk, const Rectangle& block, std::byte* to) {
  const Rows<const std::byte> found = walk.bytes(block, to);
  if (found.stride == block.n || block.rows == 1) return found.data;
  const std::size_t width = bytes_of(walk.type()), row = static_cast<std::size_t>(block.n) * width;
  for (std::int64_t r = 0; r < block.rows; ++r)
    std::memcpy(to + static_cast<std::size_t>(r) * row, found.data + static_cast<std::size_t>(r * found.stride) * width,
                row);
  return to;
}

}  // namespace

void execute_copy(Core& core, const Instruction& instruction) {
  const Walk dst(core.tile(output(instruction, 0)));
  const Input src(core.tile(input(instruction, 0)), dst);
  require_equal_sizes(dst, src.walk());
  if (dst.type() == src->type()) {
    for_all_blocks(dst.rows(), dst.free(), [&](const Rectangle& block, Scratch& s) {
      dst.put_bytes(block, dense_bytes(src.walk(), block, s.raw[0]));
    });
    return;
  }
  for_all_blocks(dst.rows(), dst.free(), [&](const Rectangle& block, Scratch& s) {
    const Rows<const float> in = src->floats(block, s.values[0]);
    dst.put(block, in);
  });
}

void execute_fill(Core& core, const Instruction& instruction) {
  const Walk dst(core.tile(output(instruction, 0)));
  const std::size_t width = bytes_of(dst.type());
  const std::uint64_t bits = element_bits(dst.type(), number_attribute(instruction, 0));
  const std::int64_t whole = dst.rows() * dst.free();
  split(dst.rows(), whole, [&](std::int64_t begin, std::int64_t end) {
    Scratch& s = scratch();
    repeat_bits(bits, width, s.raw[0], whole < kBlock ? whole : kBlock);
    for_blocks(begin, end, dst.free(), [&](const Rectangle& block) { dst.put_bytes(block, s.raw[0]); });
  });
}

void execute_copy_predicated(Core& core, const Instruction& instruction) {
  const Walk dst(core.tile(output(instruction, 0)));
  const Operand& source = input(instruction, 0);
  const Input predicate(core.tile(input(instruction, 1)), dst);
  require_equal_sizes(dst, predicate.walk());
  const bool reverse = flag_attribute(instruction, 0);
  const std::size_t width = bytes_of(dst.type());
  const int power = width == 1 ? 0 : width == 2 ? 1 : 2;
  const bool is_tile = source.kind == Operand::Kind::kView;
  const Input src(core.tile(is_tile ? source : input(instruction, 1)), dst);
  if (is_tile) require_equal_sizes(dst, src.walk());
  const std::uint64_t bits = is_tile ? 0
                                     : element_bits(dst.type(), source.kind == Operand::Kind::kNumber
                                                                    ? source.number
                                                                    : static_cast<double>(core.integer(source)));
  for_all_blocks(dst.rows(), dst.free(), [&](const Rectangle& block, Scratch& s) {
    const std::int64_t n = block.rows * block.n;
    truth(predicate.walk(), block, s.mask, s.raw[0]);
    auto* old = reinterpret_cast<std::byte*>(s.values[0]);
    auto* fresh = reinterpret_cast<std::byte*>(s.values[1]);
    const std::byte* before = dense_bytes(dst, block, old);
    const std::byte* after = fresh;
    if (!is_tile) {
      repeat_bits(bits, width, fresh, n);
    } else if (src->type() == dst.type()) {
      after = dense_bytes(src.walk(), block, fresh);
    } else {
      const Rows<const float> in = src->floats(block, s.values[2]);
      for (std::int64_t r = 0; r < block.rows; ++r)
        row_kernels().narrow[index_of(dst.type())](in.data + r * in.stride,
                                                   fresh + static_cast<std::size_t>(r * block.n) * width, block.n);
    }
    row_kernels().select[power](s.mask, reverse ? before : after, reverse ? after : before, s.raw[1], n);
    dst.put_bytes(block, s.raw[1]);
  });
}

// Partition i of each quadrant of 32 gets partition mask[i] of the same quadrant; 255 leaves it as it is.
void execute_shuffle(Core& core, const Instruction& instruction) {
  constexpr std::int64_t kQuadrant = 32, kKeep = 255;
  const Walk dst(core.tile(output(instruction, 0)));
  const Tile& source = core.tile(input(instruction, 0));
  const auto* mask = std::get_if<std::vector<std::int64_t>>(&instruction.attributes[0]);
  if (mask == nullptr || mask->size() != kQuadrant)
    throw ProgramFault(ProgramFault::Kind::kOther, "the mask of a shuffle has 32 whole numbers");
  const Walk src(source);
  const std::int64_t n = dst.free();
  const std::size_t width = bytes_of(dst.type()), row = static_cast<std::size_t>(n) * width;
  if (src.free() != n || bytes_of(src.type()) != width)
    throw ProgramFault(ProgramFault::Kind::kMismatch, "operands of a shuffle have different rows");
  // In place is allowed: everything is read first.
  std::vector<std::byte> read(static_cast<std::size_t>(src.rows()) * row);
  std::byte* to = read.data();
  for_blocks(0, src.rows(), n, [&](const Rectangle& block) {
    const std::size_t bytes = static_cast<std::size_t>(block.rows * block.n) * width;
    const std::byte* found = dense_bytes(src, block, to);
    if (found != to) std::memcpy(to, found, bytes);
    to += bytes;
  });
  for (std::int64_t r = 0; r < dst.rows(); ++r) {
    const std::int64_t from = (*mask)[static_cast<std::size_t>(r % kQuadrant)];
    if (from == kKeep) continue;
    const std::int64_t partition = r / kQuadrant * kQuadrant + from;
    if (from < 0 || from >= kQuadrant || partition >= src.rows())
      throw ProgramFault(ProgramFault::Kind::kBadIndex,
                         "partition " + std::to_string(r) + " of the destination is shuffled from partition " +
                             std::to_string(partition) + ", of which the source has " + std::to_string(src.rows()));
    for_blocks(r, r + 1, n, [&](const Rectangle& block) {
      dst.put_bytes(block, read.data() + static_cast<std::size_t>(partition) * row +
                               static_cast<std::size_t>(block.first) * width);
    });
  }
}

}  // namespace neuron::engines::isa
