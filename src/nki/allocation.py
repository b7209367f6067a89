"""Places of tensors in SBUF and PSUM: who is where, when, and whether everything fits.

Each tensor takes the same bytes of every partition it lies in, from its first use to its last one. Fresh tensors go
round the memory instead of into the first gap, so that a tile is overwritten as late as possible: a load into memory
that was given back long ago waits for nobody.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field

from neuron_hw import chip

from .limits import PSUM_BANK_BYTES
from .storage import Storage
from .trace import Trace

__all__ = ["Allocation", "Overflow", "allocate_on_chip", "capacity"]

# The finest start of a tensor within a partition; the documentation names no value, this is that of a vector of fp32.
_ALIGNMENT = 32


@dataclass(frozen=True)
class Overflow:
    """The moment at which a memory is fullest, and it is too small.

    Attributes:
        region: "sbuf" or "psum".
        instruction: the one that needs the last tensor.
        used, limit: bytes per partition.
        alive: tensors alive then, largest first.
    """

    region: str
    instruction: int
    used: int
    limit: int
    alive: tuple[Storage, ...]


@dataclass
class Allocation:
    """Where the tensors of a trace lie.

    Attributes:
        places: per storage (partition, byte within the partition), or None for what is not on chip or not used.
        lifetimes: per storage the first and last instruction that use it, (-1, -1) when none does.
        peak: largest number of bytes per partition in use at once, by region.
        overflows: memories that are too small.
    """

    places: list[tuple[int, int] | None]
    lifetimes: Sequence[tuple[int, int]]
    peak: dict[str, int] = field(default_factory=dict)
    overflows: list[Overflow] = field(default_factory=list)

    def aliases(self, trace: Trace) -> list[tuple[int, int, int] | None]:
        """Places as `_engines.Program.dependencies` takes them: (partition, byte, 0 for SBUF or 1 for PSUM)."""
        return [
            None if place is None else (*place, int(storage.region == "psum"))
            for place, storage in zip(self.places, trace.storages, strict=True)
        ]


def capacity(target: str, region: str) -> int:
    """Bytes per partition that kernels may use."""
    facts = chip(target)
    return int(facts.psum_bytes_per_partition if region == "psum" else facts.sbuf_usable_bytes_per_partition)


def allocate_on_chip(trace: Trace, lifetimes: Sequence[tuple[int, int]]) -> Allocation:
    """Finds places for all tensors on chip.

    Args:
        lifetimes: per storage the first and last instruction that use it; whole loops where it lives through them.

    Returns:
        Places, and what did not fit: nothing is raised here.
    """
    allocation = Allocation([None] * len(trace.storages), lifetimes)
    for region in ("sbuf", "psum"):
        used = [s for s in trace.storages if s.region == region and lifetimes[s.number][0] >= 0]
        if used:
            _Region(trace, region, used, allocation).place_all()
    return allocation


class _Region:
    """One memory while places in it are found."""

    def __init__(self, trace: Trace, region: str, storages: list[Storage], allocation: Allocation) -> None:
        self.region = region
        self.limit = capacity(trace.target, region)
        self.grain = PSUM_BANK_BYTES if region == "psum" else _ALIGNMENT
        self.storages = sorted(storages, key=lambda s: allocation.lifetimes[s.number][0])
        self.allocation = allocation
        self.lifetimes = allocation.lifetimes
        self.fixed = [s for s in self.storages if s.address is not None]
        # Bytes that each tensor takes away from the others; those with an address are counted by where they lie.
        self.sizes = {
            s.number: 0 if s.address is not None else -(-s.bytes_per_partition // self.grain) * self.grain
            for s in self.storages
        }

    def place_all(self) -> None:
        self._measure()
        places = self._around() or self._largest_first()
        if places is None:
            return
        for number, byte in places.items():
            self.allocation.places[number] = (0, byte)
        for storage in self.fixed:
            self.allocation.places[storage.number] = storage.address

    def _measure(self) -> None:
        """Notes the fullest moment. Tensors at the same place on purpose count once."""
        sizes, lifetimes = self.sizes, self.lifetimes
        events: list[tuple[int, int, int]] = []  # instruction, 0 at the end of a life and 1 at its beginning, tensor
        for number in sizes:
            first, last = lifetimes[number]
            events += ((first, 1, number), (last + 1, 0, number))
        events.sort()
        alive: set[int] = set()
        total = peak = fullest = 0
        for instruction, starts, number in events:
            if not starts:
                total -= sizes[number]
                alive.remove(number)
                continue
            alive.add(number)
            total += sizes[number]
            used = total + (self._fixed_bytes(alive) if self.fixed else 0)
            if used > peak:
                peak, fullest = used, instruction
        self.allocation.peak[self.region] = peak
        if peak > self.limit:
            alive_then = [s for s in self.storages if lifetimes[s.number][0] <= fullest <= lifetimes[s.number][1]]
            self._overflow(peak, fullest, alive_then)

    def _fixed_bytes(self, alive: set[int]) -> int:
        spans = sorted(
            (s.address[1], s.address[1] + s.bytes_per_partition)
            for s in self.fixed
            if s.address is not None and s.number in alive
        )
        total = end = 0
        for start, stop in spans:
            total += max(0, stop - max(start, end))
            end = max(end, stop)
        return total

    def _overflow(self, used: int, instruction: int, alive: Sequence[Storage]) -> None:
        largest_first = tuple(sorted(alive, key=lambda s: -s.bytes_per_partition))
        self.allocation.overflows.append(Overflow(self.region, instruction, used, self.limit, largest_first))

    def _obstacles(self, first: int, last: int) -> list[tuple[int, int]]:
        """Bytes that tensors with an address of their own take within a time."""
        return [
            (s.address[1], s.address[1] + s.bytes_per_partition)
            for s in self.fixed
            if s.address is not None and self.lifetimes[s.number][0] <= last and self.lifetimes[s.number][1] >= first
        ]

    def _around(self) -> dict[int, int] | None:
        """Places in the order of first use, each search going on where the last one ended."""
        places: dict[int, int] = {}
        taken: list[tuple[int, int, int]] = []  # start, end, last use; by where they lie
        cursor = 0
        for storage in self.storages:
            if storage.address is not None:
                continue
            first, last = self.lifetimes[storage.number]
            size = self.sizes[storage.number]
            taken = [t for t in taken if t[2] >= first]
            busy: Sequence[tuple[int, ...]] = taken
            if self.fixed:
                busy = sorted([*taken, *self._obstacles(first, last)])
            start = self._gap(busy, size, cursor)
            if start is None:
                start = self._gap(busy, size, 0)
            if start is None:
                return None
            places[storage.number] = start
            cursor = start + size
            insort(taken, (start, cursor, last))
        return places

    def _gap(self, busy: Sequence[tuple[int, ...]], size: int, start: int) -> int | None:
        for begin, end, *_ in busy:
            if begin >= start + size:
                break
            if end > start:
                start = -(-end // self.grain) * self.grain
        return start if start + size <= self.limit else None

    def _largest_first(self) -> dict[int, int] | None:
        """Places where going round left gaps that are too small: large tensors choose first."""
        places: dict[int, int] = {}
        done: list[tuple[Storage, int]] = []
        for storage in sorted(self.storages, key=lambda s: -s.bytes_per_partition):
            if storage.address is not None:
                continue
            first, last = self.lifetimes[storage.number]
            busy = self._obstacles(first, last)
            for other, start in done:
                begin, end = self.lifetimes[other.number]
                if begin <= last and end >= first:
                    busy.append((start, start + self.sizes[other.number]))
            place = self._gap(sorted(busy), self.sizes[storage.number], 0)
            if place is None:
                if not any(o.region == self.region for o in self.allocation.overflows):
                    alive = [o for o, _ in done if self.lifetimes[o.number][0] <= last]
                    alive = [o for o in alive if self.lifetimes[o.number][1] >= first]
                    used = sum(self.sizes[o.number] for o in alive) + self.sizes[storage.number]
                    self._overflow(used, first, (*alive, storage))
                return None
            places[storage.number] = place
            done.append((storage, place))
        return places
