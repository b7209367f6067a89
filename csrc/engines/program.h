#pragma once
// A tile program: straight-line code over registers, each of which holds `rows x cols` elements of one tile. The same
// program runs on the tile kernels (run.h) and, where it is run often, on machine code made of it.
//
// All values share the rows of the iteration space; they differ in their columns: a class of columns is an index into
// Geometry::cols. Class 0 always has one column: it is that of per-row values, and of everything in a program that has
// no rows of its own (pointwise work on tensors that are seen as one long column).
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "engines/dtype.h"

namespace neuron::engines {

enum class Op : std::uint8_t {
  kLoad,   // out = memory[access]
  kStore,  // memory[access] = in[0]; the only op without `out`
  // Arithmetic on `lane`; each rounds once, in the lane's format. kFma is in[0] * in[1] + in[2] with one rounding.
  kAdd,
  kSub,
  kMul,
  kDiv,  // floating point only
  kFma,
  kMin,  // a NaN of either operand is the result; of +0 and -0 the second operand is
  kMax,
  kNeg,
  kAbs,
  kSqrt,
  kFloor,
  kCeil,
  kTrunc,
  kNearest,  // ties to even
  // Comparisons of two values of `lane`; the result is kB8, 0 or 1. Those with NaN are false but for kNe.
  kEq,
  kNe,
  kLt,
  kLe,
  kSelect,  // in[0] (kB8) ? in[1] : in[2]
  kAnd,     // bitwise, on kI64 and kB8
  kOr,
  kXor,
  kNot,  // of kB8: logical; of kI64: bitwise
  // From `lane` to the lane of `out`. To kB8: is not zero. Floating point to kI64: towards zero; what is out of range
  // and NaN become the most negative integer of 64 bits, or of 32 if `dtype` is kI32 (conversions to int32, int16 and
  // int8).
  kCast,
  kRound,  // as if stored to `dtype` and loaded again; in and out have the lane of dtype
  kCall,   // out = function(in[0]) or function(in[0], in[1]), element by element
  // Between classes of columns.
  kExpand,  // in[0] has class 0, or is a scalar; out has `cols`: each row's value in all its columns
  kConcat,  // out = in[0] | in[1], column-wise
  // Over the columns of each row: see RowFunction.
  kRow,
};

// Functions of elements that are more than one rounding: which bits they give is a matter of the library, so who runs a
// program for somebody else's kernels registers theirs (functions.h).
enum class Function : std::uint8_t {
  kExp,
  kExp2,
  kExpm1,
  kLog,
  kLog2,
  kLog10,
  kLog1p,
  kSin,
  kCos,
  kTan,
  kTanh,
  kAtan,
  kErf,
  kErfc,
  kErfinv,
  kSigmoid,
  kSilu,
  kGelu,
  kGeluTanh,
  kSigmoidBackward,
  kTanhBackward,
  kSiluBackward,
  kGeluBackward,
  kGeluTanhBackward,
  kPow,
  kSoftplus,
  kLogSigmoid,
  kSqrt,
  kRsqrt,
  kCount
};

// out has class 0 for reductions, the class of in[0] otherwise. Empty rows are not allowed.
enum class RowFunction : std::uint8_t {
  kSum,
  kMean,
  kMax,
  kMin,
  kVar,  // scalar operand in[1]: the correction
  kSoftmax,
  kLogSoftmax,
  kSoftmaxBackward,     // in[0] = gradient, in[1] = output
  kLogSoftmaxBackward,  // likewise
  // Layer norm in three steps, so that its saved values can be had. in[0] = x; kLayerNorm: in[1] = mean and in[2] =
  // rstd of class 0, in[3] = weight and in[4] = bias of in[0]'s class or absent. kRowRstd: in[1] = scalar eps.
  kRowMeanForNorm,
  kRowRstdForNorm,
  kLayerNorm,
  kCount
};

struct Operand {
  enum class Kind : std::uint8_t { kNone, kValue, kScalar } kind = Kind::kNone;
  std::uint16_t index = 0;
};

struct Instr {
  Op op;
  Lane lane = Lane::kF32;     // of the operands (of the two choices for kSelect)
  Dtype dtype = Dtype::kF32;  // kRound; kCall and kRow: the type whose kernel is imitated
  std::uint8_t function = 0;  // Function or RowFunction
  std::uint8_t cols = 0;      // class of `out` (of in[0] for kStore)
  std::uint16_t out = 0;      // value
  std::uint16_t access = 0;   // kLoad, kStore
  std::array<Operand, 5> in{};
};

struct Value {
  Lane lane;
  std::uint8_t cols;  // class
};

// How one tensor is met by the iteration. Equal memory is one access: what is loaded and stored in place has the same
// index. Accesses that are written never overlap another one. An access is stored once, and not loaded after that.
struct Access {
  enum class Kind : std::uint8_t {
    kDense,     // element (row, col) lies at row * cols + col
    kRow,       // class 0 although it is used as per-row value: dense with one column
    kColumns,   // the same columns for every row, without gaps
    kStrided,   // anything else: Geometry::Strides says where
    kStreamed,  // dense, only stored, and too large for the caches to keep: written past them
    kUniform,   // one element for all; read once, before the first tile, into scalar `scalar`
  } kind;
  Dtype dtype;
  std::uint8_t cols;  // class
  bool written = false;
  std::uint16_t scalar = 0;  // kUniform
};

// A number that is the same for all elements, in the format of its lane.
union Scalar {
  float f32;
  double f64;
  std::int64_t i64;
  std::uint8_t b8;
};

struct Program {
  std::vector<Value> values;  // written once each, by the instruction that has it as `out`
  std::vector<Instr> code;
  std::vector<Access> accesses;
  std::vector<Lane> scalars;
  std::uint8_t cols_classes = 1;
  // Elements per row of in[0] of a kCall whose result depends on an element's position are counted from the start of
  // the tensor: see functions.h.

  // One line per access, scalar and instruction. Equal texts, equal programs: this is the key of every cache.
  std::string text() const;
};

// Where a program is applied: everything about shapes that its code does not depend on.
struct Geometry {
  // Where the elements of a kStrided access lie. The elements of all rows, row after row, are numbered; `sizes`
  // (outermost first, product rows * cols of the class) split that number into indices, `strides` are in elements, 0
  // repeats.
  struct Strides {
    std::vector<std::int64_t> sizes, strides;
  };
  std::int64_t rows = 0;
  std::vector<std::int64_t> cols;  // per class; cols[0] == 1
  std::vector<Strides> strides;    // per access; used for kStrided
};

}  // namespace neuron::engines
