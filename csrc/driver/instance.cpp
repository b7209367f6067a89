#include "driver/instance.h"

namespace neuron::driver {

namespace {
constexpr std::size_t GiB = std::size_t{1} << 30;
}

const std::vector<InstanceType>& instance_types() {
  // Chips, cores and HBM: AWS Neuron documentation, Trainium2/3 architecture pages and the Trn2/Trn3 instance pages.
  // Trainium2: 8 physical cores and 96 GiB of HBM per chip; Trainium3: 8 physical cores and 144 GiB.
  static const std::vector<InstanceType> types{
      {"trn2.3xlarge", "trn2", 1, 4, 24 * GiB},
      {"trn2.48xlarge", "trn2", 16, 4, 24 * GiB},
      {"trn2u.48xlarge", "trn2", 16, 4, 24 * GiB},
      {"trn3.gen1", "trn3", 16, 4, 36 * GiB},  // one server of a Gen1 UltraServer
      {"trn3.gen2", "trn3", 4, 4, 36 * GiB},   // one server of a Gen2 UltraServer
  };
  return types;
}

const InstanceType* find_instance_type(std::string_view name) {
  for (const auto& type : instance_types())
    if (type.name == name) return &type;
  return nullptr;
}

std::string instance_type_names() {
  std::string names;
  for (const auto& type : instance_types()) {
    if (!names.empty()) names += ", ";
    names += type.name;
  }
  return names;
}

}  // namespace neuron::driver
