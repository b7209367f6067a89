#pragma once
// Pinned host memory: what `tensor.pin_memory()` gives, and the source and target of asynchronous copies.
#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

namespace neuron::runtime {

c10::Allocator* host_allocator();
bool is_pinned(const void* p);
// The block of `p` is not reused before the work now on `stream` is done. No effect for memory that is not pinned.
void record_host_use(const void* p, void* context, c10::Stream stream);
void empty_host_cache();

}  // namespace neuron::runtime
