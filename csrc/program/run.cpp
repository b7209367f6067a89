#include "program/run.h"

#include <c10/core/CPUAllocator.h>

#include <cstring>

#include "driver/queue.h"
#include "eager/call.h"
#include "eager/captured.h"
#include "eager/launch.h"
#include "eager/statistics.h"
#include "eager/threads.h"
#include "program/frame.h"
#include "runtime/allocator.h"
#include "runtime/errors.h"
#include "runtime/generator.h"
#include "runtime/stream.h"

namespace neuron::program {

namespace {

struct Counters {
  std::atomic<std::int64_t> runs{0}, steps{0};
} g_counters;

constexpr std::size_t kValueBytes = 16;  // the largest element of any dtype

// Followed by the values of CPU tensors and, unless there are too many, by the addresses.
struct Payload {
  Binding* binding;
  const eager::LaunchSite* site;
  c10::GeneratorImpl* generator;  // owned; null when the program draws nothing
  void** bases;
  bool bases_on_heap;

  std::byte* values() { return reinterpret_cast<std::byte*>(this + 1); }
};
static_assert(sizeof(Payload) % alignof(void*) == 0);

void execute(driver::Launch& launch) {
  auto& payload = *reinterpret_cast<Payload*>(launch.payload());
  Binding& binding = *payload.binding;
  eager::apply_host_threads();
  at::Generator generator;
  if (payload.generator)
    generator = at::Generator(c10::intrusive_ptr<c10::GeneratorImpl>::reclaim_copy(payload.generator));
  auto frame = binding.program().take_frame(binding.id());
  frame->prepare(binding, payload.bases, generator);
  frame->run(payload.site);
  // After an error its objects may be in any state, so it is not used again.
  binding.program().give_back(std::move(frame));
  eager::count(g_counters.runs);
  eager::count(g_counters.steps, static_cast<std::int64_t>(binding.program()->steps.size()));
}

void drop(driver::Launch& launch) {
  auto& payload = *reinterpret_cast<Payload*>(launch.payload());
  if (payload.generator) c10::intrusive_ptr<c10::GeneratorImpl>::reclaim(payload.generator);
  if (payload.bases_on_heap) delete[] payload.bases;
  payload.binding->in_flight.fetch_sub(1, std::memory_order_release);  // the last touch: it may be destroyed now
}

void* first_element(const c10::TensorImpl* t) {
  return static_cast<char*>(const_cast<void*>(t->unsafe_storage().data())) +
         t->storage_offset() * static_cast<std::int64_t>(t->itemsize());
}

}  // namespace

Run::Run(Binding& binding, c10::ArrayRef<c10::TensorImpl*> arguments)
    : binding_(binding), description_(binding.program().description()), arguments_(arguments) {
  if (arguments.size() != description_.arguments.size())
    errors::program_argument(description_.name, c10::str("takes ", description_.arguments.size(),
                                                         " arguments, but was given ", arguments.size()));
  for (std::size_t i = 0; i < arguments.size(); ++i)
    if (description_.arguments[i].kind != Argument::Kind::kIgnored) check(i);
  owned_.resize(arguments.size(), false);
  site_ = eager::launch_site();  // may ask the interpreter: before any lock is taken
}

void Run::check(std::size_t i) const {
  const auto* t = arguments_[i];
  const Argument& expected = description_.arguments[i];
  const bool on_device = expected.kind == Argument::Kind::kDevice;
  const auto fail = [&](auto&&... what) { errors::program_argument(description_.name, c10::str(what...)); };
  if (C10_UNLIKELY(!t)) fail("takes a tensor as argument ", i, ", but was given something else");
  if (C10_UNLIKELY(on_device ? !eager::is_neuron(t) || t->device().index() != description_.device
                             : t->device().type() != c10::DeviceType::CPU))
    fail("takes argument ", i, " on ", on_device ? c10::Device(runtime::kNeuron, description_.device) : c10::kCPU,
         ", but was given a tensor on ", t->device());
  if (C10_UNLIKELY(!t->has_storage() || t->dtype() != c10::scalarTypeToTypeMeta(expected.dtype)))
    fail("takes argument ", i, " of dtype ", expected.dtype, ", but was given one of dtype ",
         c10::typeMetaToScalarType(t->dtype()));
  if (C10_UNLIKELY(!on_device && !description_.synchronous && t->numel() != 1))
    fail("takes one number as argument ", i, ", but was given a CPU tensor of sizes ", t->sizes());
  const auto before = t->storage_offset() * static_cast<std::int64_t>(t->itemsize());
  const auto low = binding_.reaches_before(i), high = binding_.reaches_to(i);
  if (C10_UNLIKELY(low < high &&
                   (before + low < 0 || before + high > static_cast<std::int64_t>(t->unsafe_storage().nbytes()))))
    fail("reads ", high, " bytes of argument ", i, ", but was given a tensor of sizes ", t->sizes(), " and strides ",
         t->strides(), " in a storage of ", t->unsafe_storage().nbytes(), " bytes");
}

void Run::announce_release() const {
  auto& queue = runtime::current_queue(description_.device);
  queue.observe_all();
}

void Run::take_memory() {
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    const bool ignored = description_.arguments[i].kind == Argument::Kind::kIgnored;
    argument_bases_.push_back(ignored ? nullptr : first_element(arguments_[i]));
  }
  fresh_.resize(binding_.program().fresh_outputs());
  block_bases_.resize(binding_.program().blocks());
  std::vector<c10::DataPtr> blocks(binding_.program().blocks());
  if (binding_.arena_bytes()) arena_ = runtime::allocate(binding_.arena_bytes(), description_.device);
  for (const MemoryEvent& event : binding_.program().memory_events()) {
    if (event.kind == MemoryEvent::Kind::kReleaseArgument) {
      if (owned_[event.index]) arguments_[event.index]->unsafe_storage().unsafeGetStorageImpl()->reset();
      continue;
    }
    const Buffer& buffer = description_.buffers[event.index];
    const auto bytes = static_cast<std::size_t>(binding_.value(buffer.value));
    if (event.kind == MemoryEvent::Kind::kReleaseBlock) {
      blocks[buffer.index].clear();
    } else if (buffer.kind == Buffer::Kind::kBlock) {
      blocks[buffer.index] = runtime::allocate(bytes, description_.device);
      block_bases_[buffer.index] = blocks[buffer.index].get();
    } else if (buffer.kind == Buffer::Kind::kOutput) {
      fresh_[buffer.index] = runtime::new_storage(bytes, description_.device);
    } else {
      fresh_[buffer.index] = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                                   c10::GetCPUAllocator(), /*resizable=*/true);
    }
  }
}

std::uint64_t Run::submit(driver::Queue& queue, c10::GeneratorImpl* generator) {
  const std::size_t values = binding_.program().host_values() * kValueBytes;
  const auto& program = binding_.program();
  const std::size_t addresses = arguments_.size() + program.fresh_outputs() + 1 + program.blocks();
  std::size_t bytes = sizeof(Payload) + values;
  const bool on_heap = bytes + addresses * sizeof(void*) > driver::Queue::kMaxPayload;
  if (!on_heap) bytes += addresses * sizeof(void*);

  driver::Submission submission(queue);
  if (program.releases_early()) take_memory();  // others may get what is given back, and must launch behind this run
  auto* payload = new (submission.reserve(bytes)) Payload{&binding_, site_, generator, nullptr, on_heap};
  payload->bases = on_heap ? new void*[addresses] : reinterpret_cast<void**>(payload->values() + values);
  auto** base = payload->bases;
  auto* value = payload->values();
  for (std::size_t i = 0; i < arguments_.size(); ++i, ++base) {
    const auto kind = description_.arguments[i].kind;
    if (kind == Argument::Kind::kIgnored) {
      *base = nullptr;
    } else if (kind == Argument::Kind::kHost && !description_.synchronous) {
      std::memcpy(value, first_element(arguments_[i]), arguments_[i]->itemsize());
      *base = value;
      value += kValueBytes;
    } else {
      *base = argument_bases_[i];
    }
  }
  for (const auto& storage : fresh_) *base++ = const_cast<void*>(storage->data());
  *base++ = arena_.get();
  for (void* block : block_bases_) *base++ = block;
  binding_.in_flight.fetch_add(1, std::memory_order_relaxed);
  return submission.commit(&execute, &drop, description_.name.c_str(), bytes);
}

void Run::check_captures(const driver::Queue& queue) const {
  if (auto* capture = runtime::capture_of(queue)) {
    if (!description_.synchronous) {
      for (std::size_t i = 0; i < arguments_.size(); ++i)
        if (description_.arguments[i].kind == Argument::Kind::kDevice)
          eager::note_use(*capture, arguments_[i], description_.name);
      return;
    }
    runtime::refuse(*capture, [&] {
      errors::capture_cannot_wait(
          c10::str("Running program '", description_.name, "', which works on CPU tensors as well,"));
    });
  }
  for (std::size_t i = 0; i < arguments_.size(); ++i)
    if (description_.arguments[i].kind == Argument::Kind::kDevice)
      eager::check_use_outside(*arguments_[i], queue, description_.name);
}

void Run::launch() {
  auto& queue = runtime::current_queue(description_.device);
  if (C10_UNLIKELY(runtime::any_capture())) check_captures(queue);
  if (!binding_.program().releases_early()) take_memory();
  eager::observe_host_threads();
  std::uint64_t ticket;
  if (C10_UNLIKELY(binding_.program().draws())) {
    auto& neuron = runtime::neuron_generator(runtime::default_generator(description_.device));
    std::lock_guard draw(neuron.mutex_);
    neuron.before_launch(queue);
    auto cpu = neuron.cpu();
    ticket = submit(queue, cpu.unsafeReleaseGeneratorImpl());
    neuron.after_launch(queue, ticket);
  } else {
    ticket = submit(queue, nullptr);
  }
  arena_.clear();  // whoever gets the block next on this stream is behind this launch
  if (description_.synchronous) {
    queue.wait(ticket);
    queue.fault().rethrow_if_pending();
  } else {
    eager::wait_if_blocking(queue, ticket);
  }
}

at::Tensor Run::output(std::size_t i) const {
  const Tensor& spec = description_.tensors[description_.outputs[i].index];
  const Buffer& buffer = description_.buffers[spec.buffer];
  const auto& shape = binding_.output_shape(i);
  std::int64_t offset = binding_.value(spec.offset);
  c10::intrusive_ptr<c10::StorageImpl> storage;
  bool on_device = buffer.kind == Buffer::Kind::kOutput;
  if (buffer.kind == Buffer::Kind::kArgument) {
    const auto* t = arguments_[buffer.index];
    on_device = description_.arguments[buffer.index].kind == Argument::Kind::kDevice;
    storage = t->storage().getWeakStorageImpl().lock();
    const auto before = t->storage_offset() * static_cast<std::int64_t>(t->itemsize());
    const auto itemsize = static_cast<std::int64_t>(c10::elementSize(spec.dtype));
    if (before % itemsize)
      errors::program_argument(description_.name,
                               c10::str("returns a tensor of ", spec.dtype, " in the memory of ", "argument ",
                                        buffer.index, ", which begins at byte ", before, " of its storage"));
    offset += before / itemsize;
  } else {
    storage = fresh_[buffer.index];
  }
  auto t = c10::make_intrusive<c10::TensorImpl>(
      c10::Storage(std::move(storage)),
      c10::DispatchKeySet(on_device ? c10::DispatchKey::PrivateUse1 : c10::DispatchKey::CPU),
      c10::scalarTypeToTypeMeta(spec.dtype));
  if (offset) t->set_storage_offset(offset);
  if (shape.contiguous)
    t->set_sizes_contiguous(shape.sizes);
  else
    t->set_sizes_and_strides(shape.sizes, shape.strides);
  return at::Tensor(std::move(t));
}

Statistics statistics() { return {g_counters.runs.load(), g_counters.steps.load()}; }

}  // namespace neuron::program
