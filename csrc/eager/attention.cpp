// Scaled dot product attention goes to ATen's flash kernels for the CPU where these apply: the same choice as on the
// CPU, made from shapes, dtypes and flags only.
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice_native.h>

namespace neuron::eager {
namespace {
std::int64_t choose_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                              const std::optional<at::Tensor>& mask, double dropout, bool causal,
                              std::optional<double> scale, bool grouped_queries) {
  return at::native::_fused_sdp_choice_cpp(query, key, value, mask, dropout, causal, scale, grouped_queries);
}
}  // namespace
}  // namespace neuron::eager

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &neuron::eager::choose_attention)
}
