// Which kernel serves which op. Three layers, the first that fits wins:
//  1. the device's own kernels (factories, views, copies, hot ops without boxing);
//  2. one boxed kernel for each op that would otherwise be decomposed although the CPU runs it in one piece;
//  3. a fallback for everything else that has a CPU kernel, of any namespace.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>

#include "eager/kernels.h"
#include "eager/launch.h"
#include "eager/op_info.h"
#include "eager/placement.h"
#include "runtime/errors.h"

namespace neuron::eager {

namespace {

class BoxedKernel final : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    if (C10_UNLIKELY(!info_)) info_ = &op_info(op);
    run_boxed(*info_, stack);
  }

 private:
  OpInfo* info_ = nullptr;  // the same value whoever stores it first
};

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  run_boxed(op_info(op), stack);
}

// Ops without a CPU kernel of their own that run better in one launch than decomposed into several, whose decomposition
// resizes an output, which would make every call synchronous, or whose code names the devices that it knows.
const std::unordered_set<std::string_view>& in_one_piece() {
  static const std::unordered_set<std::string_view> names{"arange",
                                                          "arange.start",
                                                          "arange.start_step",
                                                          "linspace",
                                                          "logspace",
                                                          "eye",
                                                          "eye.m",
                                                          "randperm.generator",
                                                          "clone",
                                                          "repeat",
                                                          "stack",
                                                          "embedding",
                                                          "embedding_backward",
                                                          "convolution",
                                                          "convolution_backward",
                                                          "_convolution",
                                                          "mul.Scalar",
                                                          "div.Scalar",
                                                          "linalg_pinv.atol_rtol_tensor",
                                                          "_unsafe_index.Tensor",
                                                          "index_put_",
                                                          "native_batch_norm_backward",
                                                          "zero_",
                                                          "mode.values",
                                                          "conj_physical_"};
  return names;
}

// Left to others: to kernels of the first layer, or to compositions that must see the device's tensors.
bool left_out(std::string_view name) {
  static const std::unordered_set<std::string_view> names{"is_pinned", "_pin_memory", "_to_copy", "_fused_sdp_choice",
                                                          "record_stream"};
  return names.contains(name);
}

bool wanted(const c10::OperatorHandle& op, std::string_view name) {
  using c10::DispatchKey;
  if (left_out(name) || op.hasKernelForDispatchKey(DispatchKey::PrivateUse1)) return false;
  const bool on_cpu = op.hasKernelForDispatchKey(DispatchKey::CPU);
  // A composition that autograd sees through stays one, unless the CPU has a kernel that rounds differently.
  if (op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd)) return on_cpu;
  const bool composite = op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
                         op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional);
  if (!composite) return in_one_piece().contains(name);  // others reach the fallback
  return on_cpu || name.starts_with("_foreach_") || in_one_piece().contains(name);
}

void register_boxed(torch::Library& aten) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    const auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema()) continue;
    const std::string local =
        name.overload_name.empty() ? name.name.substr(6) : name.name.substr(6) + "." + name.overload_name;
    if (!wanted(*op, local)) continue;
    aten.impl(local.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<BoxedKernel>()));
  }
}

}  // namespace

void register_kernels() {
  static bool registered = false;
  if (registered) return;
  registered = true;
  install_placement();
  static torch::Library aten(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  static torch::Library aten_cpu(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  register_factories(aten);
  register_views(aten);
  register_copies(aten);
  register_hot_ops(aten);
  register_dropout(aten);
  register_recurrent_cells(aten_cpu);
  register_boxed(aten);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

}  // namespace neuron::eager
