#include "eager/captured.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <cstdlib>

#include "eager/alias.h"
#include "eager/launch.h"
#include "eager/low_precision.h"
#include "eager/planning.h"
#include "eager/statistics.h"
#include "runtime/errors.h"

namespace neuron::eager {

namespace {

using c10::IValue;
using torch::jit::Stack;

// Tensors of the CPU that look like those of a call - sizes, strides, shared storages - with values that most kernels
// accept: ones, and zeros where they may be indices.
class StandIns {
 public:
  at::Tensor of(const at::Tensor& tensor) {
    auto* t = tensor.unsafeGetTensorImpl();
    if (!tensor.defined() || !is_neuron(t)) return tensor;
    const auto* storage = t->unsafe_storage().unsafeGetStorageImpl();
    for (const auto& pair : pairs_)
      if (pair.original.unsafeGetTensorImpl() == t) return pair.stand_in;
    auto stand_in = cpu_alias(tensor);
    const Memory& memory = memory_of(storage);
    stand_in.unsafeGetTensorImpl()->set_storage_keep_dtype(c10::Storage(memory.cpu));
    if (t->numel() && at::isFloatingType(stand_in.scalar_type()) && !memory.shared) fill(stand_in);
    pairs_.push_back({tensor, stand_in});
    return stand_in;
  }

  // Has the kernel given one other sizes or another storage?
  bool changed() const {
    for (const auto& [original, stand_in] : pairs_) {
      const auto* a = original.unsafeGetTensorImpl();
      const auto* b = stand_in.unsafeGetTensorImpl();
      if (!a->sizes().equals(b->sizes()) || !a->strides().equals(b->strides()) || a->is_conj() != b->is_conj() ||
          a->is_neg() != b->is_neg() || a->storage_offset() != b->storage_offset() ||
          b->unsafe_storage().nbytes() != a->unsafe_storage().nbytes())
        return true;
    }
    return false;
  }
  bool has(const at::Tensor& result) const {
    for (const auto& pair : pairs_)
      if (pair.stand_in.unsafeGetTensorImpl() == result.unsafeGetTensorImpl()) return true;
    return false;
  }
  bool is_view(const at::Tensor& result) const {
    for (const auto& memory : memories_)
      if (memory.cpu.get() == result.storage().unsafeGetStorageImpl()) return true;
    return false;
  }

 private:
  struct Memory {
    const c10::StorageImpl* original;
    c10::intrusive_ptr<c10::StorageImpl> cpu;
    std::unique_ptr<void, decltype(&std::free)> bytes;
    bool shared = false;
  };
  struct Pair {
    at::Tensor original, stand_in;
  };

  static void fill(at::Tensor t) {
    for (std::int64_t d = 0; d < t.dim(); ++d)
      if (!t.stride(d)) t = t.narrow(d, 0, 1);
    t.fill_(1);
  }

  const Memory& memory_of(const c10::StorageImpl* original) {
    for (auto& memory : memories_)
      if (memory.original == original) {
        memory.shared = true;  // whoever came first has filled it
        return memory;
      }
    // Pages that no kernel touches cost nothing.
    std::unique_ptr<void, decltype(&std::free)> bytes(std::calloc(std::max<std::size_t>(original->nbytes(), 1), 1),
                                                      &std::free);
    TORCH_CHECK(bytes, "out of host memory for the trial of a captured call");
    auto cpu = cpu_storage(bytes.get(), original->nbytes());
    memories_.push_back({original, std::move(cpu), std::move(bytes)});
    return memories_.back();
  }

  std::vector<Memory> memories_;
  std::vector<Pair> pairs_;
};

IValue stand_in(const IValue& value, const ArgInfo& info, StandIns& stand_ins) {
  if (value.isTensor()) return stand_ins.of(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const auto& element : value.toListRef()) list.push_back(stand_ins.of(element.toTensor()));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& element : value.toListRef())
      list.push_back(element.isNone() ? std::nullopt : std::optional(stand_ins.of(element.toTensor())));
    return list;
  }
  if (value.isDevice() && value.toDevice().type() == runtime::kNeuron) return c10::Device(c10::DeviceType::CPU);
  if (info.generator) return at::detail::createCPUGenerator();  // the device's own has drawn nothing
  return value;
}

// Plans the call by what its kernel makes of stand-ins.
std::shared_ptr<Plan> plan_by_trial(const Call& call, const IValue* args, const LaunchSite* site,
                                    runtime::Capture& capture) {
  const OpInfo& op = call.op();
  auto plan = begin_plan(call, args);
  StandIns stand_ins;
  Stack stack;
  try {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    for (std::size_t i = 0; i < op.args.size(); ++i) stack.push_back(stand_in(args[i], op.args[i], stand_ins));
    if (plan->kernel)
      plan->kernel(&stack);
    else
      op.handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  } catch (const c10::Error& error) {
    runtime::refuse(capture, [&] { errors::capture_first_call(op.name, error.what_without_backtrace()); });
  }
  bool usable = !stand_ins.changed();
  const auto plan_result = [&](const at::Tensor& result, int argument) {
    if (!result.defined()) {
      plan->outs.push_back(*out_plan(result, false));
    } else if (stand_ins.has(result)) {
      OutPlan out;
      out.kind = OutKind::kArgument;
      out.argument = static_cast<std::int8_t>(argument);
      usable &= argument >= 0;
      plan->outs.push_back(std::move(out));
    } else if (auto out = out_plan(result, stand_ins.is_view(result))) {
      usable &= argument < 0;
      plan->outs.push_back(std::move(*out));
    } else {
      usable = false;
    }
  };
  for (int r = 0; r < op.returns; ++r) {
    const IValue& value = stack[static_cast<std::size_t>(r)];
    if (value.isTensor()) {
      plan->returns.push_back({});
      plan_result(value.toTensor(), op.return_arg[static_cast<std::size_t>(r)]);
    } else if (value.isTensorList()) {
      const auto list = value.toTensorVector();
      for (const auto& tensor : list) plan_result(tensor, -1);
      plan->returns.push_back({static_cast<std::int32_t>(list.size())});
    }
  }
  complete(*plan, call, usable, site);
  return plan;
}

// Masks among the indices: how many elements are meant depends on them.
bool has_mask(const Call& call) {
  const auto tensors = call.tensors();
  const std::size_t values = call.op().returns && call.op().name.find("index_put") != std::string::npos ? 1 : 0;
  for (std::size_t i = 1; i + values < tensors.size(); ++i) {
    const auto type = c10::typeMetaToScalarType(tensors[i]->dtype());
    if (type == c10::ScalarType::Bool || type == c10::ScalarType::Byte) return true;
  }
  return false;
}

}  // namespace

bool can_capture(const Call& call) {
  const OpInfo& op = call.op();
  if (!call.cacheable() || !call.has_device()) return false;
  if (op.execution == Execution::kLaunch) return true;
  return op.mixed_devices && op.recordable && !has_mask(call);
}

void run_captured(Call& call, Stack* stack, runtime::Capture& capture) {
  OpInfo& op = call.op();
  if (!can_capture(call)) {
    const bool ours = op.name.starts_with("aten::") || op.name.starts_with("neuron::");
    runtime::refuse(capture,
                    [&] { ours ? errors::capture_reads_data(op.name) : errors::capture_runs_on_host(op.name); });
  }
  const IValue* args = stack->data() + (stack->size() - static_cast<std::size_t>(op.arguments));
  const LaunchSite* site = first_site();
  count(g_counters.planned);
  auto plan = predict_plan(call, args, site);
  if (!plan) plan = plan_by_trial(call, args, site, capture);
  store_plan(op, std::move(plan), call.key());
  Results results;
  if (!launch(call, results)) runtime::refuse(capture, [&] { errors::capture_changes_arguments(op.name); });
  give_results(call, std::move(results), stack);
}

void note_use(runtime::Capture& capture, c10::ArrayRef<c10::TensorImpl*> tensors, const std::string& op) {
  for (auto* t : tensors)
    if (is_neuron(t) && t->has_storage()) capture.use(t->unsafe_storage().unsafeGetStorageImpl(), op);
}

void check_use_outside(const c10::TensorImpl& tensor, const driver::Queue& queue, std::string_view what) {
  if (!is_neuron(&tensor) || !tensor.has_storage() || runtime::capture_of(queue)) return;
  if (auto* capture = runtime::capture_owning(tensor.unsafe_storage().data()))
    runtime::refuse(*capture, [&] { errors::capture_used_outside(what); });
}

void check_use_outside(const Call& call, const driver::Queue& queue) {
  for (auto* t : call.tensors()) check_use_outside(*t, queue, call.op().name);
}

}  // namespace neuron::eager
