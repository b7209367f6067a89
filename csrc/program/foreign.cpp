#include "program/foreign.h"

#include <array>
#include <mutex>
#include <unordered_set>

#include "driver/queue.h"
#include "eager/captured.h"
#include "eager/launch.h"
#include "eager/threads.h"
#include "runtime/errors.h"
#include "runtime/stream.h"

namespace neuron::program {

namespace {

constexpr std::size_t kLongestError = 2048;

struct Payload {
  const engines::isa::ProgramCapsule* program;  // retained
  void* programs;
  const char* name;
  void** addresses;  // owned
};

void execute(driver::Launch& launch) {
  const auto& payload = *reinterpret_cast<Payload*>(launch.payload());
  eager::apply_host_threads();
  std::array<char, kLongestError> error{};
  if (payload.program->run(payload.programs, payload.addresses, error.data(), error.size()) != 0)
    errors::kernel_failed(payload.name, error.data());
}

void drop(driver::Launch& launch) {
  const auto& payload = *reinterpret_cast<Payload*>(launch.payload());
  payload.program->release(payload.programs);
  delete[] payload.addresses;
}

// Launches keep a pointer to their name, and records may outlive what launched them: names live for good.
const char* kept(const std::string& name) {
  static std::mutex mutex;
  static auto* names = new std::unordered_set<std::string>();
  std::lock_guard lock(mutex);
  return names->insert(name).first->c_str();
}

}  // namespace

void launch_foreign(const engines::isa::ProgramCapsule& program, const std::string& name,
                    c10::ArrayRef<at::Tensor> tensors, c10::ArrayRef<std::uintptr_t> addresses) {
  std::vector<c10::TensorImpl*> used;
  for (const auto& tensor : tensors) {
    if (!tensor.defined() || !eager::is_neuron(tensor.unsafeGetTensorImpl()))
      errors::program_argument(name, c10::str("was given a tensor on ", tensor.device()));
    if (tensor.device() != tensors.front().device())
      errors::mixed_devices(name, tensors.front().device(), tensor.device());
    used.push_back(tensor.unsafeGetTensorImpl());
  }
  if (used.empty()) errors::program_argument(name, "was given no tensor");
  auto& queue = runtime::current_queue(tensors.front().device().index());
  if (C10_UNLIKELY(runtime::any_capture())) {
    if (auto* capture = runtime::capture_of(queue))
      eager::note_use(*capture, used, name);
    else
      for (const auto* tensor : used) eager::check_use_outside(*tensor, queue, name);
  }
  eager::observe_host_threads();
  const char* lasting = kept(name);
  std::uint64_t ticket;
  {
    driver::Submission submission(queue);
    auto* payload = new (submission.reserve(sizeof(Payload)))
        Payload{&program, program.programs, lasting, new void*[addresses.size()]};
    for (std::size_t i = 0; i < addresses.size(); ++i) payload->addresses[i] = reinterpret_cast<void*>(addresses[i]);
    program.retain(program.programs);
    ticket = submission.commit(&execute, &drop, lasting, sizeof(Payload));
  }
  eager::wait_if_blocking(queue, ticket);
}

}  // namespace neuron::program
