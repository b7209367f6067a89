#pragma once
// An op's call in words, for errors.
#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>

namespace neuron::eager {

struct LaunchSite;

// "aten::gather(Float[4, 5], Long[2, 4] with values from 0 to 11)". `tensors` are CPU tensors or aliases. The range of
// index tensors is read only when `error` says that something is out of range: kernels often do not name the index.
std::string describe_call(std::string_view op, at::TensorList tensors, std::string_view error);

// What is added to the error of a launch: that it was `what` (a call in words) which failed, and where it was launched.
std::string describe_launch(std::string_view what, const LaunchSite* site);

}  // namespace neuron::eager
