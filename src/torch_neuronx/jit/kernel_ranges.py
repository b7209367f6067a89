"""Which integers of a kernel fit 32 bits: vectors of these are twice as long, and convert to floating point fast.

A local analysis: each value gets the range that its own op and the ranges of its arguments allow, or none.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from .kernel import Instruction, Kernel
from .stage import Dtype, Lane

__all__ = ["INDEX_LIMIT", "Range", "fits", "ranges"]

Range = tuple[int, int]

# Dimensions whose index is used are shorter than this; who calls a kernel of variable sizes checks it.
INDEX_LIMIT = 2**31

_NARROW = {
    Dtype.I32: (-(2**31), 2**31 - 1),
    Dtype.I16: (-(2**15), 2**15 - 1),
    Dtype.I8: (-(2**7), 2**7 - 1),
    Dtype.U8: (0, 2**8 - 1),
}


def fits(range_: Range | None) -> bool:
    """Whether all of the range has 32 bits."""
    return range_ is not None and range_[0] >= -(2**31) and range_[1] < 2**31


def ranges(kernel: Kernel) -> list[Range | None]:
    """Of each instruction the range (ends included) of its result; None where it is not known or not i64."""
    result: list[Range | None] = []
    through_i32 = _casts_through_i32(kernel)
    for place, instruction in enumerate(kernel.code):
        if instruction.lane != Lane.I64 or instruction.op == "store":
            result.append(None)
        elif place in through_i32:
            result.append(_NARROW[Dtype.I32])
        else:
            found = _range(kernel, instruction, [result[arg] for arg in instruction.args])
            wide = found is None or found[0] < -(2**63) or found[1] >= 2**63  # it may have wrapped
            result.append(None if wide else found)
    return result


def _casts_through_i32(kernel: Kernel) -> set[int]:
    """Casts from floating point of which only 32 bits or fewer are used. Out of the range of 32 bits they give what
    PyTorch's kernels for such types give."""
    casts = {
        place
        for place, instruction in enumerate(kernel.code)
        if instruction.op == "cast" and instruction.source in (Lane.F32, Lane.F64)
    }
    for instruction in kernel.code:
        dtype = kernel.operands[instruction.operand].dtype if instruction.op == "store" else instruction.dtype
        if instruction.op not in ("store", "round") or dtype not in _NARROW:
            casts -= set(instruction.args)
    return casts


def _corners(op: Callable[[int, int], int]) -> Callable[[Range, Range], Range]:
    """The range of an op whose extremes lie where its arguments have theirs."""

    def range_of(a: Range, b: Range) -> Range:
        values = [op(x, y) for x in a for y in b]
        return min(values), max(values)

    return range_of


_BINARY: dict[str, Callable[[Range, Range], Range]] = {
    "add": _corners(lambda a, b: a + b),
    "sub": _corners(lambda a, b: a - b),
    "mul": _corners(lambda a, b: a * b),
    "min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
}


def _range(kernel: Kernel, instruction: Instruction, args: list[Range | None]) -> Range | None:
    op = instruction.op
    if op in ("load", "gather"):
        return _NARROW.get(kernel.operands[instruction.operand].dtype)
    if op == "index":
        size = kernel.sizes[instruction.dim]
        return (0, max(size - 1, 0)) if isinstance(size, int) else (0, INDEX_LIMIT - 2)
    if op == "constant":
        return (instruction.constant, instruction.constant) if isinstance(instruction.constant, int) else None
    if op == "cast":
        return (0, 1) if instruction.source == Lane.B8 else None
    if op == "round" and instruction.dtype in _NARROW:
        return _NARROW[instruction.dtype]
    if op == "and":  # no more than the lesser of what is not negative, whatever the other is
        bounds = [arg[1] for arg in args if arg is not None and arg[0] >= 0]
        return (0, min(bounds)) if bounds else None
    if op in ("reduce_argmax", "reduce_argmin"):
        sizes = [kernel.sizes[d] for d in kernel.reduced]
        known_sizes = [size for size in sizes if isinstance(size, int)]
        return (0, max(prod(known_sizes) - 1, 0)) if len(known_sizes) == len(sizes) else None
    if op == "select":
        args = args[1:]
    known = [arg for arg in args if arg is not None]
    if len(known) < len(args) or not known:
        return None
    first, last = known[0], known[-1]
    if op == "select":
        return min(first[0], last[0]), max(first[1], last[1])
    if op in ("round", "reduce_max", "reduce_min"):
        return first
    if op == "neg":
        return -first[1], -first[0]
    if op == "abs":
        return 0, max(abs(first[0]), abs(first[1]))
    if op in _BINARY:
        return _BINARY[op](first, last)
    if op in ("floordiv", "truncdiv") and last[0] > 0:
        return min(first[0], 0), max(first[1], 0)
    if op == "mod" and last[0] > 0:
        return 0, last[1] - 1
    return None
