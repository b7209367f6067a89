#pragma once
// Attributes of an instruction by their place in the table of src/nki/instruction.py. Names have become numbers when
// the program was made.
#include <cstdint>

#include "engines/isa/names.h"
#include "engines/isa/program.h"

namespace neuron::engines::isa {

inline bool has_attribute(const Instruction& instruction, std::size_t i) {
  return i < instruction.attributes.size() && instruction.attributes[i].index() != 0;
}
inline std::int64_t integer_attribute(const Instruction& instruction, std::size_t i, std::int64_t otherwise = 0) {
  if (i >= instruction.attributes.size()) return otherwise;
  const Attribute& attribute = instruction.attributes[i];
  if (const auto* integer = std::get_if<std::int64_t>(&attribute)) return *integer;
  if (const auto* number = std::get_if<double>(&attribute)) return static_cast<std::int64_t>(*number);
  return otherwise;
}
inline double number_attribute(const Instruction& instruction, std::size_t i, double otherwise = 0) {
  if (i >= instruction.attributes.size()) return otherwise;
  const Attribute& attribute = instruction.attributes[i];
  if (const auto* number = std::get_if<double>(&attribute)) return *number;
  if (const auto* integer = std::get_if<std::int64_t>(&attribute)) return static_cast<double>(*integer);
  return otherwise;
}
inline bool flag_attribute(const Instruction& instruction, std::size_t i) {
  return integer_attribute(instruction, i) != 0;
}
// kBypass where there is none.
inline Alu alu_attribute(const Instruction& instruction, std::size_t i, Alu otherwise = Alu::kBypass) {
  return static_cast<Alu>(integer_attribute(instruction, i, static_cast<std::int64_t>(otherwise)));
}
inline Function function_attribute(const Instruction& instruction, std::size_t i) {
  return static_cast<Function>(integer_attribute(instruction, i));
}
inline ReduceCommand command_attribute(const Instruction& instruction, std::size_t i) {
  return static_cast<ReduceCommand>(integer_attribute(instruction, i));
}

constexpr std::size_t index_of(Alu op) { return static_cast<std::size_t>(op); }
constexpr std::size_t index_of(Function function) { return static_cast<std::size_t>(function); }
constexpr std::size_t index_of(Type type) { return static_cast<std::size_t>(type); }

// Output and input operands by their place in the table.
inline const Operand& output(const Instruction& instruction, std::size_t i) { return instruction.operands[i]; }
inline const Operand& input(const Instruction& instruction, std::size_t i) {
  static const Operand kNone;
  const std::size_t place = instruction.outputs + i;
  return place < instruction.operands.size() ? instruction.operands[place] : kNone;
}

}  // namespace neuron::engines::isa
