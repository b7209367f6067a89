#include "eager/plan.h"

#include <cstring>
#include <thread>

#include "driver/relax.h"
#include "eager/fusion/recipe.h"

namespace neuron::eager {

Plan::Plan() = default;
Plan::~Plan() = default;

void PlanCache::lock() noexcept {
  for (int spins = 0; locked_.exchange(true, std::memory_order_acquire);)
    if (++spins < 200)
      driver::cpu_relax();
    else
      std::this_thread::yield();
}

const Plan* PlanCache::find(std::uint64_t hash, const Key& key) const {
  if (table_.empty()) return nullptr;
  const std::size_t mask = table_.size() - 1;
  for (std::size_t i = hash & mask;; i = (i + 1) & mask) {
    const auto& [stored, plan] = table_[i];
    if (!plan) return nullptr;
    if (stored == hash && plan->key.size() == key.size() &&
        !std::memcmp(plan->key.data(), key.data(), key.size() * sizeof(std::int64_t)))
      return plan;
  }
}

void PlanCache::place(std::uint64_t hash, const Plan* plan) {
  const std::size_t mask = table_.size() - 1;
  std::size_t i = hash & mask;
  while (table_[i].second) i = (i + 1) & mask;
  table_[i] = {hash, plan};
}

void PlanCache::insert(std::uint64_t hash, std::shared_ptr<Plan> plan) {
  plans_.emplace_back(hash, std::move(plan));
  if (plans_.size() * 2 > table_.size()) {
    table_.assign(table_.empty() ? 8 : table_.size() * 2, {0, nullptr});
    for (const auto& [h, p] : plans_) place(h, p.get());
  } else {
    place(hash, plans_.back().second.get());
  }
}

void PlanCache::clear() {
  table_.clear();
  plans_.clear();
}

}  // namespace neuron::eager
