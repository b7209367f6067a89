#pragma once
// Streams of the device `neuron`: torch's stream ids on the driver's queues, and the current stream of each thread.
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "driver/queue.h"

namespace neuron::runtime {

// Stream ids are queue numbers of the core: 0 is the default stream, 1-32 the pool of priority 0, 33-64 the pool of
// priority -1 (high). Pools are handed out round robin, as torch.cuda does.
c10::Stream default_stream(c10::DeviceIndex device);
c10::Stream current_stream(c10::DeviceIndex device);
c10::Stream exchange_current_stream(c10::Stream stream);  // returns the previous one of that device
c10::Stream stream_from_pool(c10::DeviceIndex device, int priority);
int stream_priority(c10::Stream stream);
// Id of the current stream, unchecked: for the launch path.
c10::StreamId current_stream_id(c10::DeviceIndex device) noexcept;

// Starts the queue when it is not running yet. Throws in a forked child.
driver::Queue& queue_of(c10::Stream stream);
// Queue of the current stream of `device`: the launch path's entry, hence one cached pointer per thread and device.
driver::Queue& current_queue(c10::DeviceIndex device);

}  // namespace neuron::runtime
