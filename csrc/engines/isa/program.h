#pragma once
// A traced kernel, as the simulator of a NeuronCore runs it: instructions over views of tensors. What each operation
// does, and what its operands and attributes are, stands in src/nki/instruction.py; the bindings translate.
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "engines/isa/types.h"

namespace neuron::engines::isa {

constexpr int kPartitions = 128;
constexpr int kMaxRank = 6;

enum class Op : std::uint8_t {
  kDmaCopy,
  kDmaTranspose,
  kDmaCompute,
  kTableCopy,
  kMaskedCopy,
  kMatmul,
  kMatmulMx,
  kTranspose,
  kCopy,
  kFill,
  kCopyPredicated,
  kTensorTensor,
  kTensorScalar,
  kScalarTensorTensor,
  kTensorReduce,
  kTensorScalarReduce,
  kTensorScalarCumulative,
  kScan,
  kPartitionReduce,
  kActivation,
  kActivate2,
  kExponential,
  kReciprocal,
  kQuantizeMx,
  kBnStats,
  kBnAggr,
  kMax8,
  kFindIndex8,
  kMatchReplace8,
  kShuffle,
  kRangeSelect,
  kSelectReduce,
  kDropout,
  kRng,
  kRand2,
  kSetRngSeed,
  kRandSetState,
  kRandGetState,
  kIota,
  kAffineSelect,
  kLocalGather,
  kNGather,
  kNonzeroWithCount,
  kSequenceBounds,
  kTopk,
  kPrint,
  kRegisterMove,
  kRegisterLoad,
  kRegisterStore,
  kRegisterAlu,
  kLoopBegin,
  kLoopEnd,
  kWhileBegin,
  kWhileEnd,
  kBarrier,
  kSendRecv,
  kCollective,
  kCount
};

enum class Alu : std::uint8_t {
  kBypass,
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kMaximum,
  kMinimum,
  kAbsMax,
  kAbsMin,
  kPower,
  kMod,
  kFmod,
  kEqual,
  kNotEqual,
  kGreater,
  kGreaterEqual,
  kLess,
  kLessEqual,
  kLogicalAnd,
  kLogicalOr,
  kLogicalXor,
  kBitwiseAnd,
  kBitwiseOr,
  kBitwiseXor,
  kInvert,
  kLeftShift,
  kRightShift,  // logical
  kArithmeticRightShift,
  kAbs,
  kSquare,
  kRelu,
  kRsqrt,
  kReciprocal,
  kAverage,  // partition_reduce
  kCount
};

enum class Function : std::uint8_t {
  kCopy,
  kSquare,
  kSqrt,
  kRsqrt,
  kReciprocal,
  kExp,
  kLog,
  kSin,
  kCos,
  kTan,
  kArctan,
  kTanh,
  kSigmoid,
  kRelu,
  kPrelu,
  kGelu,
  kGeluDx,
  kGeluApprxTanh,
  kGeluApprxTanhDx,
  kGeluApprxSigmoid,
  kGeluApprxSigmoidDx,
  kSilu,
  kSiluDx,
  kSoftplus,
  kMish,
  kErf,
  kErfDx,
  kSign,
  kAbs,
  kFloor,
  kCeil,
  kTrunc,
  kCount
};

enum class ReduceCommand : std::uint8_t { kIdle, kReset, kReduce, kResetReduce, kLoadReduce };

struct Storage {
  enum class Region : std::uint8_t { kSbuf, kPsum, kPrivateHbm, kSharedHbm } region;
  Type type;
  std::int64_t partitions;                                  // 1 in HBM
  std::int64_t free;                                        // elements per partition; of the whole tensor in HBM
  std::int64_t address_partition = -1, address_bytes = -1;  // asked for, or -1
  std::int32_t loops = 0;                                   // dynamic loops around the allocation
};

// A view of a storage. Element (i0, i1, ...) has the number offset + sum(stride * i) among the elements of the storage,
// counted in elements of `type`, partition after partition (see src/nki/storage.py).
struct View {
  std::int32_t storage = -1;
  Type type = Type::kFloat32;
  std::int8_t rank = 0;
  std::int64_t offset = 0;
  std::int64_t size[kMaxRank] = {};
  std::int64_t stride[kMaxRank] = {};

  // Where the view moves with a value that is known only at run time. kScalar: by step * value, value from a register
  // or the one element of operand `index`. kVector: row p of dimension 0 (whose stride is not used) starts at
  // offset + step * value[p], value from operand `index`. kIndirect: elements of the free dimensions are those that
  // `index` names, in snake order of `group` partitions. A value outside [0, limit) is out of bounds.
  enum class Dynamic : std::uint8_t { kNone, kScalar, kVector, kIndirect } dynamic = Dynamic::kNone;
  std::int32_t index_register = -1;
  std::int32_t index = -1;  // into Program::views
  std::int64_t step = 0, limit = 0, group = 0;
};

struct Operand {
  enum class Kind : std::uint8_t { kNone, kView, kNumber, kRegister } kind = Kind::kNone;
  std::int32_t index = -1;  // into Program::views, or of the register
  double number = 0;
};

using Attribute = std::variant<std::monostate, std::int64_t, double, std::string, std::vector<std::int64_t>,
                               std::vector<double>, std::vector<std::uint8_t>>;

struct Instruction {
  Op op;
  std::uint8_t engine = 0;
  std::uint8_t outputs = 0;       // the first operands
  std::vector<Operand> operands;  // out, then in
  std::vector<Attribute> attributes;
  std::int32_t partner = -1;        // begin <-> end of a loop
  std::vector<std::int32_t> after;  // must come before, whatever the operands
};

struct Program {
  std::vector<Storage> storages;
  std::vector<View> views;
  std::vector<Instruction> instructions;
  std::int32_t registers = 0;
  bool precise = true;  // false: bf16, fp16 and fp8 are kept as fp32 on chip (NKI_PRECISE_FP=0)
};

}  // namespace neuron::engines::isa
