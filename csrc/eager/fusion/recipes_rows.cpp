// Ops along the last dimension, and joining tensors. Rows are what the dimensions before it make; a row's result does
// not depend on the others, so tiles of whole rows give ATen's bits. Never fused: reductions over other dimensions, of
// tensors with gaps, and of shapes for which ATen's order of additions depends on the threads (aten_math/exact.h).
#include "eager/aten_math/exact.h"
#include "eager/fusion/builder.h"

namespace neuron::eager::fusion {

namespace {

using c10::ScalarType;
using engines::RowFunction;

// Begins a piece over the rows of `tensor`, which must be those of its last dimension.
void begin_last_dim(Builder& b, int tensor, RowFunction function) {
  const auto dims = static_cast<std::int64_t>(b.meta(tensor).sizes.size());
  if (!dims || b.meta(tensor).on_cpu) throw Builder::Unfusable{};
  b.begin_rows(tensor, dims - 1);
  const std::int64_t cols = b.meta(tensor).sizes.back();
  const auto dtype = *engine_dtype(b.type(tensor));
  for (const int threads : {1, 2})  // their number may change while the recipe lives
    if (!aten_row_exact(function, dtype, b.rows(), cols, threads)) throw Builder::Unfusable{};
}

bool is_last_dim(const Builder& b, int tensor, std::int64_t dim) {
  const auto dims = static_cast<std::int64_t>(b.meta(tensor).sizes.size());
  return dim == dims - 1 || dim == -1;
}

bool is_last_dim(const Builder& b, int tensor, const c10::IValue& dims) {
  return dims.isIntList() && dims.toIntVector().size() == 1 && is_last_dim(b, tensor, dims.toIntVector()[0]);
}

// sum(self, dim, keepdim, dtype), amax(self, dim, keepdim)
template <RowFunction function>
void reduce(Builder& b) {
  const int self = b.tensor(0);
  if (!engine_dtype(b.type(self)) || !is_last_dim(b, self, b.constant(1)) || b.out_type() != b.type(self))
    throw Builder::Unfusable{};
  begin_last_dim(b, self, function);
  b.store_out_rows(b.row(function, {b.load(self)}, true));
}

template <RowFunction function>
void softmax(Builder& b) {
  const int self = b.tensor(0);
  if (!engine_dtype(b.type(self)) || !is_last_dim(b, self, b.constant(1).toInt()) || b.out_type() != b.type(self))
    throw Builder::Unfusable{};
  begin_last_dim(b, self, function);
  b.store_out(b.row(function, {b.load(self)}, false));
}

template <RowFunction function>
void softmax_backward(Builder& b) {
  const int gradient = b.tensor(0), output = b.tensor(1);
  const auto type = b.type(gradient);
  if (!engine_dtype(type) || type != b.type(output) || type != b.out_type() ||
      !is_last_dim(b, gradient, b.constant(2).toInt()))
    throw Builder::Unfusable{};
  begin_last_dim(b, gradient, function);
  b.store_out(b.row(function, {b.load(gradient), b.load(output)}, false));
}

void cat(Builder& b) {
  const auto out = b.out_type();
  const std::int64_t dims = static_cast<std::int64_t>(b.out_sizes().size());
  std::int64_t dim = b.constant(1).toInt();
  if (dim < 0) dim += dims;
  if (b.list_size(0) < 2) throw Builder::Unfusable{};
  b.begin_out_rows(dim);
  for (int i = 0; i < b.list_size(0); ++i) {
    const auto& meta = b.meta(b.tensor(0, i));
    if (b.type(b.tensor(0, i)) != out || static_cast<std::int64_t>(meta.sizes.size()) != dims ||
        meta.sizes[static_cast<std::size_t>(dim)] == 0)
      throw Builder::Unfusable{};
  }
  Typed joined = b.load_part(b.tensor(0, 0));
  for (int i = 1; i < b.list_size(0); ++i) joined = b.concat(joined, b.load_part(b.tensor(0, i)));
  b.store_out(joined);
}

const bool g_registered = [] {
  register_fusable({"sum.dim_IntList"}, {&reduce<RowFunction::kSum>});
  register_fusable({"mean.dim"}, {&reduce<RowFunction::kMean>});
  register_fusable({"amax"}, {&reduce<RowFunction::kMax>});
  register_fusable({"amin"}, {&reduce<RowFunction::kMin>});
  register_fusable({"_softmax"}, {&softmax<RowFunction::kSoftmax>});
  register_fusable({"_log_softmax"}, {&softmax<RowFunction::kLogSoftmax>});
  register_fusable({"_softmax_backward_data"}, {&softmax_backward<RowFunction::kSoftmaxBackward>});
  register_fusable({"_log_softmax_backward_data"}, {&softmax_backward<RowFunction::kLogSoftmaxBackward>});
  register_fusable({"cat"}, {&cat});
  return true;
}();

}  // namespace

}  // namespace neuron::eager::fusion
