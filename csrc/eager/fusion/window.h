#pragma once
// The launches that a worker looks at together: which tensors they share, and which of them can become one region.
//
// A slot is a tensor of the window: its address and layout. Two tensors are either one slot, or they share no byte, or
// no launch of the window writes to either: a launch for which that would not hold ends the window. Regions do not
// depend on each other, for a launch that touches what a region has written belongs to that region.
#include <cstdint>
#include <vector>

#include "driver/batch.h"
#include "eager/execute.h"
#include "eager/fusion/recipe.h"

namespace neuron::eager::fusion {

struct Slot {
  const char* address;
  const Operand* operand;  // the first that meets it: type and layout
  std::uint32_t storage;
  std::uint32_t next;  // of the same storage
  std::int32_t region = -1;
  std::uint64_t last_write = 0;  // ticket
  std::uint32_t touched = 0;     // by this launch of the window, counted from 1
  std::uint32_t touched_piece = 0;
  bool touched_write = false;
  bool read = false, written = false;
  bool spread = false;  // read other than element by element: must not be written any more
  bool shared = false;  // read by several regions: likewise
  bool dead = false;    // written, and never read by anything outside the window
};

struct PieceUse {
  const Piece* piece;
  std::uint32_t launch;
  std::uint32_t first_slot;  // in Window::uses(): one slot per operand
  std::int32_t region;
};

class Window {
 public:
  static constexpr std::size_t kMaxLaunches = 96;
  static constexpr std::size_t kMaxUses = 4096;
  static constexpr std::size_t kMaxSteps = 96;       // of a region
  static constexpr std::int64_t kMaxCols = 1 << 14;  // rows stay whole, and a tile in the caches

  Window();
  void clear();

  // Takes the launch in; false, and nothing changed, when it must run after the window.
  bool add(OpPayload& payload, std::uint64_t ticket);
  // Once, after the last launch of the batch: learns what is dead and completes the key.
  void finish(driver::Batch& batch);

  const std::vector<std::int64_t>& key() const { return key_; }
  std::vector<OpPayload*>& launches() { return launches_; }
  const std::vector<PieceUse>& pieces() const { return pieces_; }
  const std::vector<Slot>& slots() const { return slots_; }
  const std::vector<std::uint32_t>& uses() const { return uses_; }
  // Representative of the region that a piece ended up in.
  std::int32_t region_of(std::int32_t region) const;
  std::int64_t rows_of(std::int32_t region) const { return regions_[static_cast<std::size_t>(region)].rows; }
  std::int64_t elements_of(std::int32_t region) const { return regions_[static_cast<std::size_t>(region)].elements; }

 private:
  static constexpr std::uint32_t kNone = ~0u;

  struct Storage {
    const char* base;
    std::int64_t bytes;
    std::uint32_t first_slot = kNone;
    std::uint64_t released = 0;             // ticket
    std::uint64_t observed_at_release = 0;  // newest observation before that
  };
  struct Region {
    std::int32_t parent;
    std::int64_t elements;
    std::int64_t rows;
    std::size_t steps;
  };
  struct TableEntry {
    std::uint32_t epoch = 0;
    std::uint32_t index;
  };

  std::uint32_t find_storage(const char* base, std::int64_t bytes);  // kNone: overlaps another one
  std::uint32_t find_slot(const char* address, const Operand& operand, std::uint32_t storage);
  bool may_touch(const Slot& slot, std::uint32_t index, const Operand& operand) const;
  bool place(const Piece& piece, std::uint32_t first, std::int32_t& region);
  bool fits(const Region& region, const Piece& piece, std::int64_t rows) const;
  bool fits(const Region& a, const Region& b) const;
  void unite(std::int32_t into, std::int32_t from);
  static bool overlaps(const Slot& a, const Slot& b);

  std::uint32_t epoch_ = 0;
  std::vector<OpPayload*> launches_;
  std::vector<PieceUse> pieces_;
  std::vector<std::uint32_t> uses_;
  std::vector<Slot> slots_;
  std::vector<Storage> storages_;
  std::vector<std::uint32_t> storages_by_base_;
  std::vector<Region> regions_;
  std::vector<std::int64_t> key_;
  std::vector<TableEntry> slot_table_, storage_table_;
};

}  // namespace neuron::eager::fusion
