// torch.autocast("neuron"): CUDA's op lists, from ATen's own macros.
#include <ATen/autocast_mode.h>

// The macros name at's types without their namespace.
namespace at::autocast {

namespace {
// Logarithms of probabilities near 0 and 1 do not survive half precision.
Tensor refuse_binary_cross_entropy(const Tensor&, const Tensor&, const std::optional<Tensor>&, int64_t) {
  TORCH_CHECK(
      false,
      "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast: use "
      "binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss, which take the values before the sigmoid "
      "and are safe, or leave autocast for this call.");
}
}  // namespace

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define NEURON_KERNEL(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__)
#define NEURON_LOWER(...) NEURON_KERNEL(__VA_ARGS__, lower_precision_fp)
#define NEURON_FP32(...) NEURON_KERNEL(__VA_ARGS__, fp32)
#define NEURON_FP32_DTYPE(...) NEURON_KERNEL(__VA_ARGS__, fp32_set_opt_dtype)
#define NEURON_PROMOTE(...) NEURON_KERNEL(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(NEURON_LOWER)
  AT_FORALL_FP32(NEURON_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(NEURON_FP32_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(NEURON_PROMOTE)
#undef NEURON_PROMOTE
#undef NEURON_FP32_DTYPE
#undef NEURON_FP32
#undef NEURON_LOWER
#undef NEURON_KERNEL
  m.impl("binary_cross_entropy", TORCH_FN(refuse_binary_cross_entropy));
}

}  // namespace at::autocast
