#pragma once
// Captured graphs: stretches of launches that are recorded once and replayed as one launch. What
// torch.accelerator.Graph and torch.neuron.NeuronGraph are on this device.
#include <ATen/core/GraphImplInterface.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "runtime/capture.h"

namespace neuron::program {

class Graph final : public at::GraphImplInterface {
 public:
  explicit Graph(const at::GraphImplArgs& args) {}
  ~Graph() override;

  // Of the current device and stream. All modes are one here: what a capture forbids is asked of the threads that take
  // part in it, and of nobody else.
  void capture_begin(c10::MempoolId_t pool, at::GraphCaptureMode mode) override;
  void capture_end() override;
  // Nothing is left to do after a capture: batches are worked out by the first replay.
  void instantiate() override;
  // One launch on the current stream. Replays run one after the other, whatever their streams are.
  void replay() override;
  // Waits for replays.
  void reset() override;
  c10::MempoolId_t pool() const override;
  void enable_debug_mode() override {}
  // The captured launches as a graph in DOT, in the order in which they run.
  void debug_dump(const std::string& path) override;

 private:
  const runtime::Capture& captured(const char* call) const;
  void record_replay(runtime::Capture& outer, driver::Queue& queue);
  void wait();

  std::mutex replaying_;
  std::shared_ptr<runtime::Capture> capture_;
  driver::Queue* last_queue_ = nullptr;  // of the last replay
  std::uint64_t last_ticket_ = 0;
};

// Makes the class known to torch.accelerator.Graph. Once, after the backend has its name.
void register_graphs();

}  // namespace neuron::program
