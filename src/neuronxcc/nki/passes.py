"""What the compiler of the Beta 1 dialect did to a whole kernel, and does not change what it computes.

Every instruction of the dialect returns a tile, so that `a[...] = nisa.activation(...)` says two things: compute into a
new tile, copy it. The first can write `a` itself. Instructions also keep the order that addresses ask for: a tile that
was placed where another one is goes after all uses of the other.
"""

from __future__ import annotations

from nki.instruction import Instruction
from nki.storage import Storage
from nki.tensor import NkiTensor
from nki.trace import Trace

from .context import Context

__all__ = ["merge_assignments", "order_shared_memory"]

Key = tuple[object, ...]

# Where each kind of copy can be left out: an engine cannot write HBM, DMA can write everything but PSUM.
_WRITES_ANYWHERE = frozenset({"dma_copy", "dma_transpose"})


def _key(view: NkiTensor) -> Key:
    """Equal for views of the same elements in the same order."""
    sizes = [(n, s) for n, s in zip(view.shape[1:], view.strides[1:], strict=True) if n != 1]
    joined: list[tuple[int, int]] = []
    for n, s in sizes:
        if joined and joined[-1][1] == s * n:
            joined[-1] = (joined[-1][0] * n, s)
        else:
            joined.append((n, s))
    return (view.storage.number, view.dtype, view.offset, view.shape[0], *joined)


def merge_assignments(trace: Trace, context: Context) -> None:
    """Lets instructions write to where their result is assigned, and drops matmuls that were repeated in PSUM."""
    readers: dict[int, int] = {}
    writers: dict[int, list[Instruction]] = {}
    for instruction in trace.instructions:
        for view in instruction.args:
            if isinstance(view, NkiTensor):
                readers[view.storage.number] = readers.get(view.storage.number, 0) + 1
                if view.dynamic is not None and isinstance(view.dynamic.index, NkiTensor):
                    number = view.dynamic.index.storage.number
                    readers[number] = readers.get(number, 0) + 1
        for view in instruction.out:
            if isinstance(view, NkiTensor):
                writers.setdefault(view.storage.number, []).append(instruction)
                if view.dynamic is not None and isinstance(view.dynamic.index, NkiTensor):
                    number = view.dynamic.index.storage.number
                    readers[number] = readers.get(number, 0) + 1
    dropped: set[Instruction] = set()
    groups: dict[int, list[Instruction]] = {}
    for copy in context.assignments:
        if copy.op in ("copy", "dma_copy") and isinstance(copy.args[0], NkiTensor):
            groups.setdefault(copy.args[0].storage.number, []).append(copy)
    for number, copies in groups.items():
        made = writers.get(number, [])
        storage = trace.storages[number]
        if storage.role or storage.address is not None or not storage.on_chip:
            continue
        if readers.get(number, 0) != len(copies) or len(made) != len(copies):
            continue
        _merge(trace, made, copies, dropped)
    for matmul in context.repeated:
        if not readers.get(matmul.out[0].storage.number):
            dropped.add(matmul)
    if dropped:
        trace.instructions[:] = [i for i in trace.instructions if i not in dropped]
        for place, instruction in enumerate(trace.instructions):
            instruction.index = place
            instruction.after = tuple(i for i in instruction.after if i not in dropped)


def _merge(trace: Trace, made: list[Instruction], copies: list[Instruction], dropped: set[Instruction]) -> None:
    """One instruction for each copy: its result goes to where the copy puts it."""
    places = {_key(view): (instruction, place) for instruction in made for place, view in enumerate(instruction.out)
              if isinstance(view, NkiTensor)}  # fmt: skip
    found = []
    for copy in copies:
        source, target = copy.args[0], copy.out[0]
        match = places.get(_key(source))
        if match is None or source.dtype != target.dtype or target.dynamic is not None or not target.storage.on_chip:
            return
        instruction, place = match
        if copy.op == "dma_copy" and instruction.op not in _WRITES_ANYWHERE:
            return
        if instruction.op in _WRITES_ANYWHERE and target.storage.region != "sbuf":
            return
        if instruction.op == "table_copy" and instruction.attrs[0] is not None:
            return
        if instruction.engine == "tensor" and target.storage.region != "psum":
            return
        if instruction.engine == "gpsimd" and target.storage.region == "psum":
            return
        between = trace.instructions[instruction.index + 1 : copy.index]
        if any(_touches(i, target.storage) for i in between) or _clashes(instruction, target):
            return
        found.append((instruction, place, copy, target))
    for instruction, place, copy, target in found:
        instruction.out = (*instruction.out[:place], target, *instruction.out[place + 1 :])
        dropped.add(copy)


def _touches(instruction: Instruction, storage: Storage) -> bool:
    return any(isinstance(v, NkiTensor) and v.storage is storage for v in (*instruction.out, *instruction.args))


def _clashes(instruction: Instruction, target: NkiTensor) -> bool:
    """Whether the instruction reads what it would write then, and not element by element from the same places."""
    for view in instruction.args:
        if isinstance(view, NkiTensor) and view.storage is target.storage:
            first, last = _reach(view)
            begin, end = _reach(target)
            if first <= end and begin <= last and _key(view) != _key(target):
                return True
            if instruction.op not in ("tensor_tensor", "tensor_scalar", "activation", "copy", "reciprocal"):
                return True
    return False


def _reach(view: NkiTensor) -> tuple[int, int]:
    start = view.offset % view.strides[0]
    return start, start + sum((n - 1) * abs(s) for n, s in zip(view.shape[1:], view.strides[1:], strict=True))


def order_shared_memory(trace: Trace) -> None:
    """Puts instructions on tensors at overlapping addresses into the order in which the kernel says them."""
    placed = [s for s in trace.storages if s.address is not None and s.on_chip]
    if not placed:
        return
    overlapping = _overlapping(placed)
    users: dict[int, dict[object, Instruction]] = {}
    before: dict[int, dict[object, Instruction]] = {}
    for instruction in trace.instructions:
        numbers = {
            v.storage.number
            for v in (*instruction.out, *instruction.args)
            if isinstance(v, NkiTensor) and v.storage.number in overlapping
        }
        for number in numbers:
            for other in overlapping[number]:
                if other not in numbers and users.get(other):
                    before[number] = {**before.get(number, {}), **users.pop(other)}
            earlier = before.get(number)
            if earlier:
                known = {id(i) for i in instruction.after}
                instruction.after += tuple(i for i in earlier.values() if id(i) not in known and i is not instruction)
            # Each engine goes in order, so its last instruction stands for all; transfers end in any order.
            kind: object = instruction.index if instruction.engine == "dma" else instruction.engine
            users.setdefault(number, {})[kind] = instruction


def _overlapping(placed: list[Storage]) -> dict[int, list[int]]:
    """For each tensor with an address, the others that have bytes of it."""
    result: dict[int, list[int]] = {}
    by_region: dict[str, list[tuple[int, int, int]]] = {}
    for storage in placed:
        start = storage.address[1] if storage.address else 0
        by_region.setdefault(storage.region, []).append((start, start + storage.bytes_per_partition, storage.number))
    for spans in by_region.values():
        spans.sort()
        open_spans: list[tuple[int, int, int]] = []
        for start, stop, number in spans:
            open_spans = [s for s in open_spans if s[1] > start]
            for _, _, other in open_spans:
                result.setdefault(number, []).append(other)
                result.setdefault(other, []).append(number)
            open_spans.append((start, stop, number))
    return result
