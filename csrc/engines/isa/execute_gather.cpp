// Gathers of the GpSimd engine.
#include <cstring>
#include <vector>

#include "engines/isa/execute.h"
#include "engines/isa/rows.h"

namespace neuron::engines::isa {
namespace {

// The bytes of one row without gaps.
const std::byte* row_bytes(const Walk& walk, std::int64_t row, std::vector<std::byte>& room) {
  const std::size_t width = bytes_of(walk.type());
  room.resize(static_cast<std::size_t>(walk.free()) * width);
  for_blocks(row, row + 1, walk.free(), [&](const Rectangle& block) {
    std::byte* to = room.data() + static_cast<std::size_t>(block.first) * width;
    const auto found = walk.bytes(block, to);
    if (found.data != to) std::memcpy(to, found.data, static_cast<std::size_t>(block.n) * width);
  });
  return room.data();
}

void put_row(const Walk& walk, std::int64_t row, const std::vector<std::byte>& bytes) {
  const std::size_t width = bytes_of(walk.type());
  for_blocks(row, row + 1, walk.free(), [&](const Rectangle& block) {
    walk.put_bytes(block, bytes.data() + static_cast<std::size_t>(block.first) * width);
  });
}

std::vector<std::uint32_t> row_indices(const Walk& walk, std::int64_t row) {
  std::vector<std::uint32_t> result(static_cast<std::size_t>(walk.free()));
  for_blocks(row, row + 1, walk.free(), [&](const Rectangle& block) {
    const auto in = walk.integers(block, scratch().integers[0]);
    std::memcpy(result.data() + block.first, in.data, static_cast<std::size_t>(block.n) * sizeof(std::uint32_t));
  });
  return result;
}

[[noreturn]] void out_of_bounds(std::int64_t partition, std::int64_t index, std::int64_t limit) {
  throw ProgramFault(ProgramFault::Kind::kBadIndex, "index " + std::to_string(index) + " in partition " +
                                                        std::to_string(partition) + " is outside the " +
                                                        std::to_string(limit) + " elements that there are");
}

void require_same_type(const Walk& dst, const Walk& src) {
  if (bytes_of(dst.type()) != bytes_of(src.type()))
    throw ProgramFault(ProgramFault::Kind::kMismatch, "a gather does not convert: both types must be the same");
}

}  // namespace

void execute_n_gather(Core& core, const Instruction& instruction) {
  const Walk dst(core.tile(output(instruction, 0)));
  const Input data(core.tile(input(instruction, 0)), dst), indices(core.tile(input(instruction, 1)), dst);
  require_equal_sizes(dst, indices.walk());
  require_same_type(dst, data.walk());
  const std::int64_t limit = data->free();
  const std::size_t width = bytes_of(dst.type());
  if (data->rows() != dst.rows())
    throw ProgramFault(ProgramFault::Kind::kMismatch, "a gather works within partitions: all operands have as many");
  split(dst.rows(), dst.rows() * (dst.free() + limit), [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::byte> room, result(static_cast<std::size_t>(dst.free()) * width);
    for (std::int64_t r = begin; r < end; ++r) {
      const std::vector<std::uint32_t> places = row_indices(indices.walk(), r);
      const std::byte* row = row_bytes(data.walk(), r, room);
      for (std::size_t i = 0; i < places.size(); ++i) {
        if (places[i] >= static_cast<std::uint64_t>(limit)) out_of_bounds(r, places[i], limit);
        std::memcpy(result.data() + i * width, row + places[i] * width, width);
      }
      put_row(dst, r, result);
    }
  });
}

// Each core of the GpSimd engine has 16 partitions. Their indices, column by column, are places in each of the 16 rows,
// from where `elements` follow each other.
void execute_local_gather(Core& core, const Instruction& instruction) {
  constexpr std::int64_t kGroup = 16;
  const std::int64_t elements = integer_attribute(instruction, 0, 1);
  const Walk dst(core.tile(output(instruction, 0)));
  const Input src(core.tile(input(instruction, 0)), dst), index(core.tile(input(instruction, 1)), dst);
  require_same_type(dst, src.walk());
  const std::int64_t count = integer_attribute(instruction, 1, index->free() * kGroup);
  if (dst.rows() != src->rows() || index->rows() != src->rows() || src->rows() % kGroup != 0 ||
      count > index->free() * kGroup || dst.free() != count * elements)
    throw ProgramFault(ProgramFault::Kind::kMismatch, "local_gather of " + std::to_string(count) + " times " +
                                                          std::to_string(elements) + " elements into " +
                                                          std::to_string(dst.free()));
  const std::int64_t limit = src->free();
  const std::size_t width = bytes_of(dst.type()), piece = static_cast<std::size_t>(elements) * width;
  std::vector<std::uint32_t> places(static_cast<std::size_t>(index->free() * kGroup));
  std::vector<std::byte> room, result(static_cast<std::size_t>(dst.free()) * width);
  for (std::int64_t group = 0; group < src->rows(); group += kGroup) {
    for (std::int64_t p = 0; p < kGroup; ++p) {
      const std::vector<std::uint32_t> row = row_indices(index.walk(), group + p);
      for (std::size_t i = 0; i < row.size(); ++i) places[i * kGroup + static_cast<std::size_t>(p)] = row[i];
    }
    for (std::int64_t p = group; p < group + kGroup; ++p) {
      const std::byte* row = row_bytes(src.walk(), p, room);
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t place = places[static_cast<std::size_t>(i)];
        if (place + elements > limit) out_of_bounds(p, place, limit);
        std::memcpy(result.data() + static_cast<std::size_t>(i) * piece, row + static_cast<std::size_t>(place) * width,
                    piece);
      }
      put_row(dst, p, result);
    }
  }
}

}  // namespace neuron::engines::isa
