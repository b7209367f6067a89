#include "runtime/errors.h"

#include <c10/core/Allocator.h>

#include <algorithm>
#include <string>

#include "driver/machine.h"

namespace neuron::errors {

using c10::CachingAllocator::format_size;

void forked_process() {
  TORCH_CHECK(false,
              "Cannot use neuron in a forked subprocess: the parent process has used the device, and its queues do not "
              "survive fork(). To use neuron with multiprocessing, start the processes with the 'spawn' start method, "
              "or use the device only after the fork.");
}

void bad_configuration(std::string_view what) { TORCH_CHECK(false, "neuron cannot be used: ", what); }

void no_such_device(int index, int count) {
  // With a bad knob there are no devices at all, and the knob is what the user must hear about.
  if (const auto& bad = driver::Machine::config().error; !bad.empty()) bad_configuration(bad);
  TORCH_CHECK(false, "Invalid neuron device ordinal: neuron:", index, " was asked for, but this process sees ", count,
              count == 1 ? " neuron core" : " neuron cores",
              count ? c10::str(" (valid indices are 0 to ", count - 1, ").") : std::string("."),
              " NEURON_EMU_INSTANCE chooses the machine and NEURON_RT_VISIBLE_CORES its visible cores.");
}

void out_of_memory(int device, std::size_t requested, std::size_t capacity, std::size_t free, std::size_t allocated,
                   std::size_t reserved, std::size_t largest_free) {
  TORCH_CHECK_WITH(OutOfMemoryError, false, "NEURON out of memory. Tried to allocate ", format_size(requested),
                   ". Neuron core ", device, " has a total capacity of ", format_size(capacity), " of which ",
                   format_size(free), " is free. Of the allocated memory ", format_size(allocated),
                   " is allocated by PyTorch, and ", format_size(reserved - std::min(reserved, allocated)),
                   " is reserved by PyTorch but unallocated. The largest free range is ", format_size(largest_free),
                   ". Lower the batch size or drop tensors that are no longer needed; "
                   "if much memory is reserved but unallocated, torch.neuron.empty_cache() may mend fragmentation, and "
                   "torch.neuron.memory_summary() shows where the memory is.");
}

void no_kernel(std::string_view op) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "Could not run '", op,
                              "' on neuron: PyTorch has no kernel for it on this device "
                              "nor on the CPU. Move the inputs to the CPU only if the op supports it there, or replace "
                              "it by ops that do.");
}

void unsupported_layout(std::string_view op, std::string_view layout) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "'", op, "' on neuron was given, or would return, a tensor of layout ", layout,
                              ": neuron tensors are strided. Run the op on the CPU (tensor.cpu()), or use dense "
                              "tensors (tensor.to_dense()).");
}

void mixed_devices(std::string_view op, c10::Device a, c10::Device b) {
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", a, " and ", b,
              "! (when checking the arguments of ", op, ")");
}

void wrong_generator(c10::Device found) {
  TORCH_CHECK(false, "Expected a '", c10::DeviceType::PrivateUse1, "' device type for generator but found '",
              found.type(), "'");
}

void bad_program(std::string_view name, std::string_view what) {
  TORCH_CHECK_VALUE(false, "Program '", name, "' does not hold together: ", what,
                    ". Programs are built by torch.compile; this is a fault of torchneuron, please report it.");
}

void program_argument(std::string_view name, std::string_view what) {
  TORCH_CHECK(false, "Program '", name, "' ", what,
              ". A program is built for the devices, dtypes and shapes of its first call, which the caller guards.");
}

void kernel_failed(std::string_view name, std::string_view what) {
  TORCH_CHECK(false, "Kernel '", name, "' failed: ", what);
}

namespace {
constexpr std::string_view kInvalid = " The capture is invalid now.";
}

void capture_reads_data(std::string_view op) {
  TORCH_CHECK(false, "'", op, "' cannot be captured: it has to see values, and captured work has not run.", kInvalid,
              " Do it before or after the capture, or use ops whose results have shapes that do not depend on data "
              "(torch.where, masked_fill).");
}

void capture_runs_on_host(std::string_view op) {
  TORCH_CHECK(false, "'", op,
              "' cannot be captured: its kernel runs on the host, which a replay does not come back to.", kInvalid,
              " Call it before or after the capture, or write it in terms of ops of PyTorch.");
}

void capture_first_call(std::string_view op, std::string_view error) {
  TORCH_CHECK(false, "'", op,
              "' cannot be captured yet: what its results look like is not known for these inputs, and ",
              "trying it on stand-ins failed: ", error, ".", kInvalid,
              " Run the same code once before the capture, as a warm-up.");
}

void capture_changes_arguments(std::string_view op) {
  TORCH_CHECK(false, "'", op, "' cannot be captured: with these inputs it resizes an argument or returns part of one.",
              kInvalid, " Give it out= tensors of the right size, or do it outside the capture.");
}

void capture_copies(c10::Device from, c10::Device to) {
  TORCH_CHECK(
      false, "A copy from ", from, " to ", to, " cannot be captured.", kInvalid,
      from.is_cpu() || to.is_cpu()
          ? " Copy with non_blocking=True and pinned, dense host memory (tensor.pin_memory()), which each replay "
            "reads or writes; or fill the graph's static tensors before the replay and read them after it."
          : " A graph belongs to one core: copy before or after the capture.");
}

void capture_cannot_wait(std::string_view what) {
  TORCH_CHECK(false, what, " is not possible while a graph is captured: captured work has not run.", kInvalid,
              " Do it before or after the capture.");
}

void capture_waits_for_outside() {
  TORCH_CHECK(false, "A capturing stream cannot wait for an event that was recorded outside its capture.", kInvalid,
              " Wait for it before the capture begins; streams that are to take part wait for an event of the capture "
              "first (stream.wait_stream(capturing_stream)).");
}

void capture_used_outside(std::string_view what) {
  TORCH_CHECK(false, what,
              " on a stream that is not captured uses memory that an open capture has taken: there are no "
              "values in it yet.",
              kInvalid,
              " Let that stream take part (stream.wait_stream(capturing_stream)), or use the tensor after a replay.");
}

void capture_generator_state() {
  TORCH_CHECK(false,
              "The state of a generator cannot be read, set or seeded while a graph is captured: captured work "
              "has not drawn from it.",
              kInvalid, " Do it before the capture or before a replay. Checkpointing needs preserve_rng_state=False.");
}

void capture_frees_memory() {
  TORCH_CHECK(false, "Cached memory cannot be given back while a graph is captured.", kInvalid,
              " Call empty_cache() before or after the capture.");
}

void capture_unjoined() {
  TORCH_CHECK(false, "The capture ended with work on a side stream that its own stream has not waited for.", kInvalid,
              " Call capturing_stream.wait_stream(side_stream) before the end.");
}

void capture_invalid(std::string_view reason) {
  TORCH_CHECK(false, "The capture is invalid and cannot be replayed, since during it this happened: ", reason,
              " Call reset() and capture again.");
}

void captured_event(std::string_view what) {
  TORCH_CHECK(false, what,
              " is not possible: the event was last recorded in a graph capture that is over, and stands for "
              "no point in a stream. Record it again, after the replay.");
}

void graph_input_gone(std::string_view op) {
  TORCH_CHECK(false, "The graph cannot be replayed: a tensor from outside that '", op,
              "' reads or writes in it is gone, or its memory has moved. Keep static tensors as long as the graph is "
              "replayed, change them in place (copy_, zero_), or make them inside the capture.");
}

void graph_misuse(std::string_view what) { TORCH_CHECK(false, what); }

}  // namespace neuron::errors
