// Programs, run by the definition.
#include <cstring>
#include <utility>

#include "engine_reference.h"
#include "engines/functions.h"

namespace reference {

using namespace neuron::engines;

std::int64_t position(const Program& program, const Geometry& geometry, std::size_t a, std::int64_t row,
                      std::int64_t col) {
  const Access& access = program.accesses[a];
  const std::int64_t cols = geometry.cols[access.cols];
  switch (access.kind) {
    case Access::Kind::kUniform:
      return 0;
    case Access::Kind::kColumns:
      return col;
    case Access::Kind::kStrided: {
      std::int64_t number = row * cols + col, offset = 0;
      const Geometry::Strides& s = geometry.strides[a];
      for (std::size_t d = s.sizes.size(); d-- > 0;) {
        offset += number % s.sizes[d] * s.strides[d];
        number /= s.sizes[d];
      }
      return offset;
    }
    default:
      return row * cols + col;
  }
}

void run(const Program& program, const Geometry& geometry, void* const* memory, const Scalar* given) {
  std::vector<Scalar> scalars(given, given + program.scalars.size());
  for (std::size_t a = 0; a < program.accesses.size(); ++a)
    if (program.accesses[a].kind == Access::Kind::kUniform)
      scalars[program.accesses[a].scalar] = load(program.accesses[a].dtype, memory[a], 0);
  const std::int64_t rows = geometry.rows;
  std::vector<std::vector<Scalar>> values(program.values.size());
  const auto cols_of = [&](const Operand& in) { return geometry.cols[program.values[in.index].cols]; };
  const auto get = [&](const Operand& in, std::int64_t row, std::int64_t col) {
    if (in.kind == Operand::Kind::kScalar) return scalars[in.index];
    return values[in.index][static_cast<std::size_t>(row * cols_of(in) + col)];
  };
  for (const Instr& instr : program.code) {
    const std::int64_t cols = geometry.cols[instr.cols];
    std::vector<Scalar> out(static_cast<std::size_t>(rows * cols));
    for (std::int64_t r = 0; r < rows; ++r) {
      if (instr.op == Op::kRow) {
        // Lanes apart, as the function wants them.
        std::vector<std::vector<double>> columns(5);
        const void* in[5] = {};
        Scalar numbers[5];
        std::size_t count = 0;
        const Lane lane = lane_of(instr.dtype);
        const std::size_t bytes = size_of(lane);
        for (std::size_t i = 0; i < 5; ++i) {
          const Operand& operand = instr.in[i];
          if (operand.kind == Operand::Kind::kScalar) numbers[count++] = scalars[operand.index];
          if (operand.kind != Operand::Kind::kValue) continue;
          columns[i].resize(static_cast<std::size_t>(cols_of(operand)));
          for (std::int64_t c = 0; c < cols_of(operand); ++c) {
            const Scalar x = get(operand, r, c);
            std::memcpy(reinterpret_cast<char*>(columns[i].data()) + static_cast<std::size_t>(c) * bytes, &x, bytes);
          }
          in[i] = columns[i].data();
        }
        std::vector<double> result(static_cast<std::size_t>(cols));
        row_function(static_cast<RowFunction>(instr.function), instr.dtype)(result.data(), in, numbers, 1,
                                                                            cols_of(instr.in[0]));
        for (std::int64_t c = 0; c < cols; ++c)
          std::memcpy(&out[static_cast<std::size_t>(r * cols + c)],
                      reinterpret_cast<const char*>(result.data()) + static_cast<std::size_t>(c) * bytes, bytes);
        continue;
      }
      for (std::int64_t c = 0; c < cols; ++c) {
        Scalar& result = out[static_cast<std::size_t>(r * cols + c)];
        switch (instr.op) {
          case Op::kLoad:
            result = load(program.accesses[instr.access].dtype, memory[instr.access],
                          position(program, geometry, instr.access, r, c));
            break;
          case Op::kStore:
            store(program.accesses[instr.access].dtype, memory[instr.access],
                  position(program, geometry, instr.access, r, c), get(instr.in[0], r, c));
            break;
          case Op::kExpand:
            result = get(instr.in[0], r, 0);
            break;
          case Op::kConcat: {
            const std::int64_t left = cols_of(instr.in[0]);
            result = c < left ? get(instr.in[0], r, c) : get(instr.in[1], r, c - left);
            break;
          }
          default: {
            Scalar in[3] = {};
            for (std::size_t i = 0; i < 3 && instr.in[i].kind != Operand::Kind::kNone; ++i)
              in[i] = get(instr.in[i], r, c);
            if (instr.op == Op::kCall)
              element_function(static_cast<Function>(instr.function), instr.dtype).fn(&result, &in[0], &in[1], 1);
            else
              result = apply(instr.op, instr.lane, program.values[instr.out].lane, instr.dtype, in);
          }
        }
      }
    }
    if (instr.op != Op::kStore) values[instr.out] = std::move(out);
  }
}

}  // namespace reference
