"""Loops of the Beta 1 dialect, which Python unrolls, and the check that parallel ones may run in any order."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import numpy as np

from nki.checks.trace import Box, box_of, overlap
from nki.errors import LoopCarriedError
from nki.instruction import Instruction
from nki.tensor import NkiTensor
from nki.trace import Trace, report, source_line
from nki.trace import current as current_trace

from . import context
from .context import Context, Loop
from .indices import Index

__all__ = ["LoopIndex", "affine_range", "check_loops", "sequential_range", "static_range"]


class LoopIndex(int):
    """The number of an iteration. An ordinary integer, except that loop_reduce can ask whether it is the first.

    Attributes:
        first: whether this is the first iteration.
    """

    first: bool = False


def _numbers(args: tuple[Any, ...], first: bool = True) -> Iterator[LoopIndex]:
    for number in range(*(operator.index(a) for a in args)):
        index = LoopIndex(number)
        index.first = first
        first = False
        yield index


def affine_range(*args: Any, **options: Any) -> Iterator[LoopIndex]:
    """Numbers as `range` has them, for a loop whose iterations need nothing of each other.

    What they may share is a sum: matmuls added to a tile in PSUM, `+=` in general, loop_reduce. Everything else that
    one iteration writes and a later one reads is found when the kernel has been traced (LoopCarriedError).

    Args:
        options: hints to the compiler. `precise_schedule=True` keeps the order of the iterations, which then may need
            each other; others are accepted and not used.
    """
    if options.get("precise_schedule"):
        return _numbers(args)
    return _parallel(args, Loop(source_line(), len(current_trace().storages)))


def _parallel(args: tuple[Any, ...], loop: Loop) -> Iterator[LoopIndex]:
    trace = current_trace()
    context.current().loops.append(loop)
    for index in _numbers(args):
        loop.starts.append(len(trace.instructions))
        yield index
    loop.end = len(trace.instructions)


def sequential_range(*args: Any, **options: Any) -> Iterator[LoopIndex]:
    """Numbers as `range` has them, for a loop whose iterations come one after the other."""
    return _numbers(args)


def static_range(*args: Any) -> Iterator[LoopIndex]:
    """Numbers as `range` has them, for a loop that is unrolled."""
    return _numbers(args)


def check_loops(trace: Trace, notes: Context) -> None:
    """Reports through :func:`nki.trace.report`.

    Raises:
        LoopCarriedError: an iteration of affine_range reads what an earlier one wrote, other than to add to it.
    """
    for loop in notes.loops:
        if len(loop.starts) > 1:
            _check(trace, notes, loop)


def _check(trace: Trace, notes: Context, loop: Loop) -> None:
    end = loop.end if loop.end >= 0 else len(trace.instructions)
    both = _read_and_written(trace.instructions[loop.starts[0] : end], loop.storages)
    if not both:
        return
    # For each of these tensors its writes, latest last.
    writes: dict[int, list[tuple[Box, bool, int, NkiTensor]]] = {number: [] for number in both}
    stops = [*loop.starts[1:], end]
    for start, stop in zip(loop.starts, stops, strict=True):
        for instruction in trace.instructions[start:stop]:
            exempt = instruction in notes.reductions
            for view in () if exempt else instruction.args:
                if _is_known(view, writes):
                    found = _latest(trace, writes[view.storage.number], view, start)
                    if found is not None:
                        _report(trace, loop, instruction, view, found)
                        return
            for view in instruction.out:
                if _is_known(view, writes):
                    # A sum is not a value yet that a later iteration could have read by mistake.
                    number = -1 if exempt else instruction.index
                    writes[view.storage.number].append((box_of(view), _is_dense(view), number, view))


def _is_dense(view: NkiTensor) -> bool:
    """Whether a view is all elements of its box."""
    first, last, begin, end = box_of(view)
    return (last - first) * (end - begin) == view.size


def _latest(trace: Trace, writes: list[tuple[Box, bool, int, NkiTensor]], view: NkiTensor, start: int) -> Any:
    """The write of an earlier iteration that a read sees something of, if there is one."""
    box = box_of(view)
    for place in range(len(writes) - 1, -1, -1):
        other, dense, number, _ = writes[place]
        if not overlap(other, box):
            continue
        if number >= start or number < 0:
            if dense and other[0] <= box[0] and box[1] <= other[1] and other[2] <= box[2] and box[3] <= other[3]:
                return None
            if not any(overlap(w[0], box) and 0 <= w[2] < start for w in writes[:place]):
                return None
        return _exactly(trace, writes, view, start)
    return None


def _exactly(trace: Trace, writes: list[tuple[Box, bool, int, NkiTensor]], view: NkiTensor, start: int) -> Any:
    """The same, element by element."""
    last = np.full(_elements(trace, view.storage.number), -1, np.int64)
    for _, _, number, written in writes:
        last[_numbers_of(written)] = number
    seen = last[_numbers_of(view)]
    carried = seen[(seen >= 0) & (seen < start)]
    return trace.instructions[int(carried.reshape(-1)[0])] if carried.size else None


def _elements(trace: Trace, number: int) -> int:
    storage = trace.storages[number]
    return storage.partitions * storage.free


def _read_and_written(instructions: list[Instruction], older: int) -> set[int]:
    """Tensors from outside of the loop that it both reads and writes."""
    sides: tuple[set[int], set[int]] = (set(), set())
    for instruction in instructions:
        for views, side in ((instruction.args, sides[0]), (instruction.out, sides[1])):
            for view in views:
                if isinstance(view, NkiTensor) and view.storage.number < older and instruction.op != "table_copy":
                    side.add(view.storage.number)
    return sides[0] & sides[1]


def _is_known(view: Any, tensors: dict[int, Any]) -> bool:
    """Whether a view is of one of these tensors, and of elements that are known while tracing."""
    return (
        isinstance(view, NkiTensor)
        and view.storage.number in tensors
        and view.dynamic is None
        and view.dtype == view.storage.dtype
    )


def _numbers_of(view: NkiTensor) -> Any:
    return Index(view.shape, view.offset, view.strides).dense()


def _report(trace: Trace, loop: Loop, instruction: Instruction, view: NkiTensor, writer: Instruction) -> None:
    report(
        LoopCarriedError(
            op=instruction.op, tensor=view.storage, shape=view.storage.shape, loop=loop.line[1], written=writer.line[1],
            line=instruction.line,
        )
    )  # fmt: skip
