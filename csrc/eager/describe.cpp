#include "eager/describe.h"

#include <ATen/ops/aminmax.h>

#include <sstream>

namespace neuron::eager {

std::string describe_call(std::string_view op, at::TensorList tensors, std::string_view error) {
  const bool out_of_range = error.find("out of") != std::string_view::npos;
  std::ostringstream text;
  text << op << "(";
  const char* separator = "";
  for (const auto& t : tensors) {
    text << separator << c10::toString(t.scalar_type()) << t.sizes();
    separator = ", ";
    if (!out_of_range || !c10::isIntegralType(t.scalar_type(), /*includeBool=*/false) || !t.numel()) continue;
    const auto [least, greatest] = at::aminmax(t);
    text << " with values from " << least.item<std::int64_t>() << " to " << greatest.item<std::int64_t>();
  }
  text << ")";
  return text.str();
}

}  // namespace neuron::eager
