#include "eager/launch.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstring>

#include "driver/queue.h"
#include "eager/captured.h"
#include "eager/execute.h"
#include "eager/fusion/adaptive.h"
#include "eager/fusion/recipe.h"
#include "eager/statistics.h"
#include "eager/threads.h"
#include "runtime/allocator.h"
#include "runtime/capture.h"
#include "runtime/generator.h"
#include "runtime/stream.h"

namespace neuron::eager {

namespace {

at::Tensor fresh_output(const OutPlan& out, c10::DeviceIndex device) {
  auto t = c10::make_intrusive<c10::TensorImpl>(c10::Storage(runtime::new_storage(out.bytes, device)),
                                                c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), out.dtype);
  if (out.contiguous)
    t->set_sizes_contiguous(out.sizes);
  else
    t->set_sizes_and_strides(out.sizes, out.strides);
  return at::Tensor(std::move(t));
}

void fill_payload(std::byte* bytes, const Call& call, const Plan& plan, const LaunchSite* site,
                  const fusion::Recipe* recipe, const Results& results) {
  auto* payload = new (bytes) OpPayload{&call.op(), &plan, site, nullptr, recipe};
  auto* tensors = payload->tensors();
  const auto impls = call.tensors();
  for (std::size_t i = 0; i < impls.size(); ++i) {
    auto* t = impls[i];
    if (C10_UNLIKELY(plan.tensors[i].on_cpu)) {
      std::memcpy(tensors[i].value, t->data(), t->itemsize());
      continue;
    }
    const auto& storage = t->unsafe_storage();
    tensors[i].stored = {storage.data(), storage.nbytes(), t->storage_offset()};
  }
  auto* blocks = payload->blocks();
  std::size_t block = 0;
  for (std::size_t i = 0; i < plan.outs.size(); ++i)
    if (plan.outs[i].kind == OutKind::kFresh)
      blocks[block++] = const_cast<void*>(results[i].unsafeGetTensorImpl()->unsafe_storage().data());
  if (plan.numbers) std::memcpy(payload->numbers(), call.numbers().data(), plan.numbers * sizeof(Number));
}

void launch_with_generator(Call& call, const Plan& plan, driver::Queue& queue, const LaunchSite* site,
                           const Results& results) {
  const auto& generator = call.generator().defined() ? call.generator() : runtime::default_generator(call.device());
  auto& neuron = runtime::neuron_generator(generator);
  std::lock_guard draw(neuron.mutex_);
  neuron.before_launch(queue);
  std::uint64_t ticket;
  {
    driver::Submission submission(queue);
    std::byte* bytes = submission.reserve(plan.payload_bytes);
    fill_payload(bytes, call, plan, site, nullptr, results);
    auto cpu = neuron.cpu();
    reinterpret_cast<OpPayload*>(bytes)->generator = cpu.unsafeReleaseGeneratorImpl();
    ticket = submission.commit(&execute, &drop_generator, call.op().name.c_str(), plan.payload_bytes);
  }
  neuron.after_launch(queue, ticket);
  wait_if_blocking(queue, ticket);
}

// Will the call be a launch, if there is a plan for it? Ops that eager execution does not launch can be captured.
bool is_launch(const Call& call, const driver::Queue& queue) {
  return call.op().execution == Execution::kLaunch || (runtime::capture_of(queue) && can_capture(call));
}

}  // namespace

void wait_if_blocking(driver::Queue& queue, std::uint64_t ticket) {
  if (C10_LIKELY(!launch_blocking()) || queue.recording()) return;
  queue.wait(ticket);
  queue.fault().rethrow_if_pending();
}

bool launch(Call& call, Results& results) {
  OpInfo& op = call.op();
  if (C10_UNLIKELY(!call.cacheable() || !call.has_device())) return false;
  if (C10_UNLIKELY(op.execution == Execution::kView)) return false;
  auto& queue = runtime::current_queue(call.device());
  if (C10_UNLIKELY(runtime::any_capture())) check_use_outside(call, queue);
  if (C10_UNLIKELY(!is_launch(call, queue))) return false;
  // The interpreter may have to be asked, so this stands before any lock is taken.
  const LaunchSite* site = launch_site();
  const std::uint64_t hash = hash_key(call.key());
  std::lock_guard lookup(op.plans);
  const Plan* plan = op.plans.find(hash, call.key());
  if (!plan || C10_UNLIKELY(!plan->usable)) return false;
  observe_host_threads();

  for (const auto& out : plan->outs) {
    if (out.kind == OutKind::kFresh)
      results.push_back(fresh_output(out, call.device()));
    else
      results.emplace_back();  // undefined, or an argument that the caller has at hand
  }
  count(g_counters.launched);
  if (auto* capture = runtime::capture_of(queue); C10_UNLIKELY(capture != nullptr)) {
    capture->keep(plan->shared_from_this());
    note_use(*capture, call.tensors(), op.name);
  }
  if (C10_UNLIKELY(op.takes_generator)) {
    launch_with_generator(call, *plan, queue, site, results);
    return true;
  }
  const fusion::Recipe* recipe =
      plan->recipes && fusion::windows_wanted() ? plan->recipes->choose(*plan, call.numbers().data()) : nullptr;
  std::uint64_t ticket;
  {
    driver::Submission submission(queue);
    std::byte* bytes = submission.reserve(plan->payload_bytes);
    fill_payload(bytes, call, *plan, site, recipe, results);
    ticket = submission.commit(&execute, nullptr, op.name.c_str(), plan->payload_bytes,
                               recipe ? &fusion::run_window : nullptr);
  }
  wait_if_blocking(queue, ticket);
  return true;
}

void run_boxed(OpInfo& op, torch::jit::Stack* stack) {
  Call call(op);
  const c10::IValue* args = stack->data() + (stack->size() - static_cast<std::size_t>(op.arguments));
  for (int i = 0; i < op.arguments; ++i) call.add(args[i], op.args[static_cast<std::size_t>(i)]);
  call.finish();

  Results results;
  if (launch(call, results))
    give_results(call, std::move(results), stack);
  else
    run_synchronously(call, stack);
}

void give_results(const Call& call, Results&& results, torch::jit::Stack* stack) {
  const OpInfo& op = call.op();
  const c10::IValue* args = stack->data() + (stack->size() - static_cast<std::size_t>(op.arguments));
  c10::SmallVector<c10::IValue, 4> arguments;
  if (op.mutates)
    for (int r = 0; r < op.returns; ++r)
      arguments.push_back(op.return_arg[static_cast<std::size_t>(r)] >= 0
                              ? args[op.return_arg[static_cast<std::size_t>(r)]]
                              : c10::IValue());
  torch::jit::drop(*stack, static_cast<std::size_t>(op.arguments));
  if (op.lists_returned) {
    // Only ops with a single return give a list: the others run synchronously (see OpInfo).
    c10::List<at::Tensor> list;
    list.reserve(results.size());
    for (auto& tensor : results) list.push_back(std::move(tensor));
    stack->emplace_back(std::move(list));
    return;
  }
  for (int r = 0; r < op.returns; ++r) {
    if (op.mutates && op.return_arg[static_cast<std::size_t>(r)] >= 0)
      stack->push_back(std::move(arguments[static_cast<std::size_t>(r)]));
    else
      stack->emplace_back(std::move(results[static_cast<std::size_t>(r)]));
  }
}

LaunchStatistics launch_statistics() {
  return {g_counters.launched.load(), g_counters.planned.load(), g_counters.synchronous.load(), g_counters.views.load(),
          g_counters.moved_outputs.load()};
}

}  // namespace neuron::eager
