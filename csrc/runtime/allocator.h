#pragma once
// The caching allocator of HBM. Blocks are reused in the order of their stream: a block that the host frees may be
// handed out again at once, since every launch that could still touch it stands before the new owner's launches.
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Storage.h>

#include <vector>

namespace neuron::driver {
class Recording;
}

namespace neuron::runtime {

// The allocator registered for the device; a c10::DeviceAllocator with torch.cuda's statistics.
c10::DeviceAllocator* allocator();

// A block for the current stream of `device`. Throws torch's OutOfMemoryError. Null pointer for zero bytes.
c10::DataPtr allocate(std::size_t bytes, c10::DeviceIndex device);
// A storage of exactly `bytes` bytes over such a block.
c10::intrusive_ptr<c10::StorageImpl> new_storage(std::size_t bytes, c10::DeviceIndex device);

// Is this the deleter of the caching allocator's blocks?
bool is_hbm_deleter(c10::DeleterFnPtr deleter);
// Frees a block given its address (the deleter's work).
void free_block(void* p);
// Is `p` an address in the HBM of any core? False as long as there is no machine.
bool is_hbm_address(const void* p);

// Private pools, for captured graphs: see CorePool.
int open_private_pool(c10::DeviceIndex device, c10::MempoolId_t id);
void close_private_pool(c10::DeviceIndex device, int key);
bool record_private_pool(c10::DeviceIndex device, int key, driver::Recording* recording);

// All segments of a device with their blocks, by address. Empty for a device that was never used.
std::vector<c10::CachingDeviceAllocator::SegmentInfo> memory_snapshot(c10::DeviceIndex device);

}  // namespace neuron::runtime
