#include "engines/isa/collectives.h"

#include <algorithm>

#include "engines/isa/elements.h"
#include "engines/isa/names.h"
#include "engines/isa/views.h"

namespace neuron::engines::isa {

using std::int64_t;

namespace {

[[noreturn]] void mismatch(const std::string& what) { throw ProgramFault(ProgramFault::Kind::kMismatch, what); }

void check_counts(const Tile& to, const Tile& from) {
  if (to.elements() != from.elements())
    mismatch("a tensor of " + std::to_string(to.elements()) + " elements is to receive " +
             std::to_string(from.elements()));
}

template <class T>
T reduced(Alu op, T a, T b) {
  switch (op) {
    case Alu::kAdd:
      return a + b;
    case Alu::kMaximum:
      return a > b || a != a ? a : b;
    case Alu::kMinimum:
      return a < b || a != a ? a : b;
    default:
      mismatch("cores do not reduce by \"" + std::string(kAluNames[static_cast<std::size_t>(op)]) + "\"");
  }
}

// Sums in fp32, or in 64 bits where the elements are integers.
struct Sum {
  std::vector<float> floats;
  std::vector<int64_t> integers;
  bool empty = true;

  void add(Alu op, const Tile& tile) {
    const auto n = static_cast<std::size_t>(tile.elements());
    const bool whole = is_integer(tile.type);
    if (empty) whole ? integers.resize(n) : floats.resize(n);
    if ((whole ? integers.size() : floats.size()) != n) mismatch("tensors that are reduced differ in elements or type");
    Cursor cursor(tile);
    for (std::size_t i = 0; i < n; ++i, cursor.advance(1)) {
      const std::byte* at = cursor.pointer();
      if (!at) continue;
      if (whole) {
        const int64_t value = integer_at(tile.type, at);
        integers[i] = empty ? value : reduced(op, integers[i], value);
      } else {
        const float value = float_at(tile.type, at);
        floats[i] = empty ? value : reduced(op, floats[i], value);
      }
    }
    empty = false;
  }

  void write(const Tile& tile) const {
    const bool whole = !integers.empty();
    if (static_cast<std::size_t>(tile.elements()) != (whole ? integers.size() : floats.size()))
      mismatch("the target of a reduction differs from its sources in elements");
    Cursor cursor(tile);
    const auto bytes = bytes_of(tile.type);
    for (std::size_t i = 0; i < (whole ? integers.size() : floats.size()); ++i, cursor.advance(1)) {
      std::byte* at = cursor.pointer();
      if (!at) continue;
      if (whole && is_integer(tile.type)) {
        std::memcpy(at, &integers[i], bytes);
        continue;
      }
      const float value = whole ? static_cast<float>(integers[i]) : floats[i];
      narrow_row(tile.type, &value, at, static_cast<int64_t>(bytes), 1);
    }
  }
};

Alu op_of(const Member& m) {
  const auto* op = std::get_if<int64_t>(&m.instruction->attributes[2]);
  return op ? static_cast<Alu>(*op) : Alu::kAdd;
}

int dimension_of(const Member& m) {
  const auto* dimension = std::get_if<int64_t>(&m.instruction->attributes[3]);
  return dimension ? static_cast<int>(*dimension) : 0;
}

std::size_t sources(const Member& m) { return m.instruction->operands.size() - m.instruction->outputs; }
const Tile& source(const Member& m, std::size_t i) {
  if (i >= sources(m)) mismatch("cores of a group bring different numbers of tensors");
  return m.core->tile(m.instruction->operands[m.instruction->outputs + i]);
}
const Tile& target(const Member& m, std::size_t i) {
  if (i >= m.instruction->outputs) mismatch("cores of a group bring different numbers of tensors");
  return m.core->tile(m.instruction->operands[i]);
}

using Members = std::vector<Member>;

void all_reduce(const Members& members) {
  for (std::size_t t = 0; t < sources(members[0]); ++t) {
    Sum sum;
    for (const Member& m : members) sum.add(op_of(m), source(m, t));
    for (const Member& m : members) sum.write(target(m, t));
  }
}

void reduce_scatter(const Members& members) {
  const auto parts = static_cast<int64_t>(members.size());
  for (std::size_t t = 0; t < sources(members[0]); ++t) {
    std::vector<Sum> sums(members.size());
    for (std::size_t i = 0; i < members.size(); ++i)
      for (const Member& m : members)
        sums[i].add(op_of(m), part_of(source(m, t), dimension_of(m), static_cast<int64_t>(i), parts));
    for (std::size_t i = 0; i < members.size(); ++i) sums[i].write(target(members[i], t));
  }
}

void all_gather(const Members& members) {
  const auto parts = static_cast<int64_t>(members.size());
  for (std::size_t t = 0; t < sources(members[0]); ++t) {
    std::vector<Buffer> from;
    for (const Member& m : members) from.emplace_back(source(m, t));
    for (const Member& m : members)
      for (std::size_t j = 0; j < members.size(); ++j) {
        const Tile to = part_of(target(m, t), dimension_of(m), static_cast<int64_t>(j), parts);
        check_counts(to, source(members[j], t));
        from[j].write(to);
      }
  }
}

void all_to_all(const Members& members) {
  const auto parts = static_cast<int64_t>(members.size());
  for (std::size_t t = 0; t < sources(members[0]); ++t) {
    std::vector<std::vector<Buffer>> from(members.size());
    for (std::size_t j = 0; j < members.size(); ++j)
      for (int64_t i = 0; i < parts; ++i)
        from[j].emplace_back(part_of(source(members[j], t), dimension_of(members[j]), i, parts));
    for (std::size_t i = 0; i < members.size(); ++i)
      for (std::size_t j = 0; j < members.size(); ++j) {
        const Tile to = part_of(target(members[i], t), dimension_of(members[i]), static_cast<int64_t>(j), parts);
        check_counts(to, part_of(source(members[j], t), dimension_of(members[j]), static_cast<int64_t>(i), parts));
        from[j][i].write(to);
      }
  }
}

// Each sends along the ring; with `reduces` what it sends is its two sources, reduced.
void ring(const Members& members, bool reduces) {
  const std::size_t channels = members[0].instruction->outputs;
  for (std::size_t c = 0; c < channels; ++c) {
    std::vector<Buffer> plain;
    std::vector<Sum> sums(members.size());
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (!reduces) {
        plain.emplace_back(source(members[i], c));
        continue;
      }
      sums[i].add(op_of(members[i]), source(members[i], c));
      sums[i].add(op_of(members[i]), source(members[i], channels + c));
    }
    for (std::size_t i = 0; i < members.size(); ++i) {
      const Tile& to = target(members[(i + 1) % members.size()], c);
      check_counts(to, source(members[i], c));
      if (reduces)
        sums[i].write(to);
      else
        plain[i].write(to);
    }
  }
}

void permute(const Members& members, const std::vector<int64_t>& pairs) {
  const auto of_rank = [&](int64_t rank) -> const Member& {
    return *std::find_if(members.begin(), members.end(), [&](const Member& m) { return m.rank == rank; });
  };
  std::vector<Buffer> sent;
  for (std::size_t p = 0; p < pairs.size(); p += 2) sent.emplace_back(source(of_rank(pairs[p]), 0));
  for (std::size_t p = 0; p < pairs.size(); p += 2) {
    const Tile& to = target(of_rank(pairs[p + 1]), 0);
    check_counts(to, source(of_rank(pairs[p]), 0));
    sent[p / 2].write(to);
  }
}

// Rows of the metadata: what is sent to each rank and from where, what each has sent, and where that goes.
struct Metadata {
  Metadata(const Tile& tile, std::size_t ranks) : ranks(static_cast<int64_t>(ranks)) {
    rows = tile.elements() / this->ranks;
    if (rows < 3 || tile.elements() % this->ranks != 0)
      mismatch("metadata of " + std::to_string(tile.elements()) + " elements for " + std::to_string(ranks) + " ranks");
    for (Cursor cursor(tile); places.size() < static_cast<std::size_t>(tile.elements()); cursor.advance(1)) {
      places.push_back(cursor.pointer());
      values.push_back(integer_at(tile.type, places.back()));
    }
    bytes = bytes_of(tile.type);
  }
  int64_t at(int64_t row, int64_t rank) const { return values[static_cast<std::size_t>(row * ranks + rank)]; }
  void set_received(int64_t rank, int64_t count) {
    std::memcpy(places[static_cast<std::size_t>(2 * ranks + rank)], &count, bytes);
  }
  int64_t ranks, rows;
  std::size_t bytes;
  std::vector<std::byte*> places;
  std::vector<int64_t> values;
};

Tile flat_part(const Tile& tile, int64_t first, int64_t count, const char* what) {
  if (!contiguous(tile)) mismatch(std::string("the ") + what + " of an exchange is not contiguous");
  if (first < 0 || count < 0 || first + count > tile.elements())
    throw ProgramFault(ProgramFault::Kind::kOutOfBounds, "elements " + std::to_string(first) + " to " +
                                                             std::to_string(first + count) + " of a " + what + " of " +
                                                             std::to_string(tile.elements()));
  Tile part;
  part.type = tile.type;
  part.rank = 1;
  part.size[0] = count;
  part.stride[0] = static_cast<int64_t>(bytes_of(tile.type));
  part.data = tile.data + first * part.stride[0];
  return part;
}

// Each rank sends pieces of its own length; `same` piece goes to all (all_gather_v).
void exchange(const Members& members, bool same) {
  const std::size_t n = members.size();
  std::vector<Metadata> metadata;
  std::vector<std::vector<Buffer>> sent(n);
  for (std::size_t j = 0; j < n; ++j) {
    metadata.emplace_back(source(members[j], 1), n);
    for (std::size_t i = 0; i < n; ++i) {
      const auto to = static_cast<int64_t>(same ? 0 : i);
      sent[j].emplace_back(flat_part(source(members[j], 0), metadata[j].at(1, to), metadata[j].at(0, to), "source"));
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    const Tile& whole = target(members[i], 0);
    for (std::size_t j = 0; j < n; ++j) {
      const auto from = static_cast<int64_t>(j);
      const int64_t count = metadata[j].at(0, static_cast<int64_t>(same ? 0 : i));
      const int64_t first =
          metadata[i].rows > 3 ? metadata[i].at(3, from) : whole.elements() / metadata[i].ranks * from;
      sent[j][i].write(flat_part(whole, first, count, "target"));
      if (members[i].instruction->outputs > 1) metadata[i].set_received(from, count);
    }
  }
}

}  // namespace

Buffer::Buffer(const Tile& tile) : type_(tile.type), count_(tile.elements()) {
  const auto bytes = static_cast<int64_t>(bytes_of(type_));
  bytes_.resize(static_cast<std::size_t>(count_ * bytes));
  Cursor cursor(tile);
  for (int64_t i = 0; i < count_;) {
    const int64_t run = std::min(cursor.left(), count_ - i);
    if (const std::byte* at = cursor.pointer())
      copy_row(at, cursor.step(), &bytes_[static_cast<std::size_t>(i * bytes)], bytes, run, bytes);
    i += run;
    cursor.advance(run);
  }
}

void Buffer::write(const Tile& tile, int64_t first) const {
  const auto bytes = static_cast<int64_t>(bytes_of(type_));
  const int64_t count = std::min(tile.elements(), count_ - first);
  Cursor cursor(tile);
  for (int64_t i = 0; i < count;) {
    const int64_t run = std::min(cursor.left(), count - i);
    const std::byte* from = bytes_.data() + (first + i) * bytes;
    if (std::byte* to = cursor.pointer()) {
      if (tile.type == type_) {
        copy_row(from, bytes, to, cursor.step(), run, bytes);
      } else {
        for (int64_t k = 0; k < run; ++k) {
          const float value = float_at(type_, from + k * bytes);
          narrow_row(tile.type, &value, to + k * cursor.step(), static_cast<int64_t>(bytes_of(tile.type)), 1);
        }
      }
    }
    i += run;
    cursor.advance(run);
  }
}

Tile part_of(const Tile& tile, int dimension, int64_t part, int64_t parts) {
  if (dimension < 0 || dimension >= tile.rank || tile.size[dimension] % parts != 0)
    mismatch("dimension " + std::to_string(dimension) + " cannot be cut into " + std::to_string(parts) + " parts");
  Tile result = tile;
  result.size[dimension] /= parts;
  result.data += part * result.size[dimension] * result.stride[dimension];
  return result;
}

void run_collective(const std::string& kind, const Members& members, const std::vector<int64_t>& pairs) {
  if (kind == "all_reduce") return all_reduce(members);
  if (kind == "all_gather") return all_gather(members);
  if (kind == "reduce_scatter") return reduce_scatter(members);
  if (kind == "all_to_all") return all_to_all(members);
  if (kind == "collective_permute") return permute(members, pairs);
  if (kind == "permute_implicit") return ring(members, false);
  if (kind == "permute_implicit_reduce") return ring(members, true);
  if (kind == "all_to_all_v") return exchange(members, false);
  if (kind == "all_gather_v") return exchange(members, true);
  throw ProgramFault(ProgramFault::Kind::kOther, "there is no collective \"" + kind + "\"");
}

}  // namespace neuron::engines::isa
