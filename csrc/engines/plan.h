#pragma once
// A program made ready to run: an order of work, places for its values, steps for the tile kernels, and the runs of
// instructions that machine code may replace (stages).
#include <cstdint>
#include <string>
#include <vector>

#include "engines/functions.h"
#include "engines/kernels.h"
#include "engines/program.h"

namespace neuron::engines {

// An instruction at its place in the order of work.
struct Node {
  Instr instr;
  std::uint8_t cols = 0;  // class of the iteration: that of `out`, of what is stored, of kRow's in[0]
};

// Consecutive nodes that share a class, or one kCall, kConcat or kRow. `pre` is gathered before and `post` scattered
// after the body, whoever runs the body.
struct Group {
  bool elementwise = false;
  std::uint8_t cols = 0;
  std::vector<Node> pre, body, post;
};

// Where a value lies while a tile is worked on.
struct Place {
  enum class Kind : std::uint8_t {
    kNone,
    kRegister,  // index: into Plan::registers
    kMemory,    // index: access whose memory is used as it is
  } kind = Kind::kNone;
  std::uint16_t index = 0;
};

struct Register {
  std::uint8_t cols;
  Lane lane;
};

// Slots are the addresses a step works with: registers first, then accesses, then scalars.
using Slot = std::uint16_t;

struct Step {
  enum class Kind : std::uint8_t { kKernel, kGather, kScatter, kExpand, kConcat, kCall, kRow } kind = Kind::kKernel;
  std::uint8_t cols = 0;   // class of the elements the step goes over
  std::uint8_t given = 0;  // bit i: in[i] is given
  Slot out = 0;
  Slot in[5] = {};
  Kernel kernel = nullptr;       // kKernel; kExpand: fill; kGather, kScatter: conversion, null when there is none
  std::uint16_t index = 0;       // kGather, kScatter: access
  std::uint8_t element = 0;      // kExpand, kConcat, kGather, kScatter: bytes of an element
  std::uint8_t cols_of[2] = {};  // kConcat: classes of the parts
  std::uint8_t scalar_mask = 0;  // kRow, kCall
  Lane lane = Lane::kF32;        // kCall: of the elements
  Slot scratch[2] = {};          // kCall: where scalar operands are spread out
  const ElementFunction* function = nullptr;
  RowFn row = nullptr;
};

struct StageOperand {
  enum class Kind : std::uint8_t { kDense, kRow, kColumns } kind;
  Dtype dtype;
  Slot slot;
  bool read = false, written = false;
};

// Steps [begin, end) of a group's body; machine code takes their place when there is some.
struct Block {
  std::uint32_t pre, body, post, end;  // pre: [pre, body), body: [body, post), post: [post, end)
  std::int32_t stage = -1;
  std::uint8_t cols = 0;
};

struct Stage {
  std::string text;
  std::vector<StageOperand> operands;
  std::uint8_t cols;
};

// A kColumns access as register: the same for every tile, so it is filled once per run of tiles.
struct ColumnsFill {
  Slot out, in;
  std::uint8_t cols, element;
  Kernel load;                  // one row
  bool outside_stages = false;  // whether steps need it that no machine code replaces
};

struct Plan {
  std::vector<Group> groups;
  std::vector<Place> places;  // per value
  std::vector<Register> registers;
  std::vector<Step> steps;
  std::vector<Block> blocks;
  std::vector<Stage> stages;
  std::vector<ColumnsFill> columns;
  std::vector<std::uint16_t> moving;   // accesses whose address moves from tile to tile
  std::vector<std::uint16_t> uniform;  // accesses that become scalars
  bool whole_range = false;            // one stage that needs no register: no tiles when it is machine code
  std::size_t scratch_element = 0;     // bytes per element that gathers and scatters need for narrow types

  Slot register_slot(std::size_t r) const { return static_cast<Slot>(r); }
  Slot access_slot(std::size_t access) const { return static_cast<Slot>(registers.size() + access); }
  Slot scalar_slot(const Program& program, std::size_t scalar) const {
    return static_cast<Slot>(registers.size() + program.accesses.size() + scalar);
  }
  Slot slot_of(const Program& program, const Operand& operand) const;
};

// Whether memory of this access can be used in place of a register: its elements are those of a lane, without gaps.
bool is_direct(const Access& access);
bool is_elementwise(Op op);
// A cast of floating point to kI64 whose instruction says kI32: out of range is what a conversion to 32 bits gives.
bool is_cast_through_i32(const Program& program, const Instr& instr);

// The passes, in this order. check() throws std::invalid_argument for programs that break the rules of program.h.
void check(const Program& program);
std::vector<Group> schedule(Program& program);  // may add values to `program`
void place(const Program& program, Plan& plan);
void lower(const Program& program, Plan& plan);
void write_stages(const Program& program, Plan& plan);

Plan make_plan(Program& program);

}  // namespace neuron::engines
