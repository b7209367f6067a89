"""Loops: those that Python unrolls while the kernel is traced, and those that the hardware runs.

The body of a hardware loop is traced once, between `loop_begin` and `loop_end`. What it allocates is allocated once and
holds nothing in particular when the next round begins or after the loop.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from .instruction import Instruction, Line
from .tensor import NkiTensor
from .tensor_errors import (
    EscapedTensorError,
    LoopBodyError,
    LoopBoundError,
    LoopInNoReorderError,
    LoopLeftError,
    LoopStepError,
)
from .trace import Register, Trace, current, report, source_line

__all__ = [
    "affine_range", "check_loops", "dynamic_range", "fori_loop", "no_reorder", "sequential_range", "static_range",
    "while_loop",
]  # fmt: skip


def affine_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """Python's `range`, which is unrolled; `range` itself says the same."""
    return range(start) if stop is None else range(start, stop, step)


def sequential_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """Python's `range`, which is unrolled; `range` itself says the same."""
    return range(start) if stop is None else range(start, stop, step)


def static_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """Python's `range`, which is unrolled; `range` itself says the same."""
    return range(start) if stop is None else range(start, stop, step)


def _bound(value: Any, function: str) -> Any:
    if isinstance(value, Register) and getattr(value, "dtype", "int32") != "int64":
        return value
    if isinstance(value, (Register, bool)) or not hasattr(value, "__index__"):
        raise LoopBoundError(function=function, bound=value, line=source_line())
    return operator.index(value)


def _step(value: Any, function: str) -> int:
    if isinstance(value, (Register, bool)) or not hasattr(value, "__index__") or operator.index(value) < 1:
        raise LoopStepError(function=function, step=value, line=source_line())
    return operator.index(value)


def _begin(trace: Trace, op: str, out: tuple[Any, ...], args: tuple[Any, ...], attrs: tuple[Any, ...],
           function: str) -> Instruction:  # fmt: skip
    """Begins a loop; the place of the instruction in the trace is what tells loops apart."""
    if trace.ordered:
        raise LoopInNoReorderError(function=function, line=source_line())
    begin = trace.add(Instruction(op, "sync", out, args, attrs, source_line()))
    trace.loops = (*trace.loops, begin.index)
    return begin


def _end(trace: Trace, op: str, begin: Instruction, line: Line) -> None:
    if not trace.loops or trace.loops[-1] != begin.index:
        raise LoopLeftError(line=trace.instructions[trace.loops[-1]].line if trace.loops else line)
    trace.add(Instruction(op, "sync", (), (), (), line))
    trace.loops = trace.loops[:-1]


class dynamic_range:
    """A loop that the hardware runs: `for i in nl.dynamic_range(n)`, whose body is traced once.

    `i` is a scalar whose value is known only when the kernel runs: it may stand for an index, and in arithmetic.
    (NKI 0.7 has :func:`fori_loop` in its place.)

    Args:
        start: an integer or a register; with `stop` None it is the end, and the loop begins at 0.
        stop: where the loop ends, exclusive.
        step: a positive integer.

    Raises:
        LoopStepError: the step is none.
        LoopBoundError: a bound is neither.
        LoopInNoReorderError: inside of nl.no_reorder().
    """

    __slots__ = ("_begun", "_bounds", "_step")

    def __init__(self, start: Any, stop: Any = None, step: Any = 1) -> None:
        lower, upper = (0, start) if stop is None else (start, stop)
        self._step = _step(step, "dynamic_range")
        self._bounds = (_bound(lower, "dynamic_range"), _bound(upper, "dynamic_range"))
        self._begun: Instruction | None = None

    def __iter__(self) -> dynamic_range:
        return self

    def __next__(self) -> Any:
        from .isa.registers import NkiScalar

        trace = current()
        if self._begun is not None:
            begin, self._begun = self._begun, None
            _end(trace, "loop_end", begin, begin.line)
            raise StopIteration
        register = NkiScalar(trace)
        self._begun = _begin(trace, "loop_begin", (register,), self._bounds, (self._step,), "dynamic_range")
        return register


def fori_loop(lower: Any, upper: Any, body_fun: Callable[[Any], Any], step: Any = 1) -> None:
    """A loop that the hardware runs: `body_fun(i)` for i from `lower` to `upper`, exclusive, in steps of `step`.

    Args:
        lower, upper: integers, registers or 32-bit scalars.
        body_fun: gets the scalar i, whose value is known only when the kernel runs; traced once. Tensors that it
            allocates stay inside.
        step: a positive integer.

    Raises:
        LoopStepError, LoopBoundError, LoopInNoReorderError: as in :class:`dynamic_range`.
        LoopBodyError: the body returns something; what it computes stays in tensors.
    """
    from .isa.registers import NkiScalar

    trace = current()
    line = source_line()
    bounds = (_bound(lower, "fori_loop"), _bound(upper, "fori_loop"))
    register = NkiScalar(trace)
    begin = _begin(trace, "loop_begin", (register,), bounds, (_step(step, "fori_loop"),), "fori_loop")
    result = body_fun(register)
    if result is not None and not isinstance(result, Instruction):  # what a lambda around one instruction returns
        raise LoopBodyError(function="fori_loop", value=result, wanted="nothing: results go to tensors", line=line)
    _end(trace, "loop_end", begin, line)


def while_loop(init: Any, body_fun: Callable[[Any], Any]) -> None:
    """A loop that the hardware runs: while the register is not 0, `register = body_fun(register)`.

    Args:
        init: a register, asked before the first round.
        body_fun: gets the register's value, returns the register that decides on the next round; traced once.

    Raises:
        LoopBoundError: `init` is no register.
        LoopBodyError: the body returns none.
        LoopInNoReorderError: inside of nl.no_reorder().
    """
    from .isa.registers import register_alloc

    trace = current()
    line = source_line()
    if not isinstance(init, Register):
        raise LoopBoundError(function="while_loop", bound=init, line=line)
    # Registers of its own, since the body may write the one it gets, and the caller goes on using his.
    condition = register_alloc(init)  # type: ignore[arg-type]
    begin = _begin(trace, "while_begin", (), (condition,), (), "while_loop")
    result = body_fun(register_alloc(condition))  # type: ignore[arg-type]
    if not isinstance(result, Register):
        raise LoopBodyError(
            function="while_loop", value=result, wanted="the register that decides on the next round", line=line
        )
    trace.add(Instruction("register_move", "sync", (condition,), (result,), (), line))
    _end(trace, "while_end", begin, line)


class no_reorder:
    """`with nl.no_reorder():` keeps instructions in the order in which the kernel says them."""

    __slots__ = ("_trace",)

    def __enter__(self) -> None:
        self._trace = current()
        self._trace.ordered += 1

    def __exit__(self, *_: object) -> None:
        self._trace.ordered -= 1


def check_loops(trace: Trace) -> None:
    """Whether each hardware loop of a finished trace was ended, and keeps its tensors.

    Raises:
        LoopLeftError: one was left with break or return.
        EscapedTensorError: a tensor of a body is used outside.
    """
    if trace.loops:
        report(LoopLeftError(line=trace.instructions[trace.loops[-1]].line))
    if not any(storage.loops for storage in trace.storages):
        return
    inside: list[int] = []
    for instruction in trace.instructions:
        if instruction.op in ("loop_end", "while_end"):
            inside.pop()
        for operand in (*instruction.out, *instruction.args):
            if isinstance(operand, NkiTensor) and operand.storage.loops:
                loops = operand.storage.loops
                if tuple(inside[: len(loops)]) != loops:
                    report(EscapedTensorError(tensor=operand, line=instruction.line))
        if instruction.op in ("loop_begin", "while_begin"):
            inside.append(instruction.index)
