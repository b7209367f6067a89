// Copies between host and device, between cores, and within a core.
#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>

#include <cstring>

#include "driver/event.h"
#include "driver/queue.h"
#include "eager/alias.h"
#include "eager/call.h"
#include "eager/captured.h"
#include "eager/kernels.h"
#include "eager/launch.h"
#include "runtime/capture.h"
#include "runtime/errors.h"
#include "runtime/host_allocator.h"
#include "runtime/stream.h"

namespace neuron::eager {

namespace {

// Host data up to this size travels within the launch, so that the caller may change it at once.
constexpr std::size_t kInline = 16 << 10;

bool on_device(const at::Tensor& t) { return is_neuron(t.unsafeGetTensorImpl()); }

// The same bytes mean the same values, and lie without gaps.
bool is_raw_copy(const at::Tensor& to, const at::Tensor& from) {
  return to.dtype() == from.dtype() && to.sizes() == from.sizes() && to.strides() == from.strides() &&
         to.is_non_overlapping_and_dense() && to.is_conj() == from.is_conj() && to.is_neg() == from.is_neg() &&
         !from._is_zerotensor();
}

void* address(const at::Tensor& t) {
  return static_cast<char*>(const_cast<void*>(t.storage().data())) +
         static_cast<std::size_t>(t.storage_offset()) * t.dtype().itemsize();
}

struct RawCopy {
  void* to;
  const void* from;
  std::size_t bytes;
  void operator()() const { std::memcpy(to, from, bytes); }
};

// Copies `bytes` behind the work of the current stream; when `wait` is false the host memory is pinned and stays.
void launch_raw(c10::DeviceIndex device, const RawCopy& copy, bool wait) {
  auto& queue = runtime::current_queue(device);
  const auto ticket = driver::submit(queue, "copy", RawCopy(copy));
  if ((!wait && !launch_blocking()) || queue.recording()) return;
  queue.wait(ticket);
  queue.fault().rethrow_if_pending();
}

[[noreturn]] void refuse_copy(runtime::Capture& capture, const at::Tensor& to, const at::Tensor& from) {
  runtime::refuse(capture, [&] { errors::capture_copies(from.device(), to.device()); });
}

// A captured copy between host and device: `host` is read, or written, by each replay.
void capture_raw(runtime::Capture& capture, const at::Tensor& to, const at::Tensor& from, const at::Tensor& host) {
  launch_raw(capture.device(), {address(to), address(from), to.nbytes()}, /*wait=*/false);
  capture.keep(std::make_shared<const c10::Storage>(host.storage()));
  note_use(capture, {to.unsafeGetTensorImpl(), from.unsafeGetTensorImpl()}, "copy");
}

void capture_host_to_device(runtime::Capture& capture, at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  if (!non_blocking || !runtime::is_pinned(from.storage().data()) || !from.is_non_overlapping_and_dense() ||
      from.is_conj() || from.is_neg())
    refuse_copy(capture, to, from);
  if (!to.numel()) return;
  if (is_raw_copy(to, from)) return capture_raw(capture, to, from, from);
  // Conversions and other layouts are the device's work.
  auto landed =
      at::empty_strided(from.sizes(), from.strides(), from.options().device(to.device()).pinned_memory(false));
  capture_raw(capture, landed, from, from);
  to.copy_(landed);
}

void host_to_device(at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  const auto device = to.device().index();
  if (auto* capture = runtime::current_capture(device)) return capture_host_to_device(*capture, to, from, non_blocking);
  if (!is_raw_copy(to, from)) {
    driver::Exclusive exclusive(runtime::current_queue(device));
    auto alias = cpu_alias(to);
    alias.copy_(from);
    return;
  }
  const std::size_t bytes = to.nbytes();
  if (!bytes) return;
  if (bytes <= kInline) {
    auto& queue = runtime::current_queue(device);
    std::uint64_t ticket;
    {
      driver::Submission submission(queue);
      auto* payload = submission.reserve(sizeof(RawCopy) + bytes);
      new (payload) RawCopy{address(to), payload + sizeof(RawCopy), bytes};
      std::memcpy(payload + sizeof(RawCopy), address(from), bytes);
      ticket = submission.commit([](driver::Launch& l) { (*reinterpret_cast<RawCopy*>(l.payload()))(); }, nullptr,
                                 "copy", sizeof(RawCopy) + bytes);
    }
    wait_if_blocking(queue, ticket);
    return;
  }
  const bool asynchronous = non_blocking && runtime::is_pinned(from.storage().data());
  launch_raw(device, {address(to), address(from), bytes}, /*wait=*/!asynchronous);
  if (asynchronous)
    runtime::record_host_use(from.storage().data(), from.storage().data_ptr().get_context(),
                             runtime::current_stream(device));
}

void device_to_host(at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  const auto device = from.device().index();
  if (auto* capture = runtime::current_capture(device)) {
    if (!non_blocking || !is_raw_copy(to, from) || !runtime::is_pinned(to.storage().data()))
      refuse_copy(*capture, to, from);
    if (to.nbytes()) capture_raw(*capture, to, from, to);
    return;
  }
  if (non_blocking && is_raw_copy(to, from) && runtime::is_pinned(to.storage().data())) {
    if (!to.nbytes()) return;
    launch_raw(device, {address(to), address(from), to.nbytes()}, /*wait=*/false);
    runtime::record_host_use(to.storage().data(), to.storage().data_ptr().get_context(),
                             runtime::current_stream(device));
    return;
  }
  driver::Exclusive exclusive(runtime::current_queue(device));
  if (is_raw_copy(to, from))
    std::memcpy(address(to), address(from), to.nbytes());
  else
    to.copy_(cpu_alias(from));
}

// Ordered behind both streams, as torch.cuda does: the copy runs on the source's stream, which first waits for the
// target's, and the target's goes on after the copy.
void core_to_core(at::Tensor& to, const at::Tensor& from) {
  auto& source = runtime::current_queue(from.device().index());
  auto& target = runtime::current_queue(to.device().index());
  for (auto* queue : {&source, &target})
    if (auto* capture = runtime::capture_of(*queue)) refuse_copy(*capture, to, from);
  driver::block_until(source, target, target.submitted());
  const auto ticket =
      driver::submit(source, "copy", [to = cpu_alias(to), from = cpu_alias(from)]() mutable { to.copy_(from); });
  driver::block_until(target, source, ticket);
  wait_if_blocking(source, ticket);
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  if (self.is_same(source)) return self;
  const bool to_device = on_device(self), from_device = on_device(source);
  if (to_device && from_device && self.device() == source.device()) {
    static OpInfo& op = op_info("aten::copy_", "");
    Call call(op);
    call.add(self);
    call.add(source);
    call.add(non_blocking);
    call.finish();
    Results results;
    if (launch(call, results)) return self;
    torch::jit::Stack stack{self, source, non_blocking};
    run_synchronously(call, &stack);
    return self;
  }
  if (C10_UNLIKELY(runtime::any_capture()))
    for (const auto& tensor : {self, source})
      if (on_device(tensor))
        check_use_outside(*tensor.unsafeGetTensorImpl(), runtime::current_queue(tensor.device().index()), "A copy");
  // Shape errors are raised here, not by the launch.
  const at::Tensor from = source.sizes() == self.sizes() ? source : source.expand_as(self);
  if (to_device && from_device)
    core_to_core(self, from);
  else if (to_device)
    host_to_device(self, from, non_blocking);
  else
    device_to_host(self, from, non_blocking);
  return self;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& target, bool non_blocking) {
  at::Tensor to = target;
  copy_(to, self, non_blocking);
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& target) {
  at::Tensor to = target;
  to.resize_(self.sizes());
  copy_(to, self, false);
  return target;
}

c10::Scalar local_scalar_dense(const at::Tensor& self) {
  auto& queue = runtime::current_queue(self.device().index());
  if (auto* capture = runtime::capture_of(queue))
    runtime::refuse(*capture, [] { errors::capture_reads_data("aten::item"); });
  if (C10_UNLIKELY(runtime::any_capture())) check_use_outside(*self.unsafeGetTensorImpl(), queue, "item()");
  queue.wait_idle();
  queue.fault().rethrow_if_pending();
  return at::_local_scalar_dense(cpu_alias(self));
}

}  // namespace

void register_copies(torch::Library& aten) {
  aten.impl("copy_", TORCH_FN(copy_));
  aten.impl("_copy_from", TORCH_FN(copy_from));
  aten.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  aten.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
}

// Conjugation and negation are resolved inside the copy; materialising them first would call the copy again.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

}  // namespace neuron::eager
