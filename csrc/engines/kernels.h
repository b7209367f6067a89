#pragma once
// The tile kernels: one op on contiguous elements. The same source is compiled for several instruction sets, all of
// which give the same bits; the widest that the machine has is chosen once.
#include <cstddef>
#include <cstdint>

#include "engines/dtype.h"
#include "engines/program.h"

namespace neuron::engines {

// `n` elements. An operand is an array, or points to one element that stands for all: which of them do is the mask by
// which the kernel was looked up (bit i: operand i). `out` may be the same memory as an operand of equal element size.
using Kernel = void (*)(void* out, const void* a, const void* b, const void* c, std::int64_t n);

constexpr std::size_t kOps = static_cast<std::size_t>(Op::kRow) + 1;
constexpr std::size_t kLanes = 4;
constexpr std::size_t kDtypes = 10;
constexpr std::size_t kMasks = 8;  // of up to three operands

// Null where an op has no meaning for a lane.
struct Kernels {
  Kernel op[kOps][kLanes][kMasks];     // arithmetic, comparisons, logic, select
  Kernel rounded_bf16[kOps][kMasks];   // op on kF32 and Op::kRound to kBF16 in one pass
  Kernel cast[kLanes][kLanes][2];      // from, to; equal lanes: copy, or fill
  Kernel cast_through_i32[kLanes][2];  // from kF32 and kF64 to kI64
  Kernel round[kDtypes][2];
  Kernel load[kDtypes];      // memory -> lane
  Kernel store[kDtypes][2];  // lane -> memory; rounds
};

// "default" (portable), "avx2" or "avx512": for executables made from now on. Falls back to what the machine has.
void select_isa(const char* name);
const char* selected_isa();
const Kernels& kernels();

constexpr std::size_t index_of(Op op) { return static_cast<std::size_t>(op); }
constexpr std::size_t index_of(Lane lane) { return static_cast<std::size_t>(lane); }
constexpr std::size_t index_of(Dtype dtype) { return static_cast<std::size_t>(dtype); }

namespace portable {
extern const Kernels kTable;
}
namespace avx2 {
extern const Kernels kTable;
}
namespace avx512 {
extern const Kernels kTable;
}

}  // namespace neuron::engines
