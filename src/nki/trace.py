"""The trace: instructions and tensors of a kernel, gathered while its Python function runs.

One trace is one program on one core. `current()` is the one being gathered in this thread; every function of nki.isa
and nki.language that does something appends to it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from .errors import OutsideKernelError
from .instruction import Instruction, Line

if TYPE_CHECKING:
    from .storage import Storage

__all__ = ["Register", "Trace", "active", "current", "report", "source_line", "tracing"]


class Register:
    """A 32-bit register of an engine's sequencer; its value is known only when the kernel runs.

    Attributes:
        number: place in the register file of the program.
    """

    __slots__ = ("number", "trace")

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.number = trace.registers
        trace.registers += 1


@dataclass
class Trace:
    """What a kernel did.

    Attributes:
        target: "trn1", "trn2" or "trn3".
        grid: number of programs along each axis; () without a grid.
        program: this program's place in the grid.
        rank, ranks: this core's place among those that collectives connect.
        instructions: in program order, which is their meaning.
        storages: every tensor that was allocated, arguments first.
        registers: how many there are.
    """

    target: str
    grid: tuple[int, ...] = ()
    program: tuple[int, ...] = ()
    rank: int = 0
    ranks: int = 1
    instructions: list[Instruction] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=list)
    registers: int = 0
    named: dict[str, Instruction] = field(default_factory=dict)
    # While > 0, each instruction comes after the one before it.
    ordered: int = 0
    # Dynamic loops that are being traced, outermost first: numbers that tell them apart.
    loops: tuple[int, ...] = ()
    # Problems that `nki.check` gathers instead of raising them; None when they are raised.
    problems: list[Exception] | None = None
    # A collective between its two steps, see nki.collectives.split.
    prepared: Any = None

    def add(self, instruction: Instruction) -> Instruction:
        instructions = self.instructions
        instruction.index = len(instructions)
        if instruction.name:
            self.named[instruction.name] = instruction
        if self.ordered and instructions:
            instruction.after = (instructions[-1],)
        instructions.append(instruction)
        return instruction


class _Current(threading.local):
    trace: Trace | None = None


_current = _Current()


def active() -> Trace | None:
    """The trace that is being gathered in this thread, if any."""
    return _current.trace


def current() -> Trace:
    """The trace that is being gathered in this thread.

    Raises:
        OutsideKernelError: none is.
    """
    trace = _current.trace
    if trace is None:
        raise OutsideKernelError(function=sys._getframe(1).f_code.co_name)
    return trace


@contextmanager
def tracing(trace: Trace) -> Iterator[Trace]:
    """Makes `trace` the current one. Kernels may be traced inside the trace of another: each gathers its own."""
    before = _current.trace
    _current.trace = trace
    try:
        yield trace
    finally:
        _current.trace = before


# Packages whose frames are not the kernel's: ours, and the older dialect's, which stands on it.
_OURS = (__name__.rpartition(".")[0] + ".", "neuronxcc.")


# Lines of each kernel's code that were asked for before, by the instruction in it; None for code of ours. By the
# code's id, since hashing code looks at all of it; `_codes` keeps the ids from being used again.
_lines: dict[int, dict[int, Line] | None] = {}
_codes: list[CodeType] = []


def source_line() -> Line:
    """The line of the kernel that called into this package: the first frame outside it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        key = id(code)
        lines = _lines[key] if key in _lines else _learn(frame)
        if lines is not None:
            at = frame.f_lasti
            line = lines.get(at)
            if line is None:
                line = lines[at] = (code.co_filename, frame.f_lineno or 0, code.co_name)
            return line
        frame = frame.f_back
    return ("<unknown>", 0, "")


def _learn(frame: FrameType) -> dict[int, Line] | None:
    ours = frame.f_globals.get("__name__", "").startswith(_OURS)
    lines: dict[int, Line] | None = None if ours else {}
    _codes.append(frame.f_code)
    _lines[id(frame.f_code)] = lines
    return lines


def report(problem: Exception) -> None:
    """Raises `problem`, or keeps it where `nki.check` gathers all that it finds."""
    trace = _current.trace
    if trace is None or trace.problems is None:
        raise problem
    trace.problems.append(problem)
