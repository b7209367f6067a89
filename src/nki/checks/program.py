"""Checks that need lifetimes and dependencies, which the extension module finds."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from ..errors import (
    MemoryOverflowError,
    OutputNeverWrittenError,
    OutputNotReturnedError,
    UnwrittenReadError,
    UnwrittenReadWarning,
)
from ..tensor import NkiTensor
from ..trace import Trace, report, tracing
from .races import check_races

if TYPE_CHECKING:
    from .. import _engines
    from ..allocation import Allocation, Overflow

__all__ = ["check_program"]

# Tensors that an overflow names; the rest is counted.
_NAMED = 8


def check_program(trace: Trace, executable: _engines.Program, allocation: Allocation, kernel: str) -> None:
    """Reports through :func:`~nki.trace.report`; reads of unwritten memory are warnings unless problems are gathered.

    Raises:
        MemoryOverflowError: SBUF or PSUM is too small.
        OutputNeverWrittenError: a result holds nothing but what its memory held before.
        OutputNotReturnedError: nothing comes of the kernel.
        RaceError: two accesses to the same memory have no order.
    """
    with tracing(trace):
        for overflow in allocation.overflows:
            report(_overflow_error(overflow, trace))
        _check_outputs(trace, executable, kernel)
        _check_unwritten_reads(trace, executable)
        check_races(trace, executable, allocation)


def _overflow_error(overflow: Overflow, trace: Trace) -> MemoryOverflowError:
    rows = [
        f"    {s.bytes_per_partition:>7} B  {s.name or '(unnamed)'} {list(s.shape)} {s.dtype}, {s.line[0]}:{s.line[1]}"
        for s in overflow.alive[:_NAMED]
    ]
    rest = overflow.alive[_NAMED:]
    if rest:
        rows.append(f"    {sum(s.bytes_per_partition for s in rest):>7} B  in {len(rest)} more")
    return MemoryOverflowError(
        region=overflow.region.upper(),
        used=overflow.used,
        limit=overflow.limit,
        target=trace.target,
        tensors="\n".join(rows),
        line=trace.instructions[overflow.instruction].line,
    )


def _check_outputs(trace: Trace, executable: _engines.Program, kernel: str) -> None:
    never = set(executable.unwritten_storages())
    outputs = [s for s in trace.storages if s.role == "output"]
    # In a grid each program writes its part, which may be none.
    for storage in outputs if trace.grid in ((), (1,)) else ():
        if storage.number in never:
            report(OutputNeverWrittenError(kernel=kernel, tensor=storage, shape=storage.shape, line=storage.line))
    changed = any(
        isinstance(view, NkiTensor) and view.storage.role == "argument" for i in trace.instructions for view in i.out
    )
    if not outputs and not changed and trace.grid in ((), (1,)):
        lost = [s for s in trace.storages if s.region == "shared_hbm" and s.role == ""]
        names = ", ".join(f"{s} {list(s.shape)}, line {s.line[1]}" for s in lost) or "none was made"
        report(OutputNotReturnedError(kernel=kernel, tensors=names))


def _check_unwritten_reads(trace: Trace, executable: _engines.Program) -> None:
    told: set[tuple[int, tuple[str, int, str]]] = set()
    for number, _, storage_number in executable.unwritten_reads():
        instruction, storage = trace.instructions[number], trace.storages[storage_number]
        if (storage_number, instruction.line) in told:
            continue
        told.add((storage_number, instruction.line))
        problem = UnwrittenReadError(
            op=instruction.op, tensor=storage, shape=storage.shape, made=storage.line[1], line=instruction.line
        )
        if trace.problems is None:
            warnings.warn(UnwrittenReadWarning(str(problem)), stacklevel=2)
        else:
            report(problem)
