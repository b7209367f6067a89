// Means and variances along rows.
#include "engines/isa/execute.h"
#include "engines/isa/rows.h"

namespace neuron::engines::isa {

// Of the even and of the odd elements: their count, mean, and the sum of squared distances to it.
void execute_bn_stats(Core& core, const Instruction& instruction) {
  const Walk dst(core.tile(output(instruction, 0)));
  const Input data(core.tile(input(instruction, 0)), dst);
  const std::int64_t n = data->free();
  if (dst.rows() != data->rows() || dst.free() != 6 || n > kBlock)
    throw ProgramFault(
        ProgramFault::Kind::kMismatch,
        "bn_stats of " + std::to_string(n) + " elements per partition gives 6, not " + std::to_string(dst.free()));
  const RowKernels& kernels = row_kernels();
  split(dst.rows(), dst.rows() * n, [&](std::int64_t begin, std::int64_t end) {
    Scratch& s = scratch();
    for (std::int64_t r = begin; r < end; ++r) {
      const auto in = data->floats({r, 1, 0, n}, s.values[0]);
      const float count[2] = {static_cast<float>((n + 1) / 2), static_cast<float>(n / 2)};
      float mean[2], squares[2];
      kernels.sums(in.data, n, mean);
      for (int k = 0; k < 2; ++k) mean[k] = count[k] > 0 ? mean[k] / count[k] : 0;
      kernels.squares(in.data, n, mean, squares);
      float* result = s.values[1];
      for (int k = 0; k < 2; ++k) {
        result[3 * k] = count[k];
        result[3 * k + 1] = mean[k];
        result[3 * k + 2] = squares[k];
      }
      dst.put({r, 1, 0, 6}, {result, 6});
    }
  });
}

// Triples (count, mean, variance * count) become one mean and one variance.
void execute_bn_aggr(Core& core, const Instruction& instruction) {
  const Walk dst(core.tile(output(instruction, 0)));
  const Input data(core.tile(input(instruction, 0)), dst);
  const std::int64_t n = data->free();
  if (dst.rows() != data->rows() || dst.free() != 2 || n % 3 != 0)
    throw ProgramFault(ProgramFault::Kind::kMismatch,
                       "bn_aggr of " + std::to_string(n) + " elements per partition: triples become 2 elements");
  constexpr std::int64_t kPart = kBlock / 3 * 3;
  Scratch& s = scratch();
  const auto for_triples = [&](std::int64_t row, const auto& body) {
    for (std::int64_t first = 0; first < n; first += kPart) {
      const std::int64_t part = n - first < kPart ? n - first : kPart;
      const auto in = data->floats({row, 1, first, part}, s.values[0]);
      for (std::int64_t i = 0; i < part; i += 3) body(in.data[i], in.data[i + 1], in.data[i + 2]);
    }
  };
  for (std::int64_t r = 0; r < dst.rows(); ++r) {
    // Sums in f64, so that the order of the parts does not show.
    double count = 0, sum = 0, squares = 0;
    for_triples(r, [&](double c, double mean, double m2) {
      count += c;
      sum += c * mean;
      squares += m2;
    });
    const double mean = sum / count;
    for_triples(r, [&](double c, double part, double) { squares += c * (part - mean) * (part - mean); });
    s.values[1][0] = static_cast<float>(mean);
    s.values[1][1] = static_cast<float>(squares / count);
    dst.put({r, 1, 0, 2}, {s.values[1], 2});
  }
}

}  // namespace neuron::engines::isa
