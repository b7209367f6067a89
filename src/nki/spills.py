"""What a kernel whose tensors do not fit into SBUF costs: tensors that wait in HBM until they are needed again.

The vendor's compiler spills by itself. Which tensors it picks is not published; here the one that is needed last gives
way, which moves the least. A tensor that was computed since it was last saved is saved first; one that was loaded from
an argument is loaded again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import prod

from .element_types import TYPES
from .instruction import Instruction
from .storage import Storage
from .tensor import NkiTensor
from .trace import Trace

__all__ = ["add_spills"]


def add_spills(
    trace: Trace, dependencies: Sequence[Sequence[int]], capacity: int
) -> tuple[list[Instruction], list[tuple[int, ...]], int]:
    """The trace with the transfers that make it fit.

    Args:
        dependencies: per instruction the earlier ones that it waits for.
        capacity: bytes per partition of SBUF.

    Returns:
        Instructions, their dependencies (by place in the new list), and the bytes that the new transfers move.
    """
    return _Spiller(trace, dependencies, capacity).run()


class _Spiller:
    def __init__(self, trace: Trace, dependencies: Sequence[Sequence[int]], capacity: int) -> None:
        self.trace = trace
        self.dependencies = dependencies
        self.capacity = capacity
        self.uses: dict[int, list[int]] = {}
        for i, instruction in enumerate(trace.instructions):
            for storage in _touched(instruction):
                where = self.uses.setdefault(storage.number, [])
                if not where or where[-1] != i:
                    where.append(i)
        self.resident: dict[int, Storage] = {}
        self.used = 0
        self.dirty: set[int] = set()
        self.saved: dict[int, int] = {}  # where in the new list its last save is
        self.touched: dict[int, list[int]] = {}  # accesses since it came into SBUF, by place in the new list
        self.instructions: list[Instruction] = []
        self.new_dependencies: list[tuple[int, ...]] = []
        self.moved = 0

    def run(self) -> tuple[list[Instruction], list[tuple[int, ...]], int]:
        place: list[int] = []
        for i, instruction in enumerate(self.trace.instructions):
            needed = {s.number: s for s in _touched(instruction)}
            waits: list[int] = []
            for storage in needed.values():
                if storage.number not in self.resident:
                    waits += self._bring(storage, needed, i)
            at = self._append(instruction, (*(place[d] for d in self.dependencies[i]), *waits))
            place.append(at)
            for number in needed:
                self.touched.setdefault(number, []).append(at)
            loaded = instruction.op == "dma_copy" and _unchanging(instruction.args[0])
            for view in instruction.out:
                if isinstance(view, NkiTensor) and not loaded:
                    self.dirty.add(view.storage.number)
            for number, storage in needed.items():
                if self.uses[number][-1] == i:
                    del self.resident[number]
                    self.used -= storage.bytes_per_partition
        return self.instructions, self.new_dependencies, self.moved

    def _append(self, instruction: Instruction, waits: tuple[int, ...]) -> int:
        self.instructions.append(instruction)
        self.new_dependencies.append(tuple(dict.fromkeys(waits)))
        return len(self.instructions) - 1

    def _bring(self, storage: Storage, needed: dict[int, Storage], now: int) -> list[int]:
        """Makes room for `storage`, and loads it if it was here before. Returns what its user waits for."""
        waits: list[int] = []
        size = storage.bytes_per_partition
        while self.used + size > self.capacity:
            candidates = [n for n in self.resident if n not in needed]
            if not candidates:
                break
            farthest = max(candidates, key=lambda n: self._next_use(n, now))
            waits += self._evict(self.resident[farthest])
        self.resident[storage.number] = storage
        self.used += size
        if self.uses[storage.number][0] < now:
            save = self.saved.get(storage.number)
            at = self._append(_transfer(storage, load=True), (*waits, *(() if save is None else (save,))))
            self.moved += size * storage.partitions
            self.touched[storage.number] = [at]
            return [at]
        return waits

    def _next_use(self, number: int, now: int) -> int:
        uses = self.uses[number]
        at = bisect_right(uses, now)
        return uses[at] if at < len(uses) else len(self.trace.instructions)

    def _evict(self, storage: Storage) -> list[int]:
        number = storage.number
        del self.resident[number]
        self.used -= storage.bytes_per_partition
        before = self.touched.pop(number, [])
        if number not in self.dirty:
            return before
        at = self._append(_transfer(storage, load=False), tuple(before))
        self.moved += storage.bytes_per_partition * storage.partitions
        self.dirty.discard(number)
        self.saved[number] = at
        return [at]


def _unchanging(source: object) -> bool:
    """Whether what was loaded can be loaded again from where it came from."""
    return isinstance(source, NkiTensor) and source.storage.role in ("argument", "constant")


def _touched(instruction: Instruction) -> list[Storage]:
    views = (*instruction.out, *instruction.args)
    return [v.storage for v in views if isinstance(v, NkiTensor) and v.storage.region == "sbuf"]


def _transfer(storage: Storage, load: bool) -> Instruction:
    shape = (storage.partitions, max(storage.bytes_per_partition, 1))
    inside = Storage(storage.number, "sbuf", shape, TYPES["uint8"], name=storage.name, line=storage.line)
    outside = Storage(-1, "private_hbm", (prod(shape),), TYPES["uint8"], name=storage.name, line=storage.line)
    strides = (shape[1], 1)
    on_chip = NkiTensor(inside, inside.dtype, shape, strides)
    in_hbm = NkiTensor(outside, outside.dtype, shape, strides)
    dst, src = (on_chip, in_hbm) if load else (in_hbm, on_chip)
    hints = {"dge_mode": "none", "queue": "SpillReload" if load else "SpillSave"}
    return Instruction("dma_copy", "dma", (dst,), (src,), (False,), storage.line, "spill", hints)
