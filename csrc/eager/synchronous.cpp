// Calls that run on the calling thread, in stream order: the first call of each signature, which leaves a plan behind,
// and ops whose outputs depend on data.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <optional>

#include "driver/queue.h"
#include "eager/alias.h"
#include "eager/captured.h"
#include "eager/describe.h"
#include "eager/execute.h"
#include "eager/launch.h"
#include "eager/low_precision.h"
#include "eager/placement.h"
#include "eager/planning.h"
#include "eager/statistics.h"
#include "runtime/capture.h"
#include "runtime/errors.h"
#include "runtime/generator.h"
#include "runtime/stream.h"

namespace neuron::eager {

namespace {

using c10::IValue;
using torch::jit::Stack;

// The arguments as the CPU kernel gets them.
class CpuArguments {
 public:
  CpuArguments(const Call& call, IValue* args, AliasSet& aliases) : call_(call), aliases_(aliases) {
    for (std::size_t i = 0; i < call.op().args.size(); ++i) convert(args[i], call.op().args[i]);
  }

 private:
  at::Tensor tensor(const at::Tensor& t, bool written) {
    auto* impl = t.unsafeGetTensorImpl();
    if (written && t.defined() && !is_neuron(impl) && call_.has_device())
      errors::mixed_devices(call_.op().name, impl->device(), {runtime::kNeuron, call_.device()});
    return aliases_.alias(t);
  }

  void convert(IValue& value, const ArgInfo& info) {
    if (value.isTensor()) {
      value = tensor(value.toTensor(), info.written);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const auto& element : value.toListRef()) list.push_back(tensor(element.toTensor(), info.written));
      value = std::move(list);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& element : value.toListRef())
        list.push_back(element.isNone() ? std::nullopt : std::optional(tensor(element.toTensor(), info.written)));
      value = std::move(list);
    } else if (value.isDevice() && value.toDevice().type() == runtime::kNeuron) {
      value = c10::Device(c10::DeviceType::CPU);
    } else if (info.generator) {
      const auto& generator =
          call_.generator().defined() ? call_.generator() : runtime::default_generator(call_.device());
      value = runtime::neuron_generator(generator).cpu();
    }
  }

  const Call& call_;
  AliasSet& aliases_;
};

// Ops that draw random numbers but take no generator draw from the CPU's default one: for the time of the call it has
// the state of the device's.
class BorrowedDefaultGenerator {
 public:
  explicit BorrowedDefaultGenerator(c10::DeviceIndex device)
      : device_(runtime::default_generator(device)),
        cpu_(at::detail::getDefaultCPUGenerator()),
        saved_(cpu_.get_state()) {
    cpu_.set_state(device_.get_state());
  }
  ~BorrowedDefaultGenerator() {
    device_.set_state(cpu_.get_state());
    cpu_.set_state(saved_);
  }

 private:
  at::Generator device_, cpu_;
  at::Tensor saved_;
};

// The CPU kernel itself; its errors are PyTorch's, with the call added to them.
void run_on_cpu(const Call& call, c10::DeviceIndex device, Stack* stack) {
  const OpInfo& op = call.op();
  HbmScope in_hbm(device);
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  std::optional<BorrowedDefaultGenerator> borrowed;
  if (op.draws_unseeded) borrowed.emplace(device);
  try {
    if (auto* kernel = low_precision_kernel(op, call))
      kernel(stack);
    else
      op.handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  } catch (c10::Error& error) {
    std::vector<at::Tensor> tensors;
    for (auto* t : call.tensors())
      tensors.push_back(cpu_alias(at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(t))));
    error.add_context(c10::str(describe_call(op.name, tensors, error.what_without_backtrace()),
                               " on neuron:", static_cast<int>(device)));
    throw;
  }
}

}  // namespace

void run_synchronously(Call& call, Stack* stack) {
  OpInfo& op = call.op();
  if (!op.runnable) errors::no_kernel(op.name);
  const auto device = call.has_device() ? call.device() : runtime::current_device();
  const bool view = op.execution == Execution::kView;
  if (!view)
    if (auto* capture = runtime::current_capture(device)) return run_captured(call, stack, *capture);
  const bool record = op.execution == Execution::kLaunch && call.cacheable();
  const LaunchSite* site = record ? first_site() : nullptr;  // may ask the interpreter: before any lock is taken
  count(view ? g_counters.views : record ? g_counters.planned : g_counters.synchronous);

  const std::size_t first = stack->size() - static_cast<std::size_t>(op.arguments);
  std::shared_ptr<Plan> plan;
  if (record && call.has_device()) {
    if (auto predicted = predict_plan(call, stack->data() + first, site)) {
      store_plan(op, std::move(predicted), call.key());
      Results results;
      if (launch(call, results)) {
        give_results(call, std::move(results), stack);
        return;
      }
    }
  }
  if (record) plan = begin_plan(call, stack->data() + first);

  std::optional<driver::Exclusive> exclusive;
  if (op.takes_generator) {  // draws on other streams come first
    const auto& generator = call.generator().defined() ? call.generator() : runtime::default_generator(device);
    auto& queue = runtime::current_queue(device);
    auto& neuron = runtime::neuron_generator(generator);
    std::lock_guard draw(neuron.mutex_);
    neuron.before_launch(queue);
  }
  if (!view && !driver::Queue::on_worker()) exclusive.emplace(runtime::current_queue(device));

  AliasSet aliases;
  CpuArguments convert(call, stack->data() + first, aliases);
  run_on_cpu(call, device, stack);
  bool usable = true;
  if (op.mutates) usable = !aliases.propagate(op.name.c_str());

  IValue* returns = stack->data() + (stack->size() - static_cast<std::size_t>(op.returns));
  const auto settle = [&](at::Tensor tensor, int argument) -> at::Tensor {
    if (!tensor.defined()) {
      if (plan) plan->outs.push_back(*out_plan(tensor, false));
      return tensor;
    }
    AliasSet::Kind kind;
    auto result = aliases.result(std::move(tensor), device, op.name.c_str(), &kind);
    if (!plan) return result;
    if (kind == AliasSet::Kind::kOriginal) {
      OutPlan out;
      out.kind = OutKind::kArgument;
      out.argument = static_cast<std::int8_t>(argument);
      usable &= argument >= 0;
      plan->outs.push_back(std::move(out));
    } else if (auto out = out_plan(result, kind == AliasSet::Kind::kView)) {
      usable &= argument < 0;
      plan->outs.push_back(std::move(*out));
    } else {
      usable = false;
    }
    return result;
  };
  for (int r = 0; r < op.returns; ++r) {
    const int argument = op.return_arg[static_cast<std::size_t>(r)];
    if (returns[r].isTensor()) {
      if (plan) plan->returns.push_back({});
      returns[r] = settle(std::move(returns[r]).toTensor(), argument);
    } else if (returns[r].isTensorList()) {
      auto vector = returns[r].toTensorVector();
      returns[r] = IValue();
      c10::List<at::Tensor> list;
      for (auto& tensor : vector) list.push_back(settle(std::move(tensor), -1));
      if (plan) plan->returns.push_back({static_cast<std::int32_t>(list.size())});
      returns[r] = std::move(list);
    }
  }
  if (!plan) return;
  complete(*plan, call, usable, site);
  exclusive.reset();  // evicting plans waits for all queues
  store_plan(op, std::move(plan), call.key());
}

}  // namespace neuron::eager
