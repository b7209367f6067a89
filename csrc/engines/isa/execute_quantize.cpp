// Quantisation to MX formats: groups of 8 partitions times 4 elements share a power of two.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "engines/isa/execute.h"
#include "engines/isa/rows.h"

namespace neuron::engines::isa {

void execute_quantize_mx(Core& core, const Instruction& instruction) {
  constexpr std::int64_t kGroupRows = 8, kPacked = 4, kQuadrant = 32;
  const Walk dst(core.tile(output(instruction, 0))), scale(core.tile(output(instruction, 1)));
  const Input src(core.tile(input(instruction, 0)), dst);
  const bool e5m2 = dst.type() == Type::kFloat8E5M2x4;
  if ((!e5m2 && dst.type() != Type::kFloat8E4M3FNx4) || src->rows() % kGroupRows != 0 || dst.rows() != src->rows() ||
      src->free() != dst.free() * kPacked || scale.free() < dst.free())
    throw ProgramFault(ProgramFault::Kind::kMismatch,
                       "quantize_mx packs 4 elements of float16 or bfloat16 into one of an MX type");
  // Scales of the four groups of a quadrant of 32 partitions are in its first four partitions.
  const std::int64_t last = src->rows() / kGroupRows - 1;
  if (scale.rows() <= last / 4 * kQuadrant + last % 4)
    throw ProgramFault(ProgramFault::Kind::kMismatch,
                       "scales of " + std::to_string(src->rows()) + " partitions do not fit into " +
                           std::to_string(scale.rows()) + ": those of each quadrant start at a multiple of 32");
  const auto narrow = row_kernels().narrow[index_of(e5m2 ? Type::kFloat8E5M2 : Type::kFloat8E4M3FN)];
  const int reach = (e5m2 ? 15 : 8) - 1;  // exponent of the largest number, less one for the rounding
  split(src->rows() / kGroupRows, src->rows() * src->free(), [&](std::int64_t begin, std::int64_t end) {
    Scratch& s = scratch();
    constexpr std::int64_t kColumns = kBlock / kGroupRows / kPacked;
    for (std::int64_t group = begin; group < end; ++group)
      for (std::int64_t first = 0; first < dst.free(); first += kColumns) {
        const std::int64_t columns = std::min(kColumns, dst.free() - first), n = columns * kPacked;
        float* values = s.values[1];
        const auto in = src->floats({group * kGroupRows, kGroupRows, first * kPacked, n}, s.values[0]);
        for (std::int64_t c = 0; c < columns; ++c) {
          std::uint32_t largest = 0;  // biased exponent: all that the logarithm's floor needs
          for (std::int64_t r = 0; r < kGroupRows; ++r)
            for (std::int64_t i = 0; i < kPacked; ++i)
              largest = std::max(largest,
                                 (std::bit_cast<std::uint32_t>(in.data[r * in.stride + c * kPacked + i]) >> 23) & 0xff);
          const int byte = std::max(static_cast<int>(largest) - reach, 0);
          const float inverse = std::ldexp(1.0f, 127 - byte);
          for (std::int64_t r = 0; r < kGroupRows; ++r)
            for (std::int64_t i = 0; i < kPacked; ++i)
              values[r * n + c * kPacked + i] = in.data[r * in.stride + c * kPacked + i] * inverse;
          s.integers[0][c] = byte;
        }
        auto* bytes = reinterpret_cast<std::uint8_t*>(s.raw[0]);
        narrow(values, bytes, kGroupRows * n);
        std::memcpy(s.integers[1], bytes, static_cast<std::size_t>(kGroupRows * n));
        dst.put_integers({group * kGroupRows, kGroupRows, first, columns}, {s.integers[1], columns});
        scale.put_integers({group / 4 * kQuadrant + group % 4, 1, first, columns}, {s.integers[0], columns});
      }
  });
}

}  // namespace neuron::engines::isa
