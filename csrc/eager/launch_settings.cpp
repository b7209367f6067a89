#include "eager/launch_settings.h"

#include <atomic>

namespace neuron::eager {

namespace {
std::atomic<const LaunchSite* (*)()> g_site_probe{nullptr};
std::atomic<const LaunchSite* (*)()> g_first_site_probe{nullptr};
std::atomic<bool> g_blocking{false};
}  // namespace

void set_launch_site_probe(const LaunchSite* (*probe)()) { g_site_probe.store(probe); }
void set_first_site_probe(const LaunchSite* (*probe)()) { g_first_site_probe.store(probe); }
const LaunchSite* first_site() {
  auto* probe = g_first_site_probe.load(std::memory_order_relaxed);
  return probe ? probe() : nullptr;
}
void set_launch_blocking(bool blocking) { g_blocking.store(blocking); }
bool launch_blocking() { return g_blocking.load(std::memory_order_relaxed); }

const LaunchSite* launch_site() {
  auto* probe = g_site_probe.load(std::memory_order_relaxed);
  return probe ? probe() : nullptr;
}

}  // namespace neuron::eager
