#include "eager/execute.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/stack.h>

#include "eager/alias.h"
#include "eager/describe.h"
#include "eager/launch_settings.h"
#include "eager/placement.h"
#include "eager/settle.h"
#include "eager/threads.h"

namespace neuron::eager {

namespace {

struct Worker {
  AliasPool pool;
  torch::jit::Stack stack;
  std::vector<Expected> expected;
};

Worker& worker() {
  thread_local auto* worker = new Worker;  // as long-lived as its thread, which is never joined before exit
  return *worker;
}

// Kernels below autograd and autocast, as they run under the device's own dispatch key.
void prepare_worker() {
  thread_local at::AutoDispatchBelowADInplaceOrView below_autograd;
  thread_local c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  (void)below_autograd;
  (void)no_autocast;
}

const bool g_prologue_set = (driver::Queue::set_worker_prologue(&prepare_worker), true);

void push_arguments(OpPayload& payload, Worker& w) {
  const Plan& plan = *payload.plan;
  std::size_t next_tensor = 0, next_number = 0;
  const auto tensor = [&] {
    const std::size_t i = next_tensor++;
    const auto& meta = plan.tensors[i];
    const auto& sent = payload.tensors()[i];
    if (C10_UNLIKELY(meta.on_cpu)) return w.pool.get(i, meta, sent.value, meta.dtype.itemsize(), 0);
    return w.pool.get(i, meta, sent.stored.storage, sent.stored.bytes, sent.stored.offset);
  };
  for (const auto& arg : plan.args) {
    switch (arg.kind) {
      case ArgKind::kTensor:
        w.stack.emplace_back(tensor());
        break;
      case ArgKind::kNoTensor:
        w.stack.emplace_back(at::Tensor());
        break;
      case ArgKind::kNumber:
        w.stack.push_back(payload.numbers()[next_number++].ivalue());
        break;
      case ArgKind::kConstant:
        w.stack.push_back(arg.constant);
        break;
      case ArgKind::kTensorList: {
        c10::List<at::Tensor> list;
        list.reserve(arg.count);
        for (int i = 0; i < arg.count; ++i)
          list.push_back(arg.present[static_cast<std::size_t>(i)] ? tensor() : at::Tensor());
        w.stack.emplace_back(std::move(list));
        break;
      }
      case ArgKind::kOptionalTensorList: {
        c10::List<std::optional<at::Tensor>> list;
        list.reserve(arg.count);
        for (int i = 0; i < arg.count; ++i)
          list.push_back(arg.present[static_cast<std::size_t>(i)] ? std::optional(tensor()) : std::nullopt);
        w.stack.emplace_back(std::move(list));
        break;
      }
      case ArgKind::kNumberList: {
        c10::List<c10::Scalar> list;
        list.reserve(arg.count);
        for (int i = 0; i < arg.count; ++i) list.push_back(payload.numbers()[next_number++].ivalue().toScalar());
        w.stack.emplace_back(std::move(list));
        break;
      }
      case ArgKind::kGenerator:
        w.stack.emplace_back(at::Generator(c10::intrusive_ptr<c10::GeneratorImpl>::reclaim_copy(payload.generator)));
        break;
    }
  }
}

void settle_outputs(OpPayload& payload, Worker& w) {
  const Plan& plan = *payload.plan;
  Settlement settlement;
  std::size_t next_out = 0, next_block = 0;
  const auto one = [&](const at::Tensor& tensor) {
    const auto& out = plan.outs[next_out++];
    if (out.kind == OutKind::kFresh)
      settlement.add(tensor, {payload.blocks()[next_block++], out.sizes, out.strides, out.dtype}, payload.op->name);
  };
  for (std::size_t r = 0; r < plan.returns.size(); ++r) {
    const auto& value = w.stack[r];
    if (C10_LIKELY(plan.returns[r].list < 0)) {
      one(value.toTensor());
      continue;
    }
    const auto list = value.toListRef();
    TORCH_INTERNAL_ASSERT(static_cast<std::int32_t>(list.size()) == plan.returns[r].list);
    for (const auto& element : list) one(element.toTensor());
  }
  settlement.finish();
}

std::string describe(OpPayload& payload, std::string_view error) {
  std::vector<at::Tensor> tensors;
  AliasPool pool;  // the worker's own may have been let go of by the kernel
  for (std::size_t i = 0; i < payload.plan->tensors.size(); ++i) {
    const auto& meta = payload.plan->tensors[i];
    const auto& sent = payload.tensors()[i];
    tensors.push_back(meta.on_cpu ? pool.get(i, meta, sent.value, meta.dtype.itemsize(), 0)
                                  : pool.get(i, meta, sent.stored.storage, sent.stored.bytes, sent.stored.offset));
  }
  return describe_launch(describe_call(payload.op->name, tensors, error), payload.site);
}

}  // namespace

void execute(driver::Launch& launch) {
  auto& payload = *reinterpret_cast<OpPayload*>(launch.payload());
  Worker& w = worker();
  struct Tidy {
    Worker& w;
    std::size_t tensors;
    ~Tidy() {
      w.stack.clear();
      w.pool.release(tensors);
    }
  } tidy{w, payload.plan->tensors.size()};
  apply_host_threads();
  try {
    push_arguments(payload, w);
    {
      w.expected.clear();
      std::size_t block = 0;
      for (const auto& out : payload.plan->outs)
        if (out.kind == OutKind::kFresh) w.expected.push_back({payload.blocks()[block++], out.bytes, out.bytes == 0});
      PlacementScope placement(w.expected.data(), w.expected.size());
      if (payload.plan->kernel)
        payload.plan->kernel(&w.stack);
      else
        payload.op->handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &w.stack);
    }
    settle_outputs(payload, w);
  } catch (c10::Error& error) {  // keeps its class: IndexError stays IndexError
    error.add_context(describe(payload, error.what_without_backtrace()));
    throw;
  } catch (const std::exception& error) {
    C10_THROW_ERROR(Error, c10::str(error.what(), "\n", describe(payload, error.what())));
  }
}

void drop_generator(driver::Launch& launch) {
  auto& payload = *reinterpret_cast<OpPayload*>(launch.payload());
  c10::intrusive_ptr<c10::GeneratorImpl>::reclaim(payload.generator);
}

}  // namespace neuron::eager
