#pragma once
// The catalogue of errors that C++ raises: one function per mistake, each saying what happened, with what, and what to
// do. docs/errors.md is the glossary. Python's own mistakes stand in torch_neuronx/errors.py.
#include <c10/core/Device.h>
#include <c10/core/Layout.h>
#include <c10/util/Exception.h>

#include <string_view>

namespace neuron::errors {

// RuntimeError: the device was used before fork() and is used again in the child.
[[noreturn]] void forked_process();
// RuntimeError: the device cannot be used because of a bad knob; `what` says which.
[[noreturn]] void bad_configuration(std::string_view what);
// RuntimeError: there is no such device.
[[noreturn]] void no_such_device(int index, int count);
// torch.OutOfMemoryError.
[[noreturn]] void out_of_memory(int device, std::size_t requested, std::size_t capacity, std::size_t free,
                                std::size_t allocated, std::size_t reserved, std::size_t largest_free);
// NotImplementedError: no kernel for this op, on the device or on the CPU.
[[noreturn]] void no_kernel(std::string_view op);
// NotImplementedError: the op was given, or would give, a tensor that is not strided.
[[noreturn]] void unsupported_layout(std::string_view op, std::string_view layout);
// RuntimeError in PyTorch's words: "Expected all tensors to be on the same device, but found at least two devices,
// ...".
[[noreturn]] void mixed_devices(std::string_view op, c10::Device a, c10::Device b);
// RuntimeError in PyTorch's words.
[[noreturn]] void wrong_generator(c10::Device found);
// ValueError: the description of a program does not hold together; `what` says where.
[[noreturn]] void bad_program(std::string_view name, std::string_view what);
// RuntimeError: a program was given arguments that it was not built for. `what` goes on after "Program 'name' ".
[[noreturn]] void program_argument(std::string_view name, std::string_view what);
// RuntimeError: a kernel found while it ran that it cannot go on; `what` says why, and where.
[[noreturn]] void kernel_failed(std::string_view name, std::string_view what);

// RuntimeErrors of graph capture. Those that begin with capture_ make the capture invalid.
// The op has to see values.
[[noreturn]] void capture_reads_data(std::string_view op);
// The kernel of this op runs on the host.
[[noreturn]] void capture_runs_on_host(std::string_view op);
// The first call of an op, tried on stand-ins of its inputs, failed.
[[noreturn]] void capture_first_call(std::string_view op, std::string_view error);
// The op changes sizes of its arguments, or returns views of them.
[[noreturn]] void capture_changes_arguments(std::string_view op);
// A copy that cannot be captured.
[[noreturn]] void capture_copies(c10::Device from, c10::Device to);
// `what` waits for captured work, or asks whether it is done.
[[noreturn]] void capture_cannot_wait(std::string_view what);
// A capturing stream was to wait for an event from outside the capture.
[[noreturn]] void capture_waits_for_outside();
// `what`, on a stream that is not captured, uses memory that the capture has taken.
[[noreturn]] void capture_used_outside(std::string_view what);
// The state of a generator was to be read or set.
[[noreturn]] void capture_generator_state();
// Cached memory was to be given back.
[[noreturn]] void capture_frees_memory();
// A side stream has captured work that the capture's own stream has not waited for.
[[noreturn]] void capture_unjoined();
// The capture is invalid, or was when it ended.
[[noreturn]] void capture_invalid(std::string_view reason);
// `what` with an event that was last recorded in a capture that is over.
[[noreturn]] void captured_event(std::string_view what);
// A graph uses memory of a tensor that is gone; `op` used it first.
[[noreturn]] void graph_input_gone(std::string_view op);
// Calls of a graph in the wrong order.
[[noreturn]] void graph_misuse(std::string_view what);

}  // namespace neuron::errors
