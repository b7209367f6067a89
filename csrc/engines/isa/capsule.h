#pragma once
// How programs of kernels reach another extension module: one gives out a pointer to this struct (in a PyCapsule of
// kProgramCapsule), the other runs what it points to, on any thread and without Python.
#include <cstddef>
#include <cstdint>

namespace neuron::engines::isa {

constexpr const char* kProgramCapsule = "nki.program";
constexpr std::uint32_t kCapsuleVersion = 1;

struct ProgramCapsule {
  std::uint32_t version;
  void* programs;  // that run together, one after the other or as cores that wait for each other
  // `addresses`: of all HBM storages of the first program, then of the next one, ...; null where the machine finds a
  // place. Returns 0, or writes what went wrong to `error`, cut to `error_size` and ended by a zero.
  int (*run)(void* programs, void* const* addresses, char* error, std::size_t error_size);
  void (*retain)(void* programs);
  void (*release)(void* programs);
};

}  // namespace neuron::engines::isa
