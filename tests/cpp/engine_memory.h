#pragma once
// Memory for the accesses of a program, and threads to run it on.
#include <algorithm>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine_reference.h"
#include "engines/program.h"

// Every access gets memory of its own with guards around it. Unwritten bytes must stay as they are.
class Memory {
 public:
  Memory(const neuron::engines::Program& program, const neuron::engines::Geometry& geometry, std::mt19937& random)
      : program_(&program) {
    using namespace neuron::engines;
    for (std::size_t a = 0; a < program.accesses.size(); ++a) {
      const Access& access = program.accesses[a];
      const std::int64_t cols = geometry.cols[access.cols];
      std::int64_t last = 0;
      for (std::int64_t r = 0; r < geometry.rows; ++r)
        for (std::int64_t c = 0; c < cols; ++c) last = std::max(last, reference::position(program, geometry, a, r, c));
      counts_.push_back(last + 1);
      bytes_.emplace_back(2 * kGuard + static_cast<std::size_t>(last + 1) * size_of(access.dtype), 0xa5);
      for (std::int64_t i = 0; i <= last; ++i)
        reference::store(access.dtype, bytes_.back().data() + kGuard, i,
                         reference::random_number(lane_of(access.dtype), random));
    }
  }

  void* const* pointers() {
    pointers_.clear();
    for (auto& bytes : bytes_) pointers_.push_back(bytes.data() + kGuard);
    return pointers_.data();
  }

  bool same_as(const Memory& other, std::string& where) const {
    for (std::size_t a = 0; a < bytes_.size(); ++a) {
      for (std::int64_t i = 0; i < counts_[a]; ++i) {
        if (!reference::same_memory(program_->accesses[a].dtype, bytes_[a].data() + kGuard,
                                    other.bytes_[a].data() + kGuard, i)) {
          where =
              "access " + std::to_string(a) + ", element " + std::to_string(i) + " of " + std::to_string(counts_[a]);
          return false;
        }
      }
      for (std::size_t i = 0; i < kGuard; ++i)
        if (bytes_[a][i] != 0xa5 || bytes_[a][bytes_[a].size() - 1 - i] != 0xa5) {
          where = "access " + std::to_string(a) + ": written beside its memory";
          return false;
        }
    }
    return true;
  }

 private:
  static constexpr std::size_t kGuard = 64;
  const neuron::engines::Program* program_;
  std::vector<std::vector<unsigned char>> bytes_;
  std::vector<std::int64_t> counts_;
  std::vector<void*> pointers_;
};

inline void parallel_ranges(std::int64_t count, std::int64_t grain, int threads,
                            void (*body)(void* context, std::int64_t begin, std::int64_t end), void* context) {
  const std::int64_t share = ((count + threads - 1) / threads + grain - 1) / grain * grain;
  std::vector<std::thread> others;
  for (std::int64_t begin = share; begin < count; begin += share)
    others.emplace_back([=] { body(context, begin, std::min(count, begin + share)); });
  body(context, 0, std::min(count, share));
  for (std::thread& thread : others) thread.join();
}
