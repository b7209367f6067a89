#pragma once
// Graph capture: a recording of launches together with what PyTorch asks for besides - a private pool of memory,
// generators, and the reason why a capture has become invalid. What is captured is decided by stream, not by thread.
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>
#include <c10/core/GeneratorImpl.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "driver/queue.h"
#include "driver/recording.h"

namespace neuron::runtime {

class NeuronGenerator;

class Capture final : public driver::Recording {
 public:
  // `pool`: whose memory it takes; shared with other captures that name the same one.
  Capture(c10::DeviceIndex device, c10::MempoolId_t pool);
  // Runs of it must be over. The memory goes back when no other capture has the pool.
  ~Capture() override;

  c10::DeviceIndex device() const { return device_; }
  c10::MempoolId_t pool() const { return pool_; }
  int pool_key() const { return pool_key_; }

  // Launches on `queue` are captured from now on. False when another capture is taking memory from the pool.
  bool begin(driver::Queue& queue);
  // As driver::Recording::close().
  bool end();
  bool begun_by_this_thread() const { return is_open() && thread_ == std::this_thread::get_id(); }

  // Runs draw from it.
  void add_generator(NeuronGenerator& generator);
  const std::vector<c10::intrusive_ptr<c10::GeneratorImpl>>& generators() const { return generators_; }
  // Launches of `op` use this memory from outside, which must still be there when they run.
  void use(c10::StorageImpl* storage, const std::string& op);
  // All that `inner`, a graph that is replayed in this one, uses.
  void use_all(const Capture& inner);
  // Raises when memory from outside is gone, or has moved.
  void check_inputs() const;
  // What its launches point to.
  void keep(std::shared_ptr<const void> object);

  // It cannot be replayed; the first reason is kept.
  void invalidate(std::string_view reason);
  const std::string& invalid_because() const { return invalid_; }

 private:
  const c10::DeviceIndex device_;
  const c10::MempoolId_t pool_;
  const int pool_key_;
  std::thread::id thread_;
  std::mutex lists_mutex_;
  std::vector<c10::intrusive_ptr<c10::GeneratorImpl>> generators_;
  struct Input {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    const void* data;
    std::string op;  // the first that used it
  };
  std::unordered_map<const c10::StorageImpl*, Input> inputs_;
  std::vector<std::shared_ptr<const void>> kept_;
  std::string invalid_;
};

// Ids for pools, as torch.cuda has them: of one that a capture makes for itself, of one that a user asks for.
c10::MempoolId_t new_capture_pool();
c10::MempoolId_t new_pool_handle();

// The capture that takes the launches of `queue`; null, nearly always.
inline Capture* capture_of(const driver::Queue& queue) { return static_cast<Capture*>(queue.recording()); }
inline bool any_capture() { return driver::Recording::any_open(); }
// That of the current stream of `device`. Starts nothing.
Capture* current_capture(c10::DeviceIndex device);
// The same, or one that the calling thread has begun on another stream of `device`: what waits for everything on the
// device cannot be allowed then.
Capture* capture_of_thread(c10::DeviceIndex device);

// The memory at `p` was taken by an open capture: its contents do not exist yet, and only its own launches may use it.
Capture* capture_owning(const void* p);

// Raises with `raise`, one of the catalogue, and makes the capture invalid for that reason.
template <class F>
[[noreturn]] void refuse(Capture& capture, F&& raise) {
  try {
    raise();
  } catch (const c10::Error& error) {
    capture.invalidate(error.what_without_backtrace());
    throw;
  }
  TORCH_INTERNAL_ASSERT(false);
}

// Raises what a RecordingError means that came of doing `what`. The capture of `queue` becomes invalid, or else the
// open one with id `recording`.
[[noreturn]] void raise_for(const driver::RecordingError& error, std::string_view what, const driver::Queue* queue,
                            std::uint64_t recording);

}  // namespace neuron::runtime
