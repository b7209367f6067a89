#pragma once
// Machine code for stages, without a compiler: functions that interpret the text of a stage.
#include <string>

#include "engines/run.h"

namespace reference {

// The function of a stage with this text; it lives for good. Null when there are none left. An error of the text ends
// the program.
neuron::engines::StageFn interpret(const std::string& text);

// How often functions of stages were called since the start.
std::int64_t stage_calls();

}  // namespace reference
