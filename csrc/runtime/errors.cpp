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

}  // namespace neuron::errors
