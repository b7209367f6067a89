#include "eager/settle.h"

#include <cstring>
#include <vector>

#include "eager/alias.h"
#include "eager/statistics.h"

namespace neuron::eager {

namespace {

// Do the elements lie as planned, wherever they are? Strides of dimensions of size 1 mean nothing.
bool lies_as_planned(const c10::TensorImpl* t, const Spot& spot) {
  if (t->is_conj() || t->is_neg() || t->key_set().has(c10::DispatchKey::ZeroTensor)) return false;
  const auto strides = t->strides();
  if (C10_LIKELY(strides.equals(spot.strides))) return true;
  for (std::size_t d = 0; d < strides.size(); ++d)
    if (strides[d] != spot.strides[d] && spot.sizes[d] != 1) return false;
  return true;
}

const std::byte* first_element(const c10::TensorImpl* t) {
  return static_cast<const std::byte*>(t->unsafe_storage().data()) +
         static_cast<std::size_t>(t->storage_offset()) * t->dtype().itemsize();
}

// The bytes between its elements belong to nobody else, so that it can be copied as one piece.
bool without_gaps(const at::Tensor& tensor, const Spot& spot) {
  return span_bytes(spot.sizes, spot.strides, 1) <= static_cast<std::size_t>(tensor.numel());
}

}  // namespace

std::size_t span_bytes(c10::IntArrayRef sizes, c10::IntArrayRef strides, std::size_t itemsize) {
  std::int64_t last = 0;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (!sizes[d]) return 0;
    last += (sizes[d] - 1) * strides[d];
  }
  return static_cast<std::size_t>(last + 1) * itemsize;
}

bool Settlement::add(const at::Tensor& result, const Spot& spot, const std::string& op) {
  const auto* t = result.unsafeGetTensorImpl();
  TORCH_CHECK(result.defined() && t->sizes().equals(spot.sizes) && t->dtype() == spot.dtype, "torchneuron: ", op,
              " gave an output of another shape or dtype than for earlier inputs of the same signature. Its outputs ",
              "depend on data, which its tags do not say: please report this op.");
  if (!t->numel() || (first_element(t) == spot.address && lies_as_planned(t, spot))) return true;
  moved_.push_back({result, spot});
  return false;
}

void Settlement::move() {
  std::vector<std::vector<std::byte>> saved(moved_.size());
  const auto raw = [](const Moved& m) {
    return lies_as_planned(m.tensor.unsafeGetTensorImpl(), m.spot) && without_gaps(m.tensor, m.spot);
  };
  const auto bytes = [](const Moved& m) { return span_bytes(m.spot.sizes, m.spot.strides, m.spot.dtype.itemsize()); };
  // Results may lie in each other's places, or in their own in another order: those are read before any is written.
  const auto is_overwritten = [&](std::size_t i) {
    const auto& storage = moved_[i].tensor.storage();
    const auto* begin = static_cast<const std::byte*>(storage.data());
    for (std::size_t j = 0; j <= i; ++j) {
      const auto* place = static_cast<const std::byte*>(moved_[j].spot.address);
      if (place < begin + storage.nbytes() && begin < place + bytes(moved_[j])) return true;
    }
    return false;
  };
  for (std::size_t i = 0; i < moved_.size(); ++i) {
    auto& m = moved_[i];
    if (!is_overwritten(i)) continue;
    if (raw(m)) {
      const auto* p = first_element(m.tensor.unsafeGetTensorImpl());
      saved[i].assign(p, p + bytes(m));
    } else {
      m.tensor = m.tensor.clone();
    }
  }
  for (std::size_t i = 0; i < moved_.size(); ++i) {
    count(g_counters.moved_outputs);
    auto& m = moved_[i];
    if (!saved[i].empty()) {
      std::memcpy(m.spot.address, saved[i].data(), saved[i].size());
    } else if (raw(m)) {
      std::memmove(m.spot.address, first_element(m.tensor.unsafeGetTensorImpl()), bytes(m));
    } else {
      auto target =
          at::Tensor(c10::make_intrusive<c10::TensorImpl>(c10::Storage(cpu_storage(m.spot.address, bytes(m))),
                                                          c10::DispatchKeySet(c10::DispatchKey::CPU), m.spot.dtype));
      target.unsafeGetTensorImpl()->set_sizes_and_strides(m.spot.sizes, m.spot.strides);
      target.copy_(m.tensor);
    }
  }
}

}  // namespace neuron::eager
