#include "eager/placement.h"

#include <c10/core/CPUAllocator.h>

#include "runtime/allocator.h"

namespace neuron::eager {

namespace {

struct State {
  c10::DeviceIndex hbm_device = -1;
  Expected* expected = nullptr;
  std::size_t count = 0;
};
thread_local State t_state;

const c10::Device kCpu(c10::DeviceType::CPU);
c10::DeleterFnPtr g_host_deleter = nullptr;

// Gives an expected block back: a kernel freed it, so it was a temporary after all, and the output may still come.
void release_expected(void* p) {
  for (std::size_t i = 0; i < t_state.count; ++i)
    if (t_state.expected[i].block == p) t_state.expected[i].taken = false;
}

// oneDNN allocates and frees through raw_allocate/raw_deallocate, which may happen on different sides of the switch:
// one deleter that looks at the address serves all three origins.
void free_anywhere(void* p) {
  for (std::size_t i = 0; i < t_state.count; ++i)
    if (t_state.expected[i].block == p) {
      t_state.expected[i].taken = false;
      return;
    }
  if (runtime::is_hbm_address(p))
    runtime::free_block(p);
  else
    g_host_deleter(p);
}

class SwitchedAllocator final : public c10::Allocator {
 public:
  explicit SwitchedAllocator(c10::Allocator* host) : host_(host) { g_host_deleter = host->raw_deleter(); }

  c10::DataPtr allocate(std::size_t bytes) override {
    const State& state = t_state;
    for (std::size_t i = 0; i < state.count; ++i) {
      auto& expected = state.expected[i];
      if (expected.taken || expected.bytes != bytes) continue;
      if (C10_UNLIKELY(expected.passes)) {
        --expected.passes;
        break;
      }
      expected.taken = true;
      return {expected.block, expected.block, &release_expected, kCpu};
    }
    if (C10_LIKELY(state.hbm_device < 0)) return host_->allocate(bytes);
    auto data = runtime::allocate(bytes, state.hbm_device);
    data.unsafe_set_device(kCpu);
    return data;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_anywhere; }
  bool is_simple_data_ptr(const c10::DataPtr& data) const override { return data.get() == data.get_context(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  c10::Allocator* host_;
};

}  // namespace

void install_placement() {
  static auto* allocator = new SwitchedAllocator(c10::GetCPUAllocator());
  c10::SetCPUAllocator(allocator, /*priority=*/255);
}

HbmScope::HbmScope(c10::DeviceIndex device) : previous_(t_state.hbm_device) { t_state.hbm_device = device; }
HbmScope::~HbmScope() { t_state.hbm_device = previous_; }

PlacementScope::PlacementScope(Expected* expected, std::size_t count) {
  t_state.expected = expected;
  t_state.count = count;
}
PlacementScope::~PlacementScope() {
  t_state.expected = nullptr;
  t_state.count = 0;
}

}  // namespace neuron::eager
