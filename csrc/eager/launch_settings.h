#pragma once
// What is asked of all launches: to be waited for, and to know the line that made them.
#include <string>

namespace neuron::eager {

// Where in the program a launch was made. Null unless launch lines are on.
struct LaunchSite {
  std::string file;
  int line;
};
// The bindings know Python; the launch path only calls this. The site must live for good.
void set_launch_site_probe(const LaunchSite* (*probe)());
// The same for the first call of each signature, which is slow anyway: reports name that line when launch lines are
// off.
void set_first_site_probe(const LaunchSite* (*probe)());
const LaunchSite* first_site();
// NEURON_LAUNCH_BLOCKING: every launch is waited for, and raises at its own line.
void set_launch_blocking(bool blocking);
bool launch_blocking();

// Of the launch that is being made; null unless launch lines are on. May ask the interpreter: no lock may be held.
const LaunchSite* launch_site();

}  // namespace neuron::eager
