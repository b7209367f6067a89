// Making launch plans: from a run, or from what ATen's iterators say of one.
#include "eager/planning.h"

#include <ATen/TensorIterator.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>

#include "driver/machine.h"
#include "eager/execute.h"
#include "eager/fusion/builder.h"
#include "eager/launch_settings.h"
#include "eager/low_precision.h"

namespace neuron::eager {

using c10::IValue;

namespace {

TensorMeta meta_of(const Call& call, std::size_t i) {
  auto* t = call.tensors()[i];
  TensorMeta meta;
  meta.sizes = t->sizes();
  meta.strides = t->strides();
  meta.dtype = t->dtype();
  meta.on_cpu = !is_neuron(t);
  meta.wrapped = t->is_wrapped_number();
  meta.conj = t->is_conj();
  meta.neg = t->is_neg();
  if (call.op().mutates) meta.shares_storage_with = shares_storage_with(call.tensors(), i);
  return meta;
}

ArgPlan arg_plan(const IValue& value, const ArgInfo& info) {
  ArgPlan plan;
  const auto present = [&](bool yes) {
    plan.present.push_back(yes);
    ++plan.count;
  };
  if (value.isTensor()) {
    plan.kind = is_undefined(value.unsafeToTensorImpl()) ? ArgKind::kNoTensor : ArgKind::kTensor;
  } else if (info.generator) {
    plan.kind = ArgKind::kGenerator;
  } else if (value.isTensorList()) {
    plan.kind = ArgKind::kTensorList;
    for (const auto& element : value.toListRef()) present(!is_undefined(element.unsafeToTensorImpl()));
  } else if (value.isOptionalTensorList()) {
    plan.kind = ArgKind::kOptionalTensorList;
    for (const auto& element : value.toListRef())
      present(!element.isNone() && !is_undefined(element.unsafeToTensorImpl()));
  } else if (info.number && value.isScalar()) {
    plan.kind = ArgKind::kNumber;
  } else if (info.number && value.isList() && !value.isDoubleList() && !value.isIntList() && !value.isBoolList()) {
    plan.kind = ArgKind::kNumberList;
    plan.count = static_cast<std::uint16_t>(value.toListRef().size());
  } else if (value.isDevice()) {
    plan.constant = c10::Device(c10::DeviceType::CPU);
  } else {
    plan.constant = value;
  }
  return plan;
}

}  // namespace

std::shared_ptr<Plan> begin_plan(const Call& call, const IValue* args) {
  auto plan = std::make_shared<Plan>();
  plan->key.assign(call.key().begin(), call.key().end());
  for (std::size_t i = 0; i < call.tensors().size(); ++i) plan->tensors.push_back(meta_of(call, i));
  for (std::size_t i = 0; i < call.op().args.size(); ++i) plan->args.push_back(arg_plan(args[i], call.op().args[i]));
  plan->numbers = static_cast<std::uint32_t>(call.numbers().size());
  plan->kernel = low_precision_kernel(call.op(), call);
  return plan;
}

// The planned output for a result of the synchronous run; nothing when it cannot be promised for the next call.
std::optional<OutPlan> out_plan(const at::Tensor& tensor, bool is_view) {
  OutPlan out;
  if (!tensor.defined()) {
    out.kind = OutKind::kUndefined;
    return out;
  }
  const auto* t = tensor.unsafeGetTensorImpl();
  if (is_view || t->storage_offset() != 0 || t->is_conj() || t->is_neg() ||
      t->key_set().has(c10::DispatchKey::ZeroTensor))
    return std::nullopt;
  out.sizes = t->sizes();
  out.strides = t->strides();
  out.dtype = t->dtype();
  out.bytes = t->unsafe_storage().nbytes();
  // set_sizes_contiguous() must give just these strides, which is more than being contiguous (sizes of 0 and 1).
  c10::DimVector contiguous(out.sizes.size());
  std::int64_t stride = 1;
  for (std::size_t d = out.sizes.size(); d-- > 0;) {
    contiguous[d] = stride;
    stride *= std::max<std::int64_t>(out.sizes[d], 1);
  }
  out.contiguous = contiguous == out.strides;
  return out;
}

void complete(Plan& plan, const Call& call, bool usable, const LaunchSite* site) {
  for (const auto& out : plan.outs) plan.fresh += out.kind == OutKind::kFresh;
  plan.payload_bytes = static_cast<std::uint32_t>(OpPayload::bytes(plan));
  plan.usable = usable && plan.payload_bytes <= driver::Queue::kMaxPayload &&
                plan.returns.size() == static_cast<std::size_t>(call.op().returns);
  plan.recipes = fusion::Recipes::make(call.op(), plan, call.numbers().data());
  plan.first_site = site;
}

void store_plan(OpInfo& op, std::shared_ptr<Plan> plan, const Key& key) {
  const std::uint64_t hash = hash_key(key);
  std::lock_guard lock(op.plans);
  if (op.plans.find(hash, key)) return;
  if (op.plans.full()) {
    driver::Machine::get().wait_idle();  // launches hold pointers to plans
    op.plans.clear();
  }
  op.plans.insert(hash, std::move(plan));
}

namespace {

// A tensor of the same metadata without memory.
at::Tensor as_meta(const TensorMeta& meta) {
  auto t = at::empty_strided(meta.sizes, meta.strides, at::TensorOptions(c10::kMeta).dtype(meta.dtype));
  if (meta.wrapped) t.unsafeGetTensorImpl()->set_wrapped_number(true);
  return t;
}

c10::ScalarType predicted_type(fusion::Prediction prediction, const fusion::Builder& b, std::size_t tensors) {
  using fusion::Prediction;
  switch (prediction) {
    case Prediction::kBool:
      return c10::ScalarType::Bool;
    case Prediction::kFirst:
      return b.type(0);
    case Prediction::kWithNumber:
      return b.result_type({0}, {1});
    case Prediction::kChosen:
      return b.result_type({1, 2});
    default:
      break;
  }
  const auto common = tensors == 1   ? b.result_type({0})
                      : tensors == 2 ? b.result_type({0, 1})
                                     : b.result_type({0, 1, 2});
  return prediction == Prediction::kFloating && !c10::isFloatingType(common) ? fusion::Builder::default_type() : common;
}

// Sizes, strides and type of the one output, by the rules that ATen's own pointwise kernels follow.
std::optional<OutPlan> predicted_out(const Plan& plan, c10::ScalarType type) {
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(false).check_all_same_dtype(false).declare_static_dtype_and_device(type, c10::kMeta);
  config.add_owned_output(at::Tensor());
  for (const auto& meta : plan.tensors) config.add_owned_const_input(as_meta(meta));
  return out_plan(config.build().output(), false);
}

}  // namespace

std::shared_ptr<Plan> predict_plan(const Call& call, const IValue* args, const LaunchSite* site) {
  const OpInfo& op = call.op();
  const auto* fusable = fusion::find_fusable(op.name);
  if (!fusable || fusable->prediction == fusion::Prediction::kNone || call.tensors().size() > 3) return nullptr;
  // Whether arguments overlap in memory decides if the call is legal; only a run checks that.
  if (op.mutates)
    for (std::size_t i = 1; i < call.tensors().size(); ++i)
      if (shares_storage_with(call.tensors(), i) >= 0) return nullptr;
  auto plan = begin_plan(call, args);
  for (const auto& meta : plan->tensors)
    if (meta.conj || meta.neg || !fusion::engine_dtype(meta.dtype.toScalarType())) return nullptr;
  plan->returns.push_back({});
  try {
    const fusion::Builder builder(op, *plan, call.numbers().data());
    const auto type = predicted_type(fusable->prediction, builder, plan->tensors.size());
    auto out = predicted_out(*plan, type);
    if (!out || out->kind != OutKind::kFresh) return nullptr;
    // Strides of dimensions of size 1 depend on operands that are not tensors here (numbers), so a run has to tell.
    if (std::find(out->sizes.begin(), out->sizes.end(), 1) != out->sizes.end() && !op.mutates) return nullptr;
    if (op.mutates) {
      const auto self = builder.type(0);
      if (out->sizes != plan->tensors[0].sizes || plan->tensors[0].on_cpu || !c10::canCast(type, self)) return nullptr;
      out.emplace();
      out->kind = OutKind::kArgument;
      out->argument = 0;
    }
    plan->outs.push_back(std::move(*out));
  } catch (const c10::Error&) {
    return nullptr;  // the run that follows raises it, in the words of the CPU's kernel
  } catch (const fusion::Builder::Unfusable&) {
    return nullptr;
  }
  complete(*plan, call, true, site);
  const bool fusable_now = plan->recipes && plan->recipes->choose(*plan, call.numbers().data());
  return fusable_now ? std::move(plan) : nullptr;
}

}  // namespace neuron::eager
