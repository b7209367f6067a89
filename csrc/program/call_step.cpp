#include "program/call_step.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/stack.h>

#include <array>
#include <string_view>

#include "eager/describe.h"
#include "eager/low_precision.h"
#include "eager/placement.h"
#include "eager/settle.h"
#include "program/frame.h"

namespace neuron::program {

namespace {

struct Replacement {
  const char *name, *overload;
  const char *by_name, *by_overload;
};
constexpr Replacement kReplacements[] = {
    {"aten::rand", "", "aten::rand", "generator"},
    {"aten::randn", "", "aten::randn", "generator"},
    {"aten::randint", "", "aten::randint", "generator"},
    {"aten::randint", "low", "aten::randint", "low_generator"},
    {"aten::randperm", "", "aten::randperm", "generator"},
    {"aten::rand_like", "", "aten::rand_like", "generator"},
    {"aten::randn_like", "", "aten::randn_like", "generator"},
    {"aten::randint_like", "", "aten::randint_like", "generator"},
    {"aten::randint_like", "low_dtype", "aten::randint_like", "low_generator_dtype"},
    {"aten::randint_like", "Tensor", "aten::randint_like", "Tensor_generator"},
    {"aten::native_dropout", "", "neuron::dropout", ""},
    {"aten::native_dropout_backward", "", "neuron::dropout_backward", ""},
};

}  // namespace

eager::OpInfo* op_for_step(const char* name, const char* overload) {
  for (const auto& r : kReplacements)
    if (std::string_view(name) == r.name && std::string_view(overload) == r.overload) {
      name = r.by_name;
      overload = r.by_overload;
      break;
    }
  const auto handle = c10::Dispatcher::singleton().findSchema({name, overload});
  if (!handle) return nullptr;
  auto& op = eager::op_info(*handle);
  if (!op.recordable || op.draws_unseeded) return nullptr;
  return &op;
}

class CallRun final : public StepRun {
 public:
  CallRun(const CallStep& step, Frame& frame)
      : step_(step), shapes_(step.results_.size()), passes_(shapes_.size()), tried_(shapes_.size()) {
    arguments_.reserve(step.arguments_.size());
    for (const auto& argument : step.arguments_) arguments_.push_back(prepared(argument, frame));
    stack_.reserve(arguments_.size() + step.results_.size());
    expected_.resize(step.results_.size());
    kernel_ = eager::low_precision_kernel(step.op_.name, tensors_);
  }

  void rebind(Frame& frame) override {
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      const auto& argument = step_.arguments_[i];
      switch (argument.kind) {
        case CallArgument::Kind::kInt:
          arguments_[i] = frame.value(argument.ints[0]);
          break;
        case CallArgument::Kind::kIntAsFloat:
          arguments_[i] = static_cast<double>(frame.value(argument.ints[0]));
          break;
        case CallArgument::Kind::kIntList: {
          c10::List<std::int64_t> list;
          list.reserve(argument.ints.size());
          for (const IntRef ref : argument.ints) list.push_back(frame.value(ref));
          arguments_[i] = std::move(list);
          break;
        }
        case CallArgument::Kind::kIntAsTensor: {
          auto number = at::scalar_to_tensor(c10::Scalar(frame.value(argument.ints[0])));
          number.unsafeGetTensorImpl()->set_wrapped_number(true);
          arguments_[i] = std::move(number);
          break;
        }
        default:
          break;
      }
    }
    for (std::size_t r = 0; r < shapes_.size(); ++r)
      if (const auto t = step_.results_[r]; t != CallStep::kNotWanted)
        shapes_[r] = frame.binding().shape_of(frame.tensor(static_cast<std::uint32_t>(t)));
  }

  void run(Frame& frame) override {
    struct Tidy {
      torch::jit::Stack& stack;
      ~Tidy() { stack.clear(); }
    } tidy{stack_};
    for (std::size_t i = 0; i < arguments_.size(); ++i)
      if (C10_UNLIKELY(step_.arguments_[i].kind == CallArgument::Kind::kGenerator))
        stack_.emplace_back(frame.generator());
      else
        stack_.push_back(arguments_[i]);
    const std::size_t expected = expect_results(frame);
    {
      eager::PlacementScope placement(expected_.data(), expected);
      if (kernel_)
        kernel_(&stack_);
      else
        step_.op_.handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack_);
    }
    if (expected) settle_results(frame);
    for (const auto t : step_.written_) frame.check_alias(t, step_.op_.name);
  }

  std::string describe(Frame&, std::string_view error) const override {
    std::vector<at::Tensor> tensors;
    for (auto* t : tensors_) tensors.emplace_back(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(t));
    return eager::describe_call(step_.op_.name, tensors, error);
  }

 private:
  c10::IValue prepared(const CallArgument& argument, Frame& frame) {
    const auto alias = [&](std::int32_t t) {
      auto tensor = frame.alias(static_cast<std::uint32_t>(t));
      tensors_.push_back(tensor.unsafeGetTensorImpl());
      return tensor;
    };
    switch (argument.kind) {
      case CallArgument::Kind::kConstant:
        if (argument.constant.isTensor() && argument.constant.toTensor().defined())
          tensors_.push_back(argument.constant.unsafeToTensorImpl());
        return argument.constant;
      case CallArgument::Kind::kTensor:
        return alias(argument.tensors[0]);
      case CallArgument::Kind::kTensorList: {
        c10::List<at::Tensor> list;
        for (const auto t : argument.tensors) list.push_back(t < 0 ? at::Tensor() : alias(t));
        return list;
      }
      case CallArgument::Kind::kOptionalTensorList: {
        c10::List<std::optional<at::Tensor>> list;
        for (const auto t : argument.tensors) list.push_back(t < 0 ? std::nullopt : std::optional(alias(t)));
        return list;
      }
      default:
        return {};
    }
  }

  // Where the kernel's allocations are to lie.
  std::size_t expect_results(Frame& frame) {
    std::size_t count = 0;
    for (std::size_t r = 0; r < shapes_.size(); ++r) {
      const auto t = step_.results_[r];
      if (t == CallStep::kNotWanted) continue;
      const auto bytes = static_cast<std::size_t>(frame.binding().place(static_cast<std::size_t>(t)).bytes);
      expected_[count++] = {frame.address(static_cast<std::uint32_t>(t)), bytes, bytes == 0, passes_[r]};
    }
    return count;
  }

  void settle_results(Frame& frame) {
    eager::Settlement settlement;
    std::size_t next = 0;
    const auto one = [&](const at::Tensor& tensor) {
      const std::size_t r = next++;
      const auto t = r < step_.results_.size() ? step_.results_[r] : CallStep::kNotWanted;
      if (t == CallStep::kNotWanted) return;
      const auto& spec = frame.tensor(static_cast<std::uint32_t>(t));
      const eager::Spot spot{frame.address(static_cast<std::uint32_t>(t)), shapes_[r].sizes, shapes_[r].strides,
                             c10::scalarTypeToTypeMeta(spec.dtype)};
      if (!settlement.add(tensor, spot, step_.op_.name)) learn(r);
    };
    for (const auto& value : stack_)
      if (C10_LIKELY(value.isTensor()))
        one(value.toTensor());
      else
        for (const auto& element : value.toListRef()) one(element.toTensor());
    TORCH_CHECK(next >= step_.results_.size(), "torchneuron: ", step_.op_.name, " gave fewer results than planned");
    settlement.finish();
  }

  // A temporary of the kernel may have taken the place of a result: next time it is given to a later allocation.
  void learn(std::size_t r) {
    constexpr std::uint8_t kTries = 4, kGivenUp = 255;
    if (tried_[r] == kGivenUp) return;
    tried_[r] = tried_[r] == kTries ? kGivenUp : static_cast<std::uint8_t>(tried_[r] + 1);
    passes_[r] = tried_[r] == kGivenUp ? 0 : tried_[r];
  }

  const CallStep& step_;
  std::vector<c10::IValue> arguments_;     // as they are pushed
  std::vector<c10::TensorImpl*> tensors_;  // among them, in order
  std::vector<Binding::Shape> shapes_;     // of the results
  std::vector<eager::Expected> expected_;
  std::vector<std::uint8_t> passes_, tried_;  // of each result, see learn()
  torch::jit::Stack stack_;
  eager::ReplacementKernel kernel_ = nullptr;
};

CallStep::CallStep(eager::OpInfo& op, std::vector<CallArgument> arguments, std::vector<std::int32_t> results,
                   std::string label)
    : Step(std::move(label)), op_(op), arguments_(std::move(arguments)), results_(std::move(results)) {
  if (!op.mutates) return;
  for (std::size_t i = 0; i < arguments_.size(); ++i)
    if (op.args[i].written)
      for (const auto t : arguments_[i].tensors)
        if (t >= 0) written_.push_back(static_cast<std::uint32_t>(t));
}

std::unique_ptr<StepRun> CallStep::instantiate(Frame& frame) const { return std::make_unique<CallRun>(*this, frame); }

}  // namespace neuron::program
