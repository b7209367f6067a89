#pragma once
// What tile programs mean, one element at a time: the slow definition that the engines are compared with.
#include <cstdint>
#include <random>
#include <vector>

#include "engines/program.h"

namespace reference {

using neuron::engines::Dtype;
using neuron::engines::Instr;
using neuron::engines::Lane;
using neuron::engines::Op;
using neuron::engines::Program;
using neuron::engines::Scalar;

Scalar load(Dtype dtype, const void* memory, std::int64_t index);
void store(Dtype dtype, void* memory, std::int64_t index, Scalar value);

// Any op that works on one element but kLoad, kStore and kCall. `to` is the lane of the result.
Scalar apply(Op op, Lane lane, Lane to, Dtype dtype, const Scalar* in);

// Equal bits; of NaNs it is enough that both are.
bool same(Lane lane, Scalar a, Scalar b);
bool same_memory(Dtype dtype, const void* a, const void* b, std::int64_t index);

// Numbers that tests are made of: mostly tame ones, now and then one from the edges of its format.
Scalar random_number(Lane lane, std::mt19937& random);
const std::vector<double>& edges();

// Where element (row, col) of an access lies, in elements.
std::int64_t position(const Program& program, const neuron::engines::Geometry& geometry, std::size_t access,
                      std::int64_t row, std::int64_t col);

// Runs the instructions in their order, each on all elements.
void run(const Program& program, const neuron::engines::Geometry& geometry, void* const* memory, const Scalar* scalars);

}  // namespace reference
