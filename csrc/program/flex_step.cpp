#include "program/flex_step.h"

#include <c10/util/Exception.h>

#include "engines/flex_attention.h"
#include "program/frame.h"

namespace neuron::program {

namespace {

engines::Format format_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return engines::Format::kFloat32;
    case c10::ScalarType::BFloat16:
      return engines::Format::kBFloat16;
    case c10::ScalarType::Half:
      return engines::Format::kFloat16;
    case c10::ScalarType::Float8_e4m3fn:
      return engines::Format::kFloat8E4M3;
    case c10::ScalarType::Float8_e5m2:
      return engines::Format::kFloat8E5M2;
    default:
      TORCH_CHECK(false, "torchneuron: flex_attention does not take ", dtype);
  }
}

}  // namespace

class FlexRun final : public StepRun {
 public:
  explicit FlexRun(const FlexStep& step) : step_(step) {}

  void rebind(Frame& frame) override {
    const auto& p = step_.parts_;
    auto& a = gradient_.attention;
    a.query = heads(frame, FlexStep::kQuery);
    a.key = heads(frame, FlexStep::kKey);
    a.value = heads(frame, FlexStep::kValue);
    a.out = heads(frame, FlexStep::kOut);
    a.logsumexp = heads(frame, FlexStep::kLogsumexp);
    a.maxima = heads(frame, FlexStep::kMaxima);
    gradient_.grad_out = heads(frame, FlexStep::kGradOut);
    gradient_.grad_logsumexp = heads(frame, FlexStep::kGradLogsumexp);
    gradient_.grad_query = heads(frame, FlexStep::kGradQuery);
    gradient_.grad_key = heads(frame, FlexStep::kGradKey);
    gradient_.grad_value = heads(frame, FlexStep::kGradValue);
    a.batch = size(frame, FlexStep::kQuery, 0);
    a.heads = size(frame, FlexStep::kQuery, 1);
    a.queries = size(frame, FlexStep::kQuery, 2);
    a.depth = size(frame, FlexStep::kQuery, 3);
    a.kv_heads = size(frame, FlexStep::kKey, 1);
    a.keys = size(frame, FlexStep::kKey, 2);
    a.value_depth = size(frame, FlexStep::kValue, 3);
    if (size(frame, FlexStep::kKey, 0) == 1) a.key.batch = a.value.batch = 0;  // the same keys for the whole batch
    a.scale = p.scale;
    a.query_block = frame.value(p.query_block);
    a.key_block = frame.value(p.key_block);
    a.partial = lists(frame, FlexStep::kPartialCounts, FlexStep::kPartialIndices);
    a.full = lists(frame, FlexStep::kFullCounts, FlexStep::kFullIndices);
    take(frame, p.change_partial, a.change_partial);
    take(frame, p.change_full, a.change_full);
    take(frame, p.pull_partial, gradient_.pull_partial);
    take(frame, p.pull_full, gradient_.pull_full);
  }

  void run(Frame& frame) override {
    const auto& p = step_.parts_;
    auto& a = gradient_.attention;
    const std::pair<engines::Heads*, FlexStep::Role> tensors[] = {
        {&a.query, FlexStep::kQuery},
        {&a.key, FlexStep::kKey},
        {&a.value, FlexStep::kValue},
        {&a.out, FlexStep::kOut},
        {&a.logsumexp, FlexStep::kLogsumexp},
        {&a.maxima, FlexStep::kMaxima},
        {&gradient_.grad_out, FlexStep::kGradOut},
        {&gradient_.grad_logsumexp, FlexStep::kGradLogsumexp},
        {&gradient_.grad_query, FlexStep::kGradQuery},
        {&gradient_.grad_key, FlexStep::kGradKey},
        {&gradient_.grad_value, FlexStep::kGradValue},
    };
    for (const auto& [heads, role] : tensors) heads->data = address(frame, role);
    point(frame, a.partial, FlexStep::kPartialCounts, FlexStep::kPartialIndices);
    point(frame, a.full, FlexStep::kFullCounts, FlexStep::kFullIndices);
    point(frame, p.change_partial, a.change_partial);
    point(frame, p.change_full, a.change_full);
    point(frame, p.pull_partial, gradient_.pull_partial);
    point(frame, p.pull_full, gradient_.pull_full);
    p.backward ? engines::flex_attention_backward(gradient_) : engines::flex_attention(a);
  }

  std::string describe(Frame&, std::string_view) const override { return step_.name(); }

 private:
  std::int32_t tensor(FlexStep::Role role) const { return step_.parts_.tensors[role]; }
  char* address(Frame& frame, FlexStep::Role role) const {
    return tensor(role) == FlexStep::kNone ? nullptr : frame.address(static_cast<std::uint32_t>(tensor(role)));
  }
  const Tensor& spec(Frame& frame, FlexStep::Role role) const {
    return frame.tensor(static_cast<std::uint32_t>(tensor(role)));
  }
  std::int64_t size(Frame& frame, FlexStep::Role role, std::size_t dim) const {
    return frame.value(spec(frame, role).sizes[dim]);
  }

  engines::Heads heads(Frame& frame, FlexStep::Role role) const {
    if (tensor(role) == FlexStep::kNone) return {};
    const Tensor& t = spec(frame, role);
    const auto stride = [&](std::size_t dim) { return dim < t.strides.size() ? frame.value(t.strides[dim]) : 1; };
    return {nullptr, format_of(t.dtype), stride(0), stride(1), stride(2), stride(3)};
  }

  engines::BlockLists lists(Frame& frame, FlexStep::Role counts, FlexStep::Role indices) const {
    engines::BlockLists lists;
    if (tensor(counts) == FlexStep::kNone) return lists;
    lists.batches = size(frame, indices, 0);
    lists.heads = size(frame, indices, 1);
    lists.rows = size(frame, indices, 2);
    lists.columns = size(frame, indices, 3);
    for (std::size_t d = 0; d < 3; ++d) lists.count_strides[d] = frame.value(spec(frame, counts).strides[d]);
    for (std::size_t d = 0; d < 4; ++d) lists.index_strides[d] = frame.value(spec(frame, indices).strides[d]);
    return lists;
  }
  void point(Frame& frame, engines::BlockLists& lists, FlexStep::Role counts, FlexStep::Role indices) const {
    lists.counts = reinterpret_cast<const std::int32_t*>(address(frame, counts));
    lists.indices = reinterpret_cast<const std::int32_t*>(address(frame, indices));
  }

  static void take(Frame& frame, const FlexStep::Code& code, engines::TileCode& tile) {
    tile.function = code.function;
    tile.captured.resize(code.captured.size());
    tile.ints.clear();
    for (const IntRef ref : code.ints) tile.ints.push_back(frame.value(ref));
  }
  static void point(Frame& frame, const FlexStep::Code& code, engines::TileCode& tile) {
    for (std::size_t i = 0; i < code.captured.size(); ++i) tile.captured[i] = frame.address(code.captured[i]);
  }

  const FlexStep& step_;
  engines::FlexAttentionGradient gradient_;
};

FlexStep::FlexStep(Parts parts, std::string label) : Step(std::move(label)), parts_(std::move(parts)) {}

std::unique_ptr<StepRun> FlexStep::instantiate(Frame&) const { return std::make_unique<FlexRun>(*this); }

}  // namespace neuron::program
