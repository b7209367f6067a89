#include "engines/run.h"

#include <algorithm>

#include "engines/plan.h"
#include "engines/tiles.h"

namespace neuron::engines {
namespace {

// All registers of a tile together, so that they stay in a second-level cache (and mostly in the first).
constexpr std::int64_t kRegisterBytes = 128 << 10;
constexpr std::int64_t kTileElements = 4096;
// Tiles of pointwise programs begin at cache lines of every type, so that threads do not share any.
constexpr std::int64_t kTileMultiple = 64;
// Steps times elements that are worth another thread: about ten times what waking one costs.
constexpr std::int64_t kWorkPerThread = 1 << 18;

std::int64_t tile_rows(const Plan& plan, const Geometry& geometry, std::int64_t rows, std::int64_t widest) {
  std::int64_t bytes = 0;
  for (const Register& r : plan.registers) bytes += geometry.cols[r.cols] * static_cast<std::int64_t>(size_of(r.lane));
  std::int64_t tile = kTileElements / std::max<std::int64_t>(widest, 1);
  if (bytes > 0) tile = std::min(tile, kRegisterBytes / bytes);
  if (widest <= 1 && tile > kTileMultiple) tile -= tile % kTileMultiple;
  return std::clamp<std::int64_t>(tile, 1, std::max<std::int64_t>(rows, 1));
}

}  // namespace

struct Executable::Impl {
  Program program;  // with the values that scheduling adds
  Plan plan;
  std::unique_ptr<std::atomic<StageFn>[]> code;
};

Plan make_plan(Program& program) {
  Plan plan;
  check(program);
  plan.groups = schedule(program);
  place(program, plan);
  lower(program, plan);
  write_stages(program, plan);
  return plan;
}

Executable::Executable(Program program) : program_(std::move(program)), impl_(std::make_unique<Impl>()) {
  impl_->program = program_;
  impl_->plan = make_plan(impl_->program);
  impl_->code = std::make_unique<std::atomic<StageFn>[]>(impl_->plan.stages.size());
}

Executable::~Executable() = default;

void Executable::run(const Geometry& geometry, void* const* memory, const Scalar* scalars, ParallelFor parallel,
                     int threads) const {
  const Plan& plan = impl_->plan;
  const std::int64_t rows = geometry.rows;
  if (rows == 0) return;
  std::int64_t widest = 0;
  for (const std::int64_t cols : geometry.cols) widest = std::max(widest, cols);

  if (!plan.uniform.empty()) {
    static thread_local std::vector<Scalar> filled;
    filled.assign(scalars, scalars + program_.scalars.size());
    for (const std::uint16_t a : plan.uniform) {
      const Access& access = program_.accesses[a];
      kernels().load[index_of(access.dtype)](&filled[access.scalar], memory[a], nullptr, nullptr, 1);
    }
    scalars = filled.data();
  }

  TileRun tiles{impl_->program, plan, impl_->code.get(), geometry, memory, scalars, rows, 0, threads};
  tiles.tile = tile_rows(plan, geometry, rows, widest);
  const std::int64_t work =
      rows * std::max<std::int64_t>(widest, 1) * static_cast<std::int64_t>(std::max<std::size_t>(plan.steps.size(), 1));
  const int wanted = static_cast<int>(std::min<std::int64_t>({threads, rows, work / kWorkPerThread}));
  if (wanted <= 1 || parallel == nullptr) return run_tiles(tiles, 0, rows);

  // Tiles small enough that each thread gets one.
  std::int64_t share = (rows + wanted - 1) / wanted;
  if (widest <= 1) share = (share + kTileMultiple - 1) / kTileMultiple * kTileMultiple;
  tiles.tile = std::min(tiles.tile, share);
  parallel(
      rows, tiles.tile, wanted,
      [](void* context, std::int64_t begin, std::int64_t end) {
        run_tiles(*static_cast<const TileRun*>(context), begin, end);
      },
      &tiles);
}

std::size_t Executable::stages() const { return impl_->plan.stages.size(); }

std::string Executable::stage_text(std::size_t stage) const { return impl_->plan.stages.at(stage).text; }

void Executable::install(std::size_t stage, StageFn code) {
  if (stage < stages()) impl_->code[stage].store(code, std::memory_order_release);
}

bool Executable::compiled() const {
  for (std::size_t s = 0; s < stages(); ++s)
    if (impl_->code[s].load(std::memory_order_acquire) == nullptr) return false;
  return true;
}

}  // namespace neuron::engines
