"""What the Beta 1 dialect keeps about a kernel while it is traced, beyond the trace itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from nki.errors import OutsideKernelError
from nki.instruction import Instruction, Line
from nki.storage import Storage
from nki.tensor import NkiTensor
from nki.trace import current as current_trace

__all__ = ["Context", "Loop", "active", "current", "using"]


@dataclass
class Loop:
    """One run of a loop over nl.affine_range.

    Attributes:
        line: where it stands.
        storages: how many tensors existed before it.
        starts: number of the first instruction of each iteration.
        end: one past the last instruction.
    """

    line: Line
    storages: int
    starts: list[int] = field(default_factory=list)
    end: int = -1


@dataclass
class Context:
    """Notes on the kernel that is being traced.

    Attributes:
        assignments: copies that `tile[...] = value` made; the value's instruction may write the tile itself instead.
        reductions: instructions that add to what they read, whose order does not matter.
        repeated: matmuls whose result was added to PSUM by repeating them there; nobody else may want the first one.
        loops: over nl.affine_range.
        writes, seen: writes to each tensor in PSUM, and how far the trace was looked through for them.
    """

    assignments: list[Instruction] = field(default_factory=list)
    reductions: set[Instruction] = field(default_factory=set)
    repeated: set[Instruction] = field(default_factory=set)
    loops: list[Loop] = field(default_factory=list)
    writes: dict[int, list[Instruction]] = field(default_factory=dict)
    seen: int = 0

    def writes_of(self, storage: Storage) -> list[Instruction]:
        """Instructions that wrote a tensor in PSUM since it was made, or handed to another tile."""
        instructions = current_trace().instructions
        for instruction in instructions[self.seen :]:
            for view in instruction.out:
                if isinstance(view, NkiTensor) and view.storage.region == "psum":
                    self.writes.setdefault(view.storage.number, []).append(instruction)
        self.seen = len(instructions)
        return self.writes.get(storage.number, [])

    def forget(self, storage: Storage) -> None:
        """The memory of a tensor becomes that of another tile, which nothing has written yet."""
        self.writes_of(storage)
        self.writes.pop(storage.number, None)


class _Current(threading.local):
    context: Context | None = None


_current = _Current()


def active() -> Context | None:
    """The notes on the kernel that this thread traces, if any."""
    return _current.context


def current() -> Context:
    """The notes on the kernel that this thread traces.

    Raises:
        OutsideKernelError: it traces none.
    """
    context = _current.context
    if context is None:
        raise OutsideKernelError(function="An instruction of neuronxcc.nki")
    return context


@contextmanager
def using(context: Context) -> Iterator[Context]:
    before = _current.context
    _current.context = context
    try:
        yield context
    finally:
        _current.context = before
