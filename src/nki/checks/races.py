"""Accesses to the same memory that nothing puts in order.

Within a core the compiler sets semaphores between instructions that use the same tensor, and each engine goes in order.
What it does not see is that two tensors lie at the same place (`address=`): a DMA that fills the one may still be in
flight while the other is read. Happens-before is kept as vector clocks: one entry per engine, and one per DMA transfer,
since transfers end in any order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import RaceError
from ..instruction import Instruction
from ..storage import Storage
from ..tensor import NkiTensor
from ..trace import Trace, report
from .trace import Box, box_of, overlap

if TYPE_CHECKING:
    from .. import _engines
    from ..allocation import Allocation

__all__ = ["check_races"]

_ENGINES = ("tensor", "vector", "scalar", "gpsimd", "sync")


def check_races(trace: Trace, executable: _engines.Program, allocation: Allocation) -> None:
    """Reports the first race of each pair of lines.

    Raises:
        RaceError: two instructions use the same bytes of SBUF or PSUM through different tensors, one of them writes,
            and they may run at the same time.
    """
    shared = _sharing(trace)
    if not shared:
        return
    reach = _Reach(trace.instructions, executable.dependencies([None] * len(trace.storages)))
    accesses: dict[int, list[tuple[Box, bool, Instruction, Storage]]] = {}
    told: set[tuple[int, int]] = set()
    for instruction in trace.instructions:
        for operands, writes in ((instruction.args, False), (instruction.out, True)):
            for view in operands:
                if not isinstance(view, NkiTensor) or view.storage.number not in shared:
                    continue
                box = _bytes(view)
                group = accesses.setdefault(shared[view.storage.number], [])
                kept = []
                for access in group:
                    other, wrote, before, storage = access
                    if not (writes or wrote) or not overlap(other, box):
                        kept.append(access)
                        continue
                    ordered = reach.ordered(before, instruction)
                    pair = (before.line[1], instruction.line[1])
                    if storage is not view.storage and not ordered and pair not in told:
                        told.add(pair)
                        report(_error(before, storage, wrote, instruction, view.storage, writes))
                    # What comes after this write comes after all that it covers.
                    if not (writes and ordered and _covers(box, other)):
                        kept.append(access)
                kept.append((box, writes, instruction, view.storage))
                accesses[shared[view.storage.number]] = kept


def _covers(a: Box, b: Box) -> bool:
    return a[0] <= b[0] and b[1] <= a[1] and a[2] <= b[2] and b[3] <= a[3]


def _error(
    before: Instruction, first: Storage, wrote: bool, after: Instruction, second: Storage, writes: bool
) -> RaceError:
    return RaceError(
        first=f"{before.op} {'writes' if wrote else 'reads'} {first} (line {before.line[1]}, {before.engine} engine)",
        second=f"{after.op} {'writes' if writes else 'reads'} {second} (line {after.line[1]}, {after.engine} engine)",
        region=second.region.upper(),
        line=after.line,
    )


def _sharing(trace: Trace) -> dict[int, int]:
    """Tensors whose own addresses overlap those of another: by number, the number of their group."""
    placed = [s for s in trace.storages if s.address is not None and s.on_chip]
    placed.sort(key=lambda s: (s.region, s.address[1] if s.address else 0))
    groups: dict[int, int] = {}
    end, region, previous = -1, "", None
    for storage in placed:
        begin = storage.address[1] if storage.address else 0
        if previous is not None and storage.region == region and begin < end:
            groups.setdefault(previous.number, previous.number)
            groups[storage.number] = groups[previous.number]
            end = max(end, begin + storage.bytes_per_partition)
        else:
            end, region = begin + storage.bytes_per_partition, storage.region
        previous = storage
    return groups


def _bytes(view: NkiTensor) -> Box:
    """The partitions and bytes of the memory that the view can touch."""
    first, last, begin, end = box_of(view)
    partition, byte = view.storage.address or (0, 0)
    size = view.dtype.itemsize
    return (partition + first, partition + last, byte + begin * size, byte + end * size)


class _Reach:
    """Which instructions are over when another one begins."""

    def __init__(self, instructions: list[Instruction], dependencies: list[tuple[int, ...]]) -> None:
        self.engine = [i.engine for i in instructions]
        self.finished: list[dict[str, int]] = []  # per instruction: the last one of each engine that is over
        self.transfers: list[int] = []  # and the DMA transfers that are: a bit for each, in the order of the trace
        self.bit: dict[int, int] = {}  # by number of the instruction
        last: dict[str, int] = {}
        for number, instruction in enumerate(instructions):
            clock: dict[str, int] = {}
            done = 0
            before = [*dependencies[number], *(i.index for i in instruction.after)]
            if instruction.engine in _ENGINES and instruction.engine in last:
                before.append(last[instruction.engine])
            # The latest first: what it came after need not be looked at again.
            for earlier in sorted(before, reverse=True):
                engine = self.engine[earlier]
                if clock.get(engine, -1) >= earlier if engine in _ENGINES else done & self.bit[earlier]:
                    continue
                done |= self.transfers[earlier]
                for other, place in self.finished[earlier].items():
                    if place > clock.get(other, -1):
                        clock[other] = place
                if engine in _ENGINES:
                    clock[engine] = earlier
                else:
                    done |= self.bit[earlier]
            self.finished.append(clock)
            self.transfers.append(done)
            if instruction.engine not in _ENGINES:
                self.bit[number] = 1 << len(self.bit)
            last[instruction.engine] = number

    def ordered(self, before: Instruction, after: Instruction) -> bool:
        engine = before.engine
        if engine in _ENGINES:
            return self.finished[after.index].get(engine, -1) >= before.index
        return bool(self.transfers[after.index] & self.bit[before.index])
