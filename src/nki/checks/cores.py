"""What the two cores of a grid do to the memory that they share.

Cores run beside each other; only barriers, exchanges and collectives put what they do in order. Between two of those,
an element of shared HBM that one core writes must not be used by the other.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import CoreRaceError, CoreRaceWarning
from ..instruction import Instruction
from ..storage import Storage
from ..tensor import NkiTensor
from ..trace import Trace, report, tracing

__all__ = ["check_cores"]

_MEETINGS = ("barrier", "sendrecv", "collective")

Marks = np.ndarray[Any, np.dtype[np.bool_]]  # per byte of a tensor


def check_cores(traces: Sequence[Trace]) -> None:
    """Reports through :func:`~nki.trace.report`; two cores that write the same element are warned of, since kernels do
    so with equal values.

    Raises:
        CoreRaceError: a core reads what the other one may be writing at the same time.
    """
    if len(traces) != 2:
        return
    shared = [[s for s in trace.storages if s.region == "shared_hbm" and s.role != "constant"] for trace in traces]
    with tracing(traces[0]):
        for first, second in zip(*shared, strict=False):
            mine, others = _periods(traces[0], first), _periods(traces[1], second)
            for period in sorted(mine.keys() & others.keys()):
                if mine[period].writers or others[period].writers:
                    _compare(first, mine[period], others[period])


@dataclass
class _Use:
    """What a core does to a tensor between two meetings."""

    writers: list[tuple[NkiTensor, Instruction]] = field(default_factory=list)
    readers: list[tuple[NkiTensor, Instruction]] = field(default_factory=list)


def _periods(trace: Trace, storage: Storage) -> dict[int, _Use]:
    periods: dict[int, _Use] = {}
    meetings = 0
    for instruction in trace.instructions:
        if instruction.op in _MEETINGS:
            meetings += 1
        if _changes_nothing(instruction):
            continue
        for views, writes in ((instruction.args, False), (instruction.out, True)):
            for view in views:
                # Where an access goes at run time is not known: nothing is said of it.
                if not isinstance(view, NkiTensor) or view.storage is not storage or view.dynamic is not None:
                    continue
                use = periods.setdefault(meetings, _Use())
                (use.writers if writes else use.readers).append((view, instruction))
    return periods


def _changes_nothing(instruction: Instruction) -> bool:
    """A copy of a tensor to itself, with which kernels wait for their transfers."""
    if instruction.op != "dma_copy":
        return False
    dst, src = instruction.out[0], instruction.args[0]
    return (dst.storage, dst.dtype, dst.offset, dst.shape, dst.strides) == (
        src.storage, src.dtype, src.offset, src.shape, src.strides
    )  # fmt: skip


def _marked(views: list[tuple[NkiTensor, Instruction]], storage: Storage) -> Marks:
    marks = np.zeros(storage.free * storage.dtype.itemsize, bool)
    for view, _ in views:
        _bytes(view, marks)[...] = True
    return marks


def _bytes(view: NkiTensor, marks: Marks) -> Marks:
    """The marks of the bytes that `view` looks at."""
    size = view.dtype.itemsize
    return np.lib.stride_tricks.as_strided(
        marks[view.offset * size :], (*view.shape, size), (*(stride * size for stride in view.strides), 1)
    )


def _compare(storage: Storage, first: _Use, second: _Use) -> None:
    written = [_marked(use.writers, storage) for use in (first, second)]
    for writer, other, marks in ((first, second, written[0]), (second, first, written[1])):
        both = marks & _marked(other.readers, storage)
        if both.any():
            writes, reads = next(_touching(writer.writers, both)), next(_touching(other.readers, both))
            report(
                CoreRaceError(
                    tensor=storage, writer=f"line {writes.line[1]}", reader=f"line {reads.line[1]}", line=reads.line
                )
            )
            return
    both = written[0] & written[1]
    if both.any():
        line = next(_touching(first.writers, both)).line[1]
        text = f"both cores write the same elements of {storage} (line {line}): which of them is last is open"
        warnings.warn(CoreRaceWarning(text), stacklevel=2)


def _touching(uses: list[tuple[NkiTensor, Instruction]], marks: Marks) -> Iterator[Instruction]:
    return (instruction for view, instruction in uses if _bytes(view, marks).any())
