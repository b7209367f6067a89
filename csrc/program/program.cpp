#include "program/program.h"

#include <algorithm>

#include "eager/settle.h"
#include "program/frame.h"
#include "runtime/errors.h"

namespace neuron::program {

namespace {

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1) + 1;
}

bool is_contiguous(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  // As set_sizes_contiguous() would set them.
  std::int64_t stride = 1;
  for (std::size_t d = sizes.size(); d-- > 0;) {
    if (strides[d] != stride) return false;
    stride *= std::max<std::int64_t>(sizes[d], 1);
  }
  return true;
}

}  // namespace

Program::Program(Description description) : description_(std::move(description)) {
  for (const auto& buffer : description_.buffers)
    fresh_outputs_ += buffer.kind == Buffer::Kind::kOutput || buffer.kind == Buffer::Kind::kHostOutput;
  if (!description_.synchronous)
    for (const auto& argument : description_.arguments) host_values_ += argument.kind == Argument::Kind::kHost;
  for (const auto& step : description_.steps) draws_ |= step->draws();
  order_memory_events();
}

void Program::order_memory_events() {
  struct At {
    std::int32_t step;
    bool after;
    MemoryEvent event;
  };
  std::vector<At> events;
  for (std::uint32_t b = 0; b < description_.buffers.size(); ++b) {
    const auto& buffer = description_.buffers[b];
    const bool block = buffer.kind == Buffer::Kind::kBlock;
    if (!block && buffer.kind != Buffer::Kind::kOutput && buffer.kind != Buffer::Kind::kHostOutput) continue;
    events.push_back({buffer.first, false, {MemoryEvent::Kind::kAllocate, b}});
    if (!block) continue;
    ++blocks_;
    events.push_back({buffer.last, true, {MemoryEvent::Kind::kReleaseBlock, b}});
  }
  for (const auto& donated : description_.donated)
    events.push_back({donated.last, true, {MemoryEvent::Kind::kReleaseArgument, donated.argument}});
  std::stable_sort(events.begin(), events.end(),
                   [](const At& a, const At& b) { return a.step != b.step ? a.step < b.step : a.after < b.after; });
  for (const auto& at : events) memory_events_.push_back(at.event);
  releases_early_ = blocks_ || !description_.donated.empty();
}

Program::~Program() = default;

std::unique_ptr<Frame> Program::take_frame(std::uint64_t binding) {
  {
    std::lock_guard lock(frames_lock_);
    if (!frames_.empty()) {
      auto found = std::find_if(frames_.begin(), frames_.end(),
                                [&](const auto& frame) { return frame->last_binding() == binding; });
      if (found == frames_.end()) --found;
      auto frame = std::move(*found);
      frames_.erase(found);
      return frame;
    }
  }
  return std::make_unique<Frame>(*this);
}

void Program::give_back(std::unique_ptr<Frame> frame) {
  std::lock_guard lock(frames_lock_);
  frames_.push_back(std::move(frame));
}

Binding::Binding(std::shared_ptr<Program> program, std::vector<std::int64_t> ints)
    : program_(std::move(program)), id_(next_id()), ints_(std::move(ints)) {
  const Description& d = program_->description();
  if (ints_.size() < d.ints)
    errors::bad_program(d.name, c10::str("it refers to ", d.ints, " integers, but was given ", ints_.size()));
  low_.resize(d.buffers.size());
  high_.resize(d.buffers.size());
  for (const auto& tensor : d.tensors) {
    const auto shape = shape_of(tensor);
    for (std::size_t i = 0; i < shape.sizes.size(); ++i)
      if (shape.sizes[i] < 0 || shape.strides[i] < 0)
        errors::bad_program(d.name, c10::str("tensor ", places_.size(), " has sizes ", c10::IntArrayRef(shape.sizes),
                                             " and strides ", c10::IntArrayRef(shape.strides)));
    const auto itemsize = static_cast<std::int64_t>(c10::elementSize(tensor.dtype));
    Place place;
    place.offset = value(tensor.offset) * itemsize;
    place.bytes =
        static_cast<std::int64_t>(eager::span_bytes(shape.sizes, shape.strides, static_cast<std::size_t>(itemsize)));
    places_.push_back(place);
    if (!place.bytes) continue;
    low_[tensor.buffer] = std::min(low_[tensor.buffer], place.offset);
    high_[tensor.buffer] = std::max(high_[tensor.buffer], place.offset + place.bytes);
  }
  for (std::size_t b = 0; b < d.buffers.size(); ++b) check(b);
  for (std::size_t b = 0; b < d.buffers.size(); ++b)
    if (d.buffers[b].kind == Buffer::Kind::kArena)
      arena_bytes_ = std::max(arena_bytes_, static_cast<std::size_t>(value(d.buffers[b].value) + high_[b]));
  for (const auto& output : d.outputs)
    output_shapes_.push_back(output.kind == Output::Kind::kTensor ? shape_of(d.tensors[output.index]) : Shape{});
}

Binding::Shape Binding::shape_of(const Tensor& tensor) const {
  Shape shape;
  for (const IntRef ref : tensor.sizes) shape.sizes.push_back(value(ref));
  for (const IntRef ref : tensor.strides) shape.strides.push_back(value(ref));
  shape.contiguous = is_contiguous(shape.sizes, shape.strides);
  return shape;
}

void Binding::check(std::size_t b) const {
  const Description& d = program_->description();
  const Buffer& buffer = d.buffers[b];
  std::int64_t bytes = 0;
  switch (buffer.kind) {
    case Buffer::Kind::kArgument:
      return;  // checked at each run
    case Buffer::Kind::kOutput:
    case Buffer::Kind::kHostOutput:
    case Buffer::Kind::kBlock:
      bytes = value(buffer.value);
      break;
    case Buffer::Kind::kArena:
      bytes = value(buffer.value) < 0 ? -1 : high_[b];
      break;
    case Buffer::Kind::kConstant: {
      const auto& tensor = d.constants[buffer.index];
      bytes = static_cast<std::int64_t>(tensor.storage().nbytes()) -
              tensor.storage_offset() * static_cast<std::int64_t>(tensor.itemsize());
      break;
    }
  }
  if (bytes < high_[b] || low_[b] < 0)
    errors::bad_program(d.name, c10::str("its tensors reach from byte ", low_[b], " to byte ", high_[b], " of buffer ",
                                         b, ", which has ", bytes, " bytes"));
}

namespace {

// Bindings that nobody but launches refers to.
struct Waiting {
  std::mutex mutex;
  std::vector<Binding*> bindings;
};
Waiting& waiting() {
  static auto* const waiting = new Waiting;
  return *waiting;
}

void sweep() {
  std::vector<Binding*> done;
  {
    std::lock_guard lock(waiting().mutex);
    std::erase_if(waiting().bindings, [&](Binding* binding) {
      const bool free = !binding->in_flight.load(std::memory_order_acquire);
      if (free) done.push_back(binding);
      return free;
    });
  }
  for (auto* binding : done) delete binding;
}

void release(Binding* binding) {
  {
    std::lock_guard lock(waiting().mutex);
    waiting().bindings.push_back(binding);
  }
  sweep();
}

}  // namespace

std::shared_ptr<Binding> make_binding(std::shared_ptr<Program> program, std::vector<std::int64_t> ints) {
  sweep();
  return {new Binding(std::move(program), std::move(ints)), &release};
}

}  // namespace neuron::program
