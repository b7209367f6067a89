#include "eager/op_info.h"

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>

namespace neuron::eager {

namespace {

std::string full_name(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

// Indexing takes CPU index tensors, and CPU values of one element, beside a device tensor.
bool allows_mixed_devices(std::string_view name) {
  return name == "aten::index.Tensor" || name == "aten::index.Tensor_out" || name == "aten::index_put_" ||
         name == "aten::_index_put_impl_" || name == "aten::_unsafe_index.Tensor" ||
         name == "aten::_unsafe_index_put" || name == "aten::index_put" || name == "aten::index_put.out";
}

// Ops whose tags do not say that their outputs depend on data, and views that their schema does not declare.
Execution undeclared_execution(std::string_view name, Execution declared) {
  if (name == "aten::_unsafe_view") return Execution::kView;
  return declared;
}

// Its tags say that it draws, but its kernel for the CPU has no dropout.
bool draws_nothing(std::string_view name) { return name == "aten::_scaled_dot_product_flash_attention_for_cpu"; }

// Kernels of other namespaces may be Python functions, which must not run on a worker thread: the host may hold the
// interpreter's lock while it waits for the worker. Those of aten and of ours are C++.
bool may_run_on_worker(std::string_view name) { return name.starts_with("aten::") || name.starts_with("neuron::"); }

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

}  // namespace

OpInfo::OpInfo(c10::OperatorHandle op) : handle(op), name(full_name(op.operator_name())), arguments(0), returns(0) {
  const auto& schema = op.schema();
  arguments = static_cast<int>(schema.arguments().size());
  returns = static_cast<int>(schema.returns().size());
  runnable = op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU);
  mixed_devices = allows_mixed_devices(name);

  bool takes_tensor = false, returns_view = false, synchronous = !may_run_on_worker(name);
  for (const auto& argument : schema.arguments()) {
    const std::string type = argument.type()->str();
    ArgInfo info;
    info.written = argument.alias_info() && argument.alias_info()->isWrite();
    info.generator = contains(type, "Generator");
    info.number = argument.type()->kind() == c10::TypeKind::NumberType || contains(type, "Scalar") ||
                  contains(type, "number") || contains(type, "float");
    mutates |= info.written;
    numbers_in_key |= info.written && argument.kwarg_only();
    takes_generator |= info.generator;
    takes_tensor |= contains(type, "Tensor");
    synchronous |= contains(type, "Storage") || contains(type, "Stream");
    args.push_back(info);
  }
  numbers_in_key |= !takes_tensor;
  for (const auto& result : schema.returns()) {
    int argument = -1;
    if (const auto* alias = result.alias_info()) {
      if (alias->isWrite()) {
        for (int i = 0; i < arguments && argument < 0; ++i) {
          const auto* candidate = schema.arguments()[i].alias_info();
          if (candidate && *candidate == *alias) argument = i;
        }
      } else {
        returns_view = true;
      }
    }
    return_arg.push_back(static_cast<std::int8_t>(argument));
    const std::string type = result.type()->str();
    lists_returned |= type != "Tensor";
    synchronous |= type != "Tensor" && type != "Tensor[]" && type != "List[Tensor]";
  }
  recordable = runnable && !synchronous;
  for (const auto tag : op.getTags()) {
    // Indexing has the tag for the sake of masks.
    recordable &= tag != at::Tag::data_dependent_output && (tag != at::Tag::dynamic_output_shape || mixed_devices);
    synchronous |= tag == at::Tag::data_dependent_output || tag == at::Tag::dynamic_output_shape;
    draws_unseeded |= tag == at::Tag::nondeterministic_seeded && !takes_generator && !draws_nothing(name);
  }
  // No op that could be launched returns lists beside other results; then the launch path need not know such.
  synchronous |= mixed_devices || draws_unseeded || (lists_returned && returns > 1);
  if (synchronous)
    execution = Execution::kSynchronous;
  else if (returns_view && !mutates)
    execution = Execution::kView;
  execution = undeclared_execution(name, execution);
}

OpInfo& op_info(const c10::OperatorHandle& handle) {
  // Read by every boxed call, written once per op: an open-addressed table whose slots are only ever filled.
  constexpr std::size_t kSlots = 1 << 14;  // several times the number of ops that torch registers
  static std::array<std::atomic<OpInfo*>, kSlots> slots{};
  static std::mutex mutex;
  const std::size_t hash = std::hash<c10::OperatorHandle>()(handle) * 0x9E3779B97F4A7C15ull >> 20;
  for (std::size_t probe = 0; probe < kSlots; ++probe) {
    auto& slot = slots[(hash + probe) % kSlots];
    OpInfo* info = slot.load(std::memory_order_acquire);
    if (info && info->handle == handle) return *info;
    if (info) continue;
    std::lock_guard lock(mutex);
    info = slot.load(std::memory_order_acquire);
    if (!info) {
      info = new OpInfo(handle);
      slot.store(info, std::memory_order_release);
    }
    if (info->handle == handle) return *info;
  }
  TORCH_INTERNAL_ASSERT(false, "torchneuron: the op table is full");
}

OpInfo& op_info(const char* name, const char* overload) {
  return op_info(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload));
}

}  // namespace neuron::eager
