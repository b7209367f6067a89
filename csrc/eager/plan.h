#pragma once
// A launch plan: all that is known of an op's call once it was run with inputs of this signature - metadata of inputs
// and outputs, and the arguments that are part of the signature. Made by the first call, which runs synchronously.
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/util/DimVector.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace neuron::eager {

struct LaunchSite;
namespace fusion {
class Recipes;
}

// The signature of a call as words: equal words, equal metadata of the outputs.
using Key = c10::SmallVector<std::int64_t, 96>;

struct TensorMeta {
  c10::DimVector sizes, strides;
  caffe2::TypeMeta dtype;
  bool on_cpu = false;  // a CPU tensor without dimensions: its value travels with the launch
  bool wrapped = false, conj = false, neg = false;
  int shares_storage_with = -1;  // an earlier tensor of the call
};

enum class ArgKind : std::uint8_t {
  kTensor,
  kNoTensor,
  kNumber,
  kConstant,
  kTensorList,
  kOptionalTensorList,
  kNumberList,
  kGenerator
};

struct ArgPlan {
  ArgKind kind = ArgKind::kConstant;
  std::uint16_t count = 0;    // of a list
  c10::IValue constant;       // as the kernel gets it
  std::vector<bool> present;  // of an optional tensor list
};

enum class OutKind : std::uint8_t { kFresh, kArgument, kUndefined };

struct OutPlan {
  OutKind kind = OutKind::kFresh;
  std::int8_t argument = -1;
  c10::DimVector sizes, strides;
  caffe2::TypeMeta dtype;
  std::size_t bytes = 0;
  bool contiguous = false;
};

struct ReturnPlan {
  std::int32_t list = -1;  // number of tensors when the return is a list
};

struct Plan : std::enable_shared_from_this<Plan> {
  Plan();
  ~Plan();

  std::vector<std::int64_t> key;
  std::vector<ArgPlan> args;
  std::vector<TensorMeta> tensors;  // in order of the arguments, lists flattened
  std::vector<OutPlan> outs;        // in order of the returns, lists flattened
  std::vector<ReturnPlan> returns;
  std::uint32_t fresh = 0;  // outs of kind kFresh
  std::uint32_t numbers = 0;
  std::uint32_t payload_bytes = 0;
  void (*kernel)(torch::jit::Stack*) = nullptr;    // instead of ATen's for the CPU
  bool usable = true;                              // false: calls of this signature always run synchronously
  std::unique_ptr<const fusion::Recipes> recipes;  // null: no window can fuse such a call
  const LaunchSite* first_site = nullptr;          // the line that made the first call, where known
};

// Plans of one op. The lock is held from lookup to the end of the launch, so that a plan in use is not evicted.
class PlanCache {
 public:
  // Dynamic shapes would fill memory otherwise: past this many plans the cache starts again.
  static constexpr std::size_t kCapacity = 4096;

  void lock() noexcept;
  void unlock() noexcept { locked_.store(false, std::memory_order_release); }

  // Under the lock.
  const Plan* find(std::uint64_t hash, const Key& key) const;
  bool full() const { return plans_.size() >= kCapacity; }
  void insert(std::uint64_t hash, std::shared_ptr<Plan> plan);
  // No launch may be in flight that uses a plan of this cache. Captured ones keep theirs.
  void clear();

 private:
  void place(std::uint64_t hash, const Plan* plan);

  std::atomic<bool> locked_{false};
  std::vector<std::pair<std::uint64_t, const Plan*>> table_;  // open addressing, a power of two
  std::vector<std::pair<std::uint64_t, std::shared_ptr<Plan>>> plans_;
};

inline std::uint64_t hash_key(const Key& key) {
  // Two independent lanes hide the latency of the multiplications.
  constexpr std::uint64_t kMul = 0x9E3779B97F4A7C15ull;
  std::uint64_t a = key.size() * kMul, b = ~a;
  std::size_t i = 0;
  for (; i + 1 < key.size(); i += 2) {
    a = (a ^ static_cast<std::uint64_t>(key[i])) * kMul;
    b = (b ^ static_cast<std::uint64_t>(key[i + 1])) * 0xC2B2AE3D27D4EB4Full;
    a ^= a >> 29;
    b ^= b >> 31;
  }
  if (i < key.size()) a = (a ^ static_cast<std::uint64_t>(key[i])) * kMul;
  a ^= b;
  a ^= a >> 32;
  a *= kMul;
  return a ^ (a >> 29);
}

}  // namespace neuron::eager
