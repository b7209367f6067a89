#include "eager/describe.h"

#include <ATen/ops/aminmax.h>

#include <sstream>

#include "eager/launch_settings.h"

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

std::string describe_launch(std::string_view what, const LaunchSite* site) {
  std::ostringstream text;
  text << "The error above was raised by the asynchronous launch of " << what << " on device neuron";
  if (site)
    text << ", launched at " << site->file << ":" << site->line;
  else
    text << ". Launches behind it were dropped. To see where it was launched set TORCH_NEURONX_LAUNCH_LINES=1, or "
            "NEURON_LAUNCH_BLOCKING=1 to have it raised there";
  text << ".";
  return text.str();
}

}  // namespace neuron::eager
