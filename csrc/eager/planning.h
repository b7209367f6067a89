#pragma once
// Making launch plans: from a run, or from what ATen's iterators say of one.
#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

#include "eager/call.h"

namespace neuron::eager {

struct LaunchSite;

// What is known before the outputs are.
std::shared_ptr<Plan> begin_plan(const Call& call, const c10::IValue* args);

// The planned output for a result of a run; nothing when it cannot be promised for the next call.
std::optional<OutPlan> out_plan(const at::Tensor& tensor, bool is_view);

// Once the outputs are in. `usable`: the next call may rely on them.
void complete(Plan& plan, const Call& call, bool usable, const LaunchSite* site);

void store_plan(OpInfo& op, std::shared_ptr<Plan> plan, const Key& key);

// The plan of a call that was never run, for ops that windows can fuse; null when a run is needed to know.
std::shared_ptr<Plan> predict_plan(const Call& call, const c10::IValue* args, const LaunchSite* site);

}  // namespace neuron::eager
