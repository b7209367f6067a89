// Random numbers. Each partition has generators of its own: XORWOW (Marsaglia, "Xorshift RNGs", 2003), one in the
// GpSimd engine and four that take turns in the Vector engine. How the vendor spreads a seed over the partitions is not
// public; here SplitMix64 does it.
#include "engines/isa/execute.h"
#include "engines/isa/rows.h"

namespace neuron::engines::isa {
namespace {

constexpr std::size_t kWords = 6, kGenerators = 4;
constexpr std::uint8_t kGpsimd = 3;

std::uint32_t next(std::uint32_t* s) {
  const std::uint32_t t = s[0] ^ (s[0] >> 2);
  s[0] = s[1];
  s[1] = s[2];
  s[2] = s[3];
  s[3] = s[4];
  s[4] = (s[4] ^ (s[4] << 4)) ^ (t ^ (t << 1));
  s[5] += 362437;
  return s[4] + s[5];
}

void seed(std::uint32_t* words, std::size_t count, std::uint64_t start) {
  for (std::size_t i = 0; i < count; ++i) {
    start += 0x9E3779B97F4A7C15;
    std::uint64_t z = start;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    words[i] = static_cast<std::uint32_t>(z >> 32) | (i % kWords == 0 ? 1u : 0u);  // five zeros would stay zeros
  }
}
std::uint64_t start_of(std::uint32_t seed, std::int64_t partition, bool gpsimd) {
  return (static_cast<std::uint64_t>(seed) << 20) + (static_cast<std::uint64_t>(partition) << 4) + (gpsimd ? 1 : 0);
}

// The generators of one partition.
class Stream {
 public:
  Stream(Core& core, bool gpsimd, std::int64_t partition) : count_(gpsimd ? 1 : kGenerators) {
    const auto p = static_cast<std::size_t>(partition);
    words_ = gpsimd ? core.state().gpsimd_random[p].data() : core.state().vector_random[p].data();
    std::uint32_t any = 0;
    for (std::size_t i = 0; i < count_ * kWords; ++i) any |= words_[i];
    if (any == 0) seed(words_, count_ * kWords, start_of(0, partition, gpsimd));  // never seeded
  }
  std::uint32_t bits(std::int64_t element) {
    return next(words_ + static_cast<std::size_t>(element) % count_ * kWords);
  }
  // In [0, 1), all 24 bits of an fp32 number.
  float fraction(std::int64_t element) { return static_cast<float>(bits(element) >> 8) * 0x1p-24f; }

 private:
  std::uint32_t* words_;
  std::size_t count_;
};

bool on_gpsimd(const Instruction& instruction) { return instruction.engine == kGpsimd; }

// body(row, stream) for each row of a tile.
template <class Body>
void for_streams(Core& core, const Walk& dst, bool gpsimd, const Body& body) {
  split(dst.rows(), dst.rows() * dst.free(), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      Stream stream(core, gpsimd, r);
      body(r, stream);
    }
  });
}

}  // namespace

// 32 random bits per element, of which the type keeps the lowest.
void execute_rng(Core& core, const Instruction& instruction) {
  const Walk dst(core.tile(output(instruction, 0)));
  for_streams(core, dst, on_gpsimd(instruction), [&](std::int64_t row, Stream& stream) {
    for_blocks(row, row + 1, dst.free(), [&](const Rectangle& block) {
      std::int32_t* out = scratch().integers[0];
      for (std::int64_t i = 0; i < block.n; ++i) out[i] = static_cast<std::int32_t>(stream.bits(block.first + i));
      dst.put_integers(block, {out, block.n});
    });
  });
}

void execute_rand2(Core& core, const Instruction& instruction) {
  const Walk dst(core.tile(output(instruction, 0)));
  const PerPartition low = column_operand(core, input(instruction, 0), dst.rows());
  const PerPartition high = column_operand(core, input(instruction, 1), dst.rows());
  for_streams(core, dst, false, [&](std::int64_t row, Stream& stream) {
    const float start = low.at(row), width = high.at(row) - start;
    for_blocks(row, row + 1, dst.free(), [&](const Rectangle& block) {
      float* out = scratch().values[0];
      for (std::int64_t i = 0; i < block.n; ++i) out[i] = start + width * stream.fraction(block.first + i);
      dst.put(block, {out, block.n});
    });
  });
}

// Elements are zeroed with the given probability; those that stay are not scaled.
void execute_dropout(Core& core, const Instruction& instruction) {
  const Walk dst(core.tile(output(instruction, 0)));
  const Input data(core.tile(input(instruction, 0)), dst);
  require_equal_sizes(dst, data.walk());
  const PerPartition probability = column_operand(core, input(instruction, 1), dst.rows());
  const bool bits = dst.type() == data->type() && bytes_of(dst.type()) <= 4;
  for_streams(core, dst, on_gpsimd(instruction), [&](std::int64_t row, Stream& stream) {
    const float drop = probability.at(row);
    Scratch& s = scratch();
    for_blocks(row, row + 1, dst.free(), [&](const Rectangle& block) {
      if (bits) {  // what stays keeps its bits
        const auto in = data->integers(block, s.integers[0]);
        for (std::int64_t i = 0; i < block.n; ++i)
          s.integers[1][i] = stream.fraction(block.first + i) >= drop ? in.data[i] : 0;
        return dst.put_integers(block, {s.integers[1], block.n});
      }
      const auto in = data->floats(block, s.values[0]);
      for (std::int64_t i = 0; i < block.n; ++i)
        s.values[1][i] = stream.fraction(block.first + i) >= drop ? in.data[i] : 0;
      dst.put(block, {s.values[1], block.n});
    });
  });
}

void execute_set_rng_seed(Core& core, const Instruction& instruction) {
  const auto value = static_cast<std::uint32_t>(core.integer(input(instruction, 0)));
  for (std::int64_t p = 0; p < kPartitions; ++p) {
    auto& words = core.state().vector_random[static_cast<std::size_t>(p)];
    seed(words.data(), words.size(), start_of(value, p, false));
  }
}

void execute_rand_set_state(Core& core, const Instruction& instruction) {
  const Walk src(core.tile(input(instruction, 0)));
  const bool gpsimd = on_gpsimd(instruction);
  const std::int64_t words = gpsimd ? kWords : kWords * kGenerators;
  if (src.free() != words)
    throw ProgramFault(ProgramFault::Kind::kMismatch,
                       "the state of a random generator has " + std::to_string(words) + " words per partition");
  for (std::int64_t r = 0; r < src.rows(); ++r) {
    const auto in = src.integers({r, 1, 0, words}, scratch().integers[0]);
    const auto p = static_cast<std::size_t>(r);
    std::uint32_t* to = gpsimd ? core.state().gpsimd_random[p].data() : core.state().vector_random[p].data();
    for (std::int64_t i = 0; i < words; ++i) to[i] = static_cast<std::uint32_t>(in.data[i]);
  }
}

void execute_rand_get_state(Core& core, const Instruction& instruction) {
  const Walk dst(core.tile(output(instruction, 0)));
  const bool gpsimd = on_gpsimd(instruction);
  const std::int64_t words = gpsimd ? kWords : kWords * kGenerators;
  if (dst.free() != words)
    throw ProgramFault(ProgramFault::Kind::kMismatch,
                       "the state of a random generator has " + std::to_string(words) + " words per partition");
  std::int32_t* out = scratch().integers[0];
  for (std::int64_t r = 0; r < dst.rows(); ++r) {
    const auto p = static_cast<std::size_t>(r);
    const std::uint32_t* from = gpsimd ? core.state().gpsimd_random[p].data() : core.state().vector_random[p].data();
    for (std::int64_t i = 0; i < words; ++i) out[i] = static_cast<std::int32_t>(from[i]);
    dst.put_integers({r, 1, 0, words}, {out, words});
  }
}

}  // namespace neuron::engines::isa
