#pragma once
// Loops of the Vector, Scalar and GpSimd engines over elements in fast memory. The same source (row_*.inc) is compiled
// for several instruction sets; the widest that the machine has is chosen once. Vendor arithmetic: operands are widened
// to fp32, computed in fp32, and rounded once into the type of the destination.
#include <cstddef>
#include <cstdint>

#include "engines/isa/program.h"

namespace neuron::engines::isa {

constexpr std::size_t kTypes = static_cast<std::size_t>(Type::kCount);
constexpr std::size_t kAlus = static_cast<std::size_t>(Alu::kCount);
constexpr std::size_t kFunctions = static_cast<std::size_t>(Function::kCount);

// Rows of `n` elements, `stride` elements from one row to the next.
template <class T>
struct Rows {
  T* data = nullptr;
  std::int64_t stride = 0;
};

// out = a op b. `Column`: one operand has one element per row (stride 0: one for all rows).
enum Operands : int { kTiles = 0, kTileColumn = 1, kColumnTile = 2, kOperandKinds = 3 };
template <class T>
using BinaryKernel = void (*)(Rows<T> out, Rows<const T> a, Rows<const T> b, std::int64_t rows, std::int64_t n);

// out[i] = f(in[i]); out may be in.
using FunctionKernel = void (*)(const float* in, float* out, std::int64_t n, float parameter);

// result[r] = result[r] op (the row's elements), in a fixed order.
using ReduceKernel = void (*)(Rows<const float> in, float* result, std::int64_t rows, std::int64_t n);

// state = op1(op0(a[i], state), b[i]), written to out; `state` per row is read and left at its last value.
using ScanKernel = void (*)(Rows<float> out, Rows<const float> a, Rows<const float> b, float* state, std::int64_t rows,
                            std::int64_t n);

struct RowKernels {
  // Contiguous elements. Null for the containers of MX elements.
  void (*widen[kTypes])(const void* from, float* to, std::int64_t n);
  void (*narrow[kTypes])(const float* from, void* to, std::int64_t n);
  // Bit patterns as 32-bit integers, with the sign where the type has one; the other way cuts off.
  void (*widen_bits[kTypes])(const void* from, std::int32_t* to, std::int64_t n);
  void (*narrow_bits[kTypes])(const std::int32_t* from, void* to, std::int64_t n);

  BinaryKernel<float> binary[kAlus][kOperandKinds];
  // Bitwise operators, and native 32-bit arithmetic: [1] for unsigned operands.
  BinaryKernel<std::int32_t> integer[2][kAlus][kOperandKinds];

  // out = a * scale + bias with a column each, each product and sum rounded.
  void (*affine)(Rows<float> out, Rows<const float> a, Rows<const float> scale, Rows<const float> bias,
                 std::int64_t rows, std::int64_t n);
  FunctionKernel function[kFunctions];

  ReduceKernel reduce[kAlus];
  ScanKernel scan[kAlus][kAlus];  // null: no loop of its own
  ScanKernel cumulate[kAlus];     // state = op(a[i], state); b is not read
  float (*scalar[kAlus])(float a, float b);

  // Sums of even and of odd elements of a row, and of the squares of their distances to `mean`.
  void (*sums)(const float* row, std::int64_t n, float result[2]);
  void (*squares)(const float* row, std::int64_t n, const float mean[2], float result[2]);

  // The first position >= from where row[i] == value, or n.
  std::int64_t (*find)(const float* row, std::int64_t n, float value, std::int64_t from);
  // The eight largest, descending; NaN is never among them.
  void (*largest8)(const float* row, std::int64_t n, float* result);

  // out[i] = mask[i] ? a[i] : b[i] for elements of 1, 2, 4 bytes (index: log2).
  void (*select[3])(const std::uint8_t* mask, const void* a, const void* b, void* out, std::int64_t n);
  // mask[i] = elements of 1, 2, 4 bytes that are not 0.
  void (*truth[3])(const void* elements, std::uint8_t* mask, std::int64_t n);
};

const RowKernels& row_kernels();

// "default" (portable), "avx2" or "avx512": for what runs from now on; falls back to what the machine has.
void select_row_kernels(const char* isa);

namespace portable {
extern const RowKernels kRowKernels;
}
namespace avx2 {
extern const RowKernels kRowKernels;
}
namespace avx512 {
extern const RowKernels kRowKernels;
}

}  // namespace neuron::engines::isa
