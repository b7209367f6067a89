#pragma once
// A step of a program. A step is described once and shared by all runs; what it computes on in one run, objects that
// later runs use again, belongs to a frame.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace neuron::program {

class Frame;

// A step in one frame.
class StepRun {
 public:
  virtual ~StepRun() = default;
  // The frame's integers have changed: called before the first run, and before the first one with other integers.
  virtual void rebind(Frame& frame) {}
  virtual void run(Frame& frame) = 0;
  // The step in words, for an error that it raised.
  virtual std::string describe(Frame& frame, std::string_view error) const = 0;
};

class Step {
 public:
  explicit Step(std::string label) : label_(std::move(label)) {}
  virtual ~Step() = default;

  virtual std::unique_ptr<StepRun> instantiate(Frame& frame) const = 0;
  // Needs the device's random numbers.
  virtual bool draws() const { return false; }
  // In a word or two, for listings.
  virtual std::string name() const = 0;
  // Where it comes from in the user's program; may be empty.
  const std::string& label() const { return label_; }

 private:
  std::string label_;
};

}  // namespace neuron::program
