#include "eager/fusion/window.h"

#include <algorithm>

namespace neuron::eager::fusion {

namespace {
constexpr std::size_t kTable = 4 * Window::kMaxUses;  // a power of two, never more than half full

std::size_t hash(const void* address, std::uint64_t layout) {
  std::uint64_t h = (reinterpret_cast<std::uintptr_t>(address) ^ layout) * 0x9E3779B97F4A7C15ull;
  return static_cast<std::size_t>(h >> 32);
}

// The rows that a piece asks for because it reads, row by row, what the window has computed.
bool reads_value_by_row(const Slot& slot, const Operand& operand) {
  return operand.map == Map::kRow && operand.read && slot.written;
}
}  // namespace

Window::Window() : slot_table_(kTable), storage_table_(kTable) {}

void Window::clear() {
  if (++epoch_ == 0) {  // once in 2^32 windows: entries of the first epochs would look new again
    std::fill(slot_table_.begin(), slot_table_.end(), TableEntry{});
    std::fill(storage_table_.begin(), storage_table_.end(), TableEntry{});
    epoch_ = 1;
  }
  launches_.clear();
  pieces_.clear();
  uses_.clear();
  slots_.clear();
  storages_.clear();
  storages_by_base_.clear();
  regions_.clear();
  key_.clear();
}

std::uint32_t Window::find_storage(const char* base, std::int64_t bytes) {
  std::size_t at = hash(base, 0) % kTable;
  for (; storage_table_[at].epoch == epoch_; at = (at + 1) % kTable) {
    Storage& s = storages_[storage_table_[at].index];
    if (s.base == base) return bytes <= s.bytes ? storage_table_[at].index : kNone;
  }
  // Blocks that were freed and cut anew may lie across others of this window.
  const auto after = std::lower_bound(storages_by_base_.begin(), storages_by_base_.end(), base,
                                      [&](std::uint32_t i, const char* b) { return storages_[i].base < b; });
  if (after != storages_by_base_.end() && storages_[*after].base < base + bytes) return kNone;
  if (after != storages_by_base_.begin()) {
    const Storage& before = storages_[*(after - 1)];
    if (before.base + before.bytes > base) return kNone;
  }
  const auto index = static_cast<std::uint32_t>(storages_.size());
  storages_.push_back({base, bytes});
  storages_by_base_.insert(after, index);
  storage_table_[at] = {epoch_, index};
  return index;
}

std::uint32_t Window::find_slot(const char* address, const Operand& operand, std::uint32_t storage) {
  std::size_t at = hash(address, operand.layout) % kTable;
  for (; slot_table_[at].epoch == epoch_; at = (at + 1) % kTable) {
    const Slot& s = slots_[slot_table_[at].index];
    if (s.address == address && s.operand->layout == operand.layout) return slot_table_[at].index;
  }
  const auto index = static_cast<std::uint32_t>(slots_.size());
  Slot slot{address, &operand, storage, storages_[storage].first_slot};
  storages_[storage].first_slot = index;
  slots_.push_back(slot);
  slot_table_[at] = {epoch_, index};
  return index;
}

bool Window::overlaps(const Slot& a, const Slot& b) {
  return a.address + a.operand->lo < b.address + b.operand->hi && b.address + b.operand->lo < a.address + a.operand->hi;
}

bool Window::may_touch(const Slot& slot, std::uint32_t index, const Operand& operand) const {
  const auto launch = static_cast<std::uint32_t>(launches_.size() + 1);
  if (operand.written && (slot.spread || slot.shared)) return false;
  const bool element_by_element = operand.map == Map::kFull || operand.map == Map::kRow;
  if (operand.read && slot.written && !element_by_element) return false;
  for (std::uint32_t i = storages_[slot.storage].first_slot; i != kNone; i = slots_[i].next) {
    const Slot& other = slots_[i];
    if (i == index || !overlaps(slot, other)) continue;
    const bool by_this_launch = other.touched == launch;
    if (other.written || (by_this_launch && other.touched_write)) return false;
    if (operand.written && (other.read || by_this_launch)) return false;
  }
  return true;
}

std::int32_t Window::region_of(std::int32_t region) const {
  while (regions_[static_cast<std::size_t>(region)].parent != region)
    region = regions_[static_cast<std::size_t>(region)].parent;
  return region;
}

bool Window::fits(const Region& region, const Piece& piece, std::int64_t elements_rows) const {
  if (region.steps + piece.steps.size() > kMaxSteps) return false;
  const std::int64_t rows = region.rows ? region.rows : elements_rows;
  if (region.rows && elements_rows && region.rows != elements_rows) return false;
  for (const auto& operand : piece.operands)
    if (rows && operand.map == Map::kFull && (operand.elements % rows || operand.elements / rows > kMaxCols))
      return false;
  if (!rows) return region.elements == piece.operands[piece.results[0].operand].elements;
  return region.elements % rows == 0 && region.elements / rows <= kMaxCols;
}

bool Window::fits(const Region& a, const Region& b) const {
  if (a.steps + b.steps > kMaxSteps) return false;
  if (a.rows && b.rows) return a.rows == b.rows;
  if (!a.rows && !b.rows) return a.elements == b.elements;
  const Region& flat = a.rows ? b : a;
  const std::int64_t rows = a.rows ? a.rows : b.rows;
  return flat.elements % rows == 0 && flat.elements / rows <= kMaxCols;
}

void Window::unite(std::int32_t into, std::int32_t from) {
  Region& a = regions_[static_cast<std::size_t>(into)];
  Region& b = regions_[static_cast<std::size_t>(from)];
  b.parent = into;
  a.steps += b.steps;
  if (!a.rows) a.rows = b.rows;
  a.elements = std::max(a.elements, b.elements);
}

// Finds the region of a piece: that of what it depends on, else that of a tensor it reads as well, else a new one.
bool Window::place(const Piece& piece, std::uint32_t first, std::int32_t& region) {
  std::int64_t rows = piece.rows;
  for (std::size_t i = 0; i < piece.operands.size(); ++i) {
    const Operand& operand = piece.operands[i];
    if (!reads_value_by_row(slots_[uses_[first + i]], operand)) continue;
    if (rows && rows != operand.rows) return false;
    rows = operand.rows;
  }
  region = -1;
  const auto join = [&](std::int32_t other) {
    if (other == region) return true;
    const Region& r = regions_[static_cast<std::size_t>(other)];
    if (!fits(r, piece, rows)) return false;
    if (region >= 0) {
      if (!fits(regions_[static_cast<std::size_t>(region)], r)) return false;
      unite(region, other);
    } else {
      region = other;
    }
    if (rows) regions_[static_cast<std::size_t>(region)].rows = rows;
    return true;
  };
  for (const bool must : {true, false}) {
    for (std::size_t i = 0; i < piece.operands.size(); ++i) {
      const Slot& slot = slots_[uses_[first + i]];
      if (slot.region < 0) continue;
      const bool depends = slot.written || (piece.operands[i].written && slot.read);
      if (depends != must) continue;
      if (!join(region_of(slot.region)) && must) return false;
    }
  }
  std::int64_t elements = 0;
  for (const auto& step : piece.steps) elements = std::max(elements, step.elements);
  for (const auto& operand : piece.operands)
    if (operand.map == Map::kFull) elements = std::max(elements, operand.elements);
  if (region < 0) {
    if (rows && (elements % rows || elements / rows > kMaxCols)) return false;
    region = static_cast<std::int32_t>(regions_.size());
    regions_.push_back({region, elements, rows, 0});
  }
  Region& r = regions_[static_cast<std::size_t>(region)];
  r.steps += piece.steps.size();
  r.elements = std::max(r.elements, elements);
  return true;
}

bool Window::add(OpPayload& payload, std::uint64_t ticket) {
  const Recipe& recipe = *payload.recipe;
  const Plan& plan = *payload.plan;
  const std::size_t arguments = plan.tensors.size();
  const auto launch = static_cast<std::uint32_t>(launches_.size() + 1);
  const std::size_t first_use = uses_.size(), first_piece = pieces_.size();
  const auto refuse = [&] {
    uses_.resize(first_use);
    pieces_.resize(first_piece);
    return false;
  };
  std::uint32_t piece_number = 0;
  for (const auto& piece : recipe.pieces) {
    ++piece_number;
    const auto first = static_cast<std::uint32_t>(uses_.size());
    if (first + piece.operands.size() > kMaxUses) return refuse();
    for (const auto& operand : piece.operands) {
      const char *base, *address;
      std::int64_t bytes;
      if (operand.tensor < arguments) {
        const auto& sent = payload.tensors()[operand.tensor].stored;
        base = static_cast<const char*>(sent.storage);
        bytes = static_cast<std::int64_t>(sent.bytes);
        address = base + sent.offset * static_cast<std::int64_t>(size_of(operand.dtype));
      } else {
        base = address = static_cast<const char*>(payload.blocks()[operand.tensor - arguments]);
        bytes = operand.storage_bytes;
      }
      const std::uint32_t storage = find_storage(base, bytes);
      if (storage == kNone) return refuse();
      const std::uint32_t index = find_slot(address, operand, storage);
      Slot& slot = slots_[index];
      if (!may_touch(slot, index, operand)) return refuse();
      if (slot.touched == launch) {
        // Elements of a list are worked on one after the other by ATen, here in any order.
        const bool other_piece = slot.touched_piece != piece_number;
        if (other_piece && (slot.touched_write || operand.written)) return refuse();
      } else {
        slot.touched = launch;
        slot.touched_write = false;
      }
      slot.touched_piece = piece_number;
      slot.touched_write |= operand.written;
      uses_.push_back(index);
    }
    pieces_.push_back({&piece, launch - 1, first, -1});
  }
  for (std::size_t p = first_piece; p < pieces_.size(); ++p)
    if (!place(*pieces_[p].piece, pieces_[p].first_slot, pieces_[p].region)) return refuse();

  key_.push_back(static_cast<std::int64_t>(recipe.id));
  if (payload.site) key_.push_back(static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(payload.site)));
  std::int64_t word = 0;
  int packed = 0;
  for (std::size_t p = first_piece; p < pieces_.size(); ++p) {
    const PieceUse& use = pieces_[p];
    for (std::size_t i = 0; i < use.piece->operands.size(); ++i) {
      const Operand& operand = use.piece->operands[i];
      const std::uint32_t index = uses_[use.first_slot + i];
      Slot& slot = slots_[index];
      if (slot.region >= 0 && region_of(slot.region) != region_of(use.region)) slot.shared = true;
      slot.region = use.region;
      const bool element_by_element =
          operand.map == Map::kFull || (operand.map == Map::kRow && (operand.written || slot.written));
      slot.spread |= !element_by_element;
      slot.read |= operand.read;
      if (operand.written) {
        slot.written = true;
        slot.last_write = ticket;
      }
      word = word << 16 | index;
      if (++packed == 4) {
        key_.push_back(word);
        word = packed = 0;
      }
    }
  }
  if (packed) key_.push_back(word);
  launches_.push_back(&payload);
  return true;
}

void Window::finish(driver::Batch& batch) {
  std::uint64_t observed = 0;
  batch.read_releases(
      [&](const void* block, std::uint64_t at_ticket) {
        const auto* base = static_cast<const char*>(block);
        for (std::size_t at = hash(base, 0) % kTable; storage_table_[at].epoch == epoch_; at = (at + 1) % kTable) {
          Storage& s = storages_[storage_table_[at].index];
          if (s.base != base) continue;
          s.released = at_ticket;
          s.observed_at_release = observed;
          return;
        }
      },
      [&](std::uint64_t at_ticket) { observed = std::max(observed, at_ticket); });
  std::int64_t word = 1;
  for (auto& slot : slots_) {
    if (!slot.written) continue;
    const Storage& s = storages_[slot.storage];
    // Released after its last write, and nobody on another queue was promised to see it before that.
    slot.dead = s.released >= slot.last_write && s.observed_at_release < slot.last_write;
    word = word << 1 | slot.dead;
    if (word < 0) {
      key_.push_back(word);
      word = 1;
    }
  }
  key_.push_back(word);
}

}  // namespace neuron::eager::fusion
