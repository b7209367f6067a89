#pragma once
// What a launch of an ATen op carries, and how the worker runs it.
#include <c10/core/GeneratorImpl.h>

#include <cstddef>

#include "driver/queue.h"
#include "eager/call.h"

namespace neuron::eager {

namespace fusion {
struct Recipe;
}
struct LaunchSite;

union TensorPayload {
  struct {
    const void* storage;
    std::size_t bytes;
    std::int64_t offset;
  } stored;
  std::byte value[16];  // of a CPU tensor without dimensions
};

// Followed by one TensorPayload per tensor, one block address per fresh output and the numbers.
struct OpPayload {
  const OpInfo* op;
  const Plan* plan;
  const LaunchSite* site;
  c10::GeneratorImpl* generator;  // owned
  const fusion::Recipe* recipe;   // null: the launch runs alone

  TensorPayload* tensors() { return reinterpret_cast<TensorPayload*>(this + 1); }
  void** blocks() { return reinterpret_cast<void**>(tensors() + plan->tensors.size()); }
  Number* numbers() { return reinterpret_cast<Number*>(blocks() + plan->fresh); }

  static std::size_t bytes(const Plan& plan) {
    return sizeof(OpPayload) + plan.tensors.size() * sizeof(TensorPayload) + plan.fresh * sizeof(void*) +
           plan.numbers * sizeof(Number);
  }
};
static_assert(sizeof(OpPayload) % alignof(Number) == 0 && sizeof(OpPayload) % alignof(TensorPayload) == 0);

void execute(driver::Launch& launch);
void drop_generator(driver::Launch& launch);

}  // namespace neuron::eager
