#include "engines/tiles.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "engines/arena.h"
#include "engines/strided.h"

namespace neuron::engines {
namespace {

constexpr std::size_t kMaxClasses = 256;

// Registers whose distance is a multiple of a page look alike to the processor's check of loads against earlier stores.
constexpr std::size_t kSkew = 3 * Arena::kAlignment;

std::byte* offset(void* p, std::int64_t bytes) { return static_cast<std::byte*>(p) + bytes; }
const std::byte* offset(const void* p, std::int64_t bytes) { return static_cast<const std::byte*>(p) + bytes; }

// Elements [lo, hi) of those in `part` that a loop over the whole tensor, cut as ElementFunction says, would leave to
// its scalar code.
template <class Body>
void for_each_remainder(const ElementFunction& function, std::int64_t elements, int threads, std::int64_t lo,
                        std::int64_t hi, Body&& body) {
  const std::int64_t grain = function.grain == nullptr ? elements : function.grain(elements, threads);
  std::int64_t ranges = 1;
  if (grain > 0 && threads > 1) ranges = std::min<std::int64_t>(threads, (elements + grain - 1) / grain);
  const std::int64_t length = (elements + ranges - 1) / ranges;
  for (std::int64_t begin = lo / length * length; begin < hi; begin += length) {
    const std::int64_t end = std::min(begin + length, elements);
    const std::int64_t first = std::max(lo, end - (end - begin) % function.step), last = std::min(hi, end);
    if (first < last) body(first, last - first);
  }
}

class Tiles {
 public:
  Tiles(const TileRun& run, std::int64_t begin, std::int64_t end)
      : run_(run), plan_(run.plan), geometry_(run.geometry), row_(begin), end_(end) {
    lay_out();
  }

  void run() {
    fill_columns();
    while (row_ < end_) {
      set_rows(std::min(run_.tile, end_ - row_));
      for (const Block& block : plan_.blocks) {
        steps(block.pre, block.body);
        const StageFn code = block.stage < 0 ? nullptr : run_.code[block.stage].load(std::memory_order_acquire);
        if (code != nullptr)
          call(code, plan_.stages[static_cast<std::size_t>(block.stage)]);
        else
          steps(block.body, block.post);
        steps(block.post, block.end);
      }
      for (const std::uint16_t access : plan_.moving) {
        void*& slot = slots_[plan_.access_slot(access)];
        slot = offset(slot, elements_[run_.program.accesses[access].cols] * element_size(access));
      }
      row_ += rows_;
    }
    if (streamed_) finish_stores_past_caches();
  }

  // The whole range in one call.
  void run_whole(StageFn code) {
    set_rows(end_ - row_);
    call(code, plan_.stages[0]);
  }

 private:
  std::int64_t element_size(std::size_t access) const {
    return static_cast<std::int64_t>(size_of(run_.program.accesses[access].dtype));
  }

  void lay_out() {
    static thread_local Arena arena;
    const std::size_t registers = plan_.registers.size(), accesses = run_.program.accesses.size();
    const std::size_t slots = registers + accesses + run_.program.scalars.size();
    std::size_t operands = 0;
    for (const Stage& stage : plan_.stages) operands = std::max(operands, stage.operands.size());
    const auto register_bytes = [&](const Register& r) {
      const std::int64_t elements = run_.tile * geometry_.cols[r.cols];
      return Arena::aligned(static_cast<std::size_t>(elements) * size_of(r.lane)) + kSkew;
    };
    std::int64_t widest = 1;
    for (const std::int64_t cols : geometry_.cols) widest = std::max(widest, cols);
    const std::size_t pointers = Arena::aligned((slots + operands + registers) * sizeof(void*));
    std::size_t bytes = pointers + static_cast<std::size_t>(run_.tile * widest) * plan_.scratch_element;
    for (const Register& r : plan_.registers) bytes += register_bytes(r);

    std::byte* memory = arena.reserve(bytes);
    slots_ = reinterpret_cast<void**>(memory);
    operands_ = slots_ + slots;
    registers_ = operands_ + operands;
    memory += pointers;
    void** slot = slots_;
    for (const Register& r : plan_.registers) {
      *slot++ = memory;
      memory += register_bytes(r);
    }
    std::copy(slots_, slots_ + registers, registers_);
    scratch_ = memory;
    for (std::size_t a = 0; a < accesses; ++a) *slot++ = run_.memory[a];
    for (const std::uint16_t access : plan_.moving) {
      void*& address = slots_[plan_.access_slot(access)];
      address = offset(address, row_ * geometry_.cols[run_.program.accesses[access].cols] * element_size(access));
    }
    // Steps only read operands, so scalars may lie in the caller's constant array.
    for (std::size_t s = 0; s < run_.program.scalars.size(); ++s) *slot++ = const_cast<Scalar*>(run_.scalars + s);
  }

  void set_rows(std::int64_t rows) {
    rows_ = rows;
    for (std::size_t c = 0; c < geometry_.cols.size(); ++c) elements_[c] = rows * geometry_.cols[c];
  }

  void fill_columns() {
    if (plan_.columns.empty()) return;
    bool compiled = true;
    for (std::size_t s = 0; s < plan_.stages.size(); ++s)
      compiled &= run_.code[s].load(std::memory_order_acquire) != nullptr;
    const std::int64_t rows = std::min(run_.tile, end_ - row_);
    for (const ColumnsFill& fill : plan_.columns) {
      if (compiled && !fill.outside_stages) continue;
      const std::int64_t cols = geometry_.cols[fill.cols];
      auto* out = static_cast<std::byte*>(slots_[fill.out]);
      fill.load(out, slots_[fill.in], nullptr, nullptr, cols);
      const std::int64_t bytes = cols * fill.element;
      for (std::int64_t r = 1; r < rows; ++r) std::memcpy(out + r * bytes, out, static_cast<std::size_t>(bytes));
    }
  }

  void call(StageFn code, const Stage& stage) {
    for (std::size_t i = 0; i < stage.operands.size(); ++i) operands_[i] = slots_[stage.operands[i].slot];
    code(operands_, run_.scalars, rows_, geometry_.cols[stage.cols]);
  }

  void steps(std::uint32_t begin, std::uint32_t end) {
    for (const Step* step = plan_.steps.data() + begin; step != plan_.steps.data() + end; ++step) {
      if (step->kind == Step::Kind::kKernel)
        step->kernel(slots_[step->out], slots_[step->in[0]], slots_[step->in[1]], slots_[step->in[2]],
                     elements_[step->cols]);
      else
        other(*step);
    }
  }

  void other(const Step& step) {
    switch (step.kind) {
      case Step::Kind::kGather:
        return gather_step(step);
      case Step::Kind::kScatter:
        return scatter_step(step);
      case Step::Kind::kExpand:
        return expand(step);
      case Step::Kind::kConcat:
        return concat(step);
      case Step::Kind::kCall:
        return call_function(step);
      default:
        return call_row_function(step);
    }
  }

  void gather_step(const Step& step) {
    const std::int64_t n = elements_[step.cols];
    const auto& where = geometry_.strides[step.index];
    const std::int64_t first = row_ * geometry_.cols[step.cols];
    if (step.kernel == nullptr) {
      // Steps only read a register that is gathered, and it is no other value's.
      slots_[step.out] = registers_[step.out];
      if (!run_.program.accesses[step.index].written)
        if (const void* memory = packed_in_place(slots_[step.in[0]], where, first, n, step.element)) {
          slots_[step.out] = const_cast<void*>(memory);
          return;
        }
    }
    void* packed = step.kernel == nullptr ? slots_[step.out] : scratch_;
    gather(packed, slots_[step.in[0]], where, first, n, step.element);
    if (step.kernel != nullptr) step.kernel(slots_[step.out], packed, nullptr, nullptr, n);
  }

  void scatter_step(const Step& step) {
    const void* packed = slots_[step.in[0]];
    const std::int64_t n = elements_[step.cols];
    if (step.kernel != nullptr) {
      step.kernel(scratch_, packed, nullptr, nullptr, n);
      packed = scratch_;
    }
    const std::int64_t first = row_ * geometry_.cols[step.cols];
    if (run_.program.accesses[step.index].kind == Access::Kind::kStreamed) {
      store_past_caches(offset(slots_[step.out], first * step.element), packed,
                        static_cast<std::size_t>(n) * step.element);
      streamed_ = true;
      return;
    }
    scatter(slots_[step.out], packed, geometry_.strides[step.index], first, n, step.element);
  }

  void expand(const Step& step) {
    if (step.scalar_mask != 0)
      return step.kernel(slots_[step.out], slots_[step.in[0]], nullptr, nullptr, elements_[step.cols]);
    const std::int64_t cols = geometry_.cols[step.cols];
    auto* out = static_cast<std::byte*>(slots_[step.out]);
    const auto* in = static_cast<const std::byte*>(slots_[step.in[0]]);
    for (std::int64_t r = 0; r < rows_; ++r)
      step.kernel(out + r * cols * step.element, in + r * step.element, nullptr, nullptr, cols);
  }

  void concat(const Step& step) {
    const std::int64_t left = geometry_.cols[step.cols_of[0]] * step.element;
    const std::int64_t right = geometry_.cols[step.cols_of[1]] * step.element;
    const std::byte* a = static_cast<const std::byte*>(slots_[step.in[0]]);
    const std::byte* b = static_cast<const std::byte*>(slots_[step.in[1]]);
    auto* out = static_cast<std::byte*>(slots_[step.out]);
    for (std::int64_t r = 0; r < rows_; ++r) {
      std::memcpy(out, a, static_cast<std::size_t>(left));
      std::memcpy(out + left, b, static_cast<std::size_t>(right));
      out += left + right;
      a += left;
      b += right;
    }
  }

  void call_function(const Step& step) {
    const std::int64_t n = elements_[step.cols];
    const void* in[2] = {slots_[step.in[0]], step.given & 2 ? slots_[step.in[1]] : nullptr};
    for (std::size_t i = 0; i < 2; ++i) {
      if ((step.scalar_mask & (1u << i)) == 0) continue;
      step.kernel(slots_[step.scratch[i]], in[i], nullptr, nullptr, n);
      in[i] = slots_[step.scratch[i]];
    }
    void* out = slots_[step.out];
    step.function->fn(out, in[0], in[1], n);
    if (step.function->remainder == nullptr) return;
    const std::int64_t cols = geometry_.cols[step.cols], lo = row_ * cols;
    const auto element = static_cast<std::int64_t>(size_of(step.lane));
    for_each_remainder(*step.function, run_.rows * cols, run_.threads, lo, lo + n,
                       [&](std::int64_t first, std::int64_t count) {
                         const std::int64_t bytes = (first - lo) * element;
                         step.function->remainder(offset(out, bytes), offset(in[0], bytes),
                                                  in[1] == nullptr ? nullptr : offset(in[1], bytes), count);
                       });
  }

  void call_row_function(const Step& step) {
    const void* in[5] = {};
    Scalar scalars[5];
    std::size_t numbers = 0;
    for (std::size_t i = 0; i < 5; ++i) {
      if (step.scalar_mask & (1u << i))
        scalars[numbers++] = *static_cast<const Scalar*>(slots_[step.in[i]]);
      else if (step.given & (1u << i))
        in[i] = slots_[step.in[i]];
    }
    step.row(slots_[step.out], in, scalars, rows_, geometry_.cols[step.cols]);
  }

  const TileRun& run_;
  const Plan& plan_;
  const Geometry& geometry_;
  std::int64_t row_, end_, rows_ = 0;
  void** slots_ = nullptr;
  void** operands_ = nullptr;
  void** registers_ = nullptr;  // the registers' own memory
  std::byte* scratch_ = nullptr;
  bool streamed_ = false;
  std::array<std::int64_t, kMaxClasses> elements_;  // of the tile, per class
};

}  // namespace

void run_tiles(const TileRun& run, std::int64_t begin, std::int64_t end) {
  Tiles tiles(run, begin, end);
  if (run.plan.whole_range)
    if (const StageFn code = run.code[0].load(std::memory_order_acquire)) return tiles.run_whole(code);
  tiles.run();
}

}  // namespace neuron::engines
