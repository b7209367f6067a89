#include "program/graph.h"

#include <c10/core/DeviceType.h>

#include <fstream>
#include <mutex>
#include <vector>

#include "driver/event.h"
#include "driver/machine.h"
#include "eager/launch.h"
#include "eager/threads.h"
#include "runtime/device.h"
#include "runtime/errors.h"
#include "runtime/generator.h"
#include "runtime/stream.h"

namespace neuron::program {

namespace {

// The generators of a graph, for the time of a replay's launch.
class Draws {
 public:
  explicit Draws(const runtime::Capture& capture) {
    for (const auto& generator : capture.generators()) {
      generators_.push_back(static_cast<runtime::NeuronGenerator*>(generator.get()));
      locks_.emplace_back(generators_.back()->mutex_);
    }
  }
  void before_launch(driver::Queue& queue) {
    for (auto* generator : generators_) generator->before_launch(queue);
  }
  void after_launch(driver::Queue& queue, std::uint64_t ticket) {
    for (auto* generator : generators_) generator->after_launch(queue, ticket);
  }

 private:
  std::vector<runtime::NeuronGenerator*> generators_;
  std::vector<std::unique_lock<std::mutex>> locks_;
};

}  // namespace

Graph::~Graph() {
  try {
    reset();
  } catch (const std::exception& error) {
    TORCH_WARN("torchneuron: a captured graph could not be destroyed: ", error.what());
  }
}

void Graph::capture_begin(c10::MempoolId_t pool, at::GraphCaptureMode mode) {
  if (capture_)
    errors::graph_misuse(
        "This graph has a capture already. Call reset() before capture_begin(), or make another graph.");
  const auto device = runtime::current_device();
  auto& queue = runtime::current_queue(device);
  if (queue.recording())
    errors::graph_misuse("A capture is under way on the current stream. End it before another one begins.");
  // All threads use it unless told otherwise: what they do would be captured as well.
  if (queue.id() == 0)
    errors::graph_misuse(
        "Graphs are captured on another stream than the default one. Use torch.neuron.graph, which does, or make a "
        "torch.neuron.Stream current. Replays may run on the default stream.");
  if (pool == c10::MempoolId_t{0, 0}) pool = runtime::new_capture_pool();
  auto capture = std::make_shared<runtime::Capture>(device, pool);
  if (!capture->begin(queue))
    errors::graph_misuse("Another capture takes memory from this pool right now. End it first, or use another pool.");
  capture_ = std::move(capture);
}

void Graph::capture_end() {
  if (!capture_ || !capture_->is_open())
    errors::graph_misuse("capture_end() was called, but no capture of this graph is under way.");
  auto& queue = runtime::current_queue(capture_->device());
  if (&queue != capture_->origin()) {
    capture_->end();
    runtime::refuse(*capture_, [] {
      errors::graph_misuse("capture_end() must be called with the stream current that capture_begin() was called on.");
    });
  }
  const bool joined = capture_->end();
  if (!capture_->invalid_because().empty()) errors::capture_invalid(capture_->invalid_because());
  if (!joined) runtime::refuse(*capture_, [] { errors::capture_unjoined(); });
}

const runtime::Capture& Graph::captured(const char* call) const {
  if (!capture_ || capture_->is_open())
    errors::graph_misuse(c10::str(call, " needs a captured graph: call capture_begin() and capture_end() first."));
  if (!capture_->invalid_because().empty()) errors::capture_invalid(capture_->invalid_because());
  return *capture_;
}

void Graph::instantiate() { captured("instantiate()"); }

c10::MempoolId_t Graph::pool() const {
  if (!capture_) errors::graph_misuse("pool() needs a captured graph: call capture_begin() and capture_end() first.");
  return capture_->pool();
}

// A graph in a graph: its launches run where the replay stands.
void Graph::record_replay(runtime::Capture& outer, driver::Queue& queue) {
  for (const auto& generator : capture_->generators())
    outer.add_generator(*static_cast<runtime::NeuronGenerator*>(generator.get()));
  outer.use_all(*capture_);
  outer.keep(capture_);
  driver::submit(queue, "graph", [capture = capture_.get()] { capture->run(); });
}

void Graph::replay() {
  captured("replay()").check_inputs();
  auto& queue = runtime::current_queue(capture_->device());
  if (auto* outer = runtime::capture_of(queue)) return record_replay(*outer, queue);
  std::lock_guard one_at_a_time(replaying_);
  eager::observe_host_threads();
  if (last_queue_ && last_queue_ != &queue) driver::block_until(queue, *last_queue_, last_ticket_);
  Draws draws(*capture_);
  draws.before_launch(queue);
  last_ticket_ = driver::submit(queue, "graph", [capture = capture_.get()] {
    eager::apply_host_threads();
    capture->run();
  });
  last_queue_ = &queue;
  draws.after_launch(queue, last_ticket_);
  eager::wait_if_blocking(queue, last_ticket_);
}

void Graph::wait() {
  if (last_queue_ && !driver::Machine::forked()) last_queue_->wait(last_ticket_);
  last_queue_ = nullptr;
}

void Graph::reset() {
  wait();
  capture_.reset();
}

void Graph::debug_dump(const std::string& path) {
  captured("debug_dump()");
  std::ofstream file(path);
  file << "digraph graph_" << capture_->id() << " {\n";
  for (std::size_t i = 0; i < capture_->size(); ++i) {
    file << "  l" << i << " [label=\"" << capture_->at(i).name << "\"];\n";
    if (i) file << "  l" << i - 1 << " -> l" << i << ";\n";
  }
  file << "}\n";
  if (!file) errors::graph_misuse(c10::str("debug_dump() could not write to ", path, "."));
}

void register_graphs() {
  const auto create = [](const at::GraphImplArgs& args) -> std::unique_ptr<at::GraphImplInterface> {
    return std::make_unique<Graph>(args);
  };
  const std::string key = c10::DeviceTypeName(runtime::kNeuron, /*lower_case=*/false);
  if (!at::GraphImplRegistry()->Has(key)) at::GraphImplRegistry()->Register(key, create);
}

}  // namespace neuron::program
