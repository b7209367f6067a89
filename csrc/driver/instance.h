#pragma once
// Which machine is emulated: the instance types of AWS and what of them the device runtime needs.
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace neuron::driver {

struct InstanceType {
  std::string_view name;           // e.g. "trn2.3xlarge"
  std::string_view chip;           // "trn2" or "trn3"
  int chips;                       // Trainium chips in the instance
  int logical_cores_per_chip;      // with LNC=2, the default: two physical NeuronCores make one logical core
  std::size_t hbm_bytes_per_core;  // of one logical core

  int logical_cores() const { return chips * logical_cores_per_chip; }
};

// All instance types that can be emulated, smallest first.
const std::vector<InstanceType>& instance_types();

// Null when there is no such type.
const InstanceType* find_instance_type(std::string_view name);

// "trn2.3xlarge, trn2.48xlarge, ...": for error messages.
std::string instance_type_names();

}  // namespace neuron::driver
