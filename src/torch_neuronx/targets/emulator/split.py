"""Long reductions to few results, in two kernels: parts of them in parallel, then the rest.

A kernel's parallel units are its kept indices, so a sum over a whole tensor would run on one thread.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from torch_neuronx.jit.kernel import Instruction, Kernel, Operand
from torch_neuronx.jit.stage import Dtype, Lane

__all__ = ["LEAST_ELEMENTS", "MOST_UNITS", "Split", "split"]

# Fewer elements are not worth a second kernel; more units than this keep all threads busy as it is.
LEAST_ELEMENTS, MOST_UNITS = 1 << 16, 8
_PARTS = 32
_SPLITTABLE = {f"reduce_{name}" for name in ("sum", "prod", "max", "min", "any", "all")}
_MEMORY = {Lane.F32: Dtype.F32, Lane.F64: Dtype.F64, Lane.I64: Dtype.I64, Lane.B8: Dtype.BOOL}


@dataclass(frozen=True)
class Split:
    """Partial results are tensors of `parts` times `kept` elements: the last operands of `first`, the first ones of
    `second`. `first_operands` and `second_operands` are the places of their other operands in the original."""

    first: Kernel
    second: Kernel
    first_operands: tuple[int, ...]
    second_operands: tuple[int, ...]
    partials: tuple[Dtype, ...]
    parts: int
    kept: int


def split(kernel: Kernel) -> Split | None:
    """The kernel in two, where that pays and gives the same."""
    sizes = [size for size in kernel.sizes if isinstance(size, int)]
    if not kernel.reduced or len(sizes) != len(kernel.sizes):
        return None
    kept = total = 1
    for dim, size in enumerate(sizes):
        total *= size
        kept *= 1 if dim in kernel.reduced else size
    units = -(-kept // 64) if kernel.columns else kept
    outer = kernel.reduced[0]
    parts = _divisor(sizes[outer])
    if total < LEAST_ELEMENTS or units > MOST_UNITS or parts is None:
        return None
    if any(operand.alias != -1 for operand in kernel.operands):
        return None
    late = _late(kernel)
    if late is None or any(i.op == "index" and i.dim == outer for i in kernel.code):
        return None
    return _Splitter(kernel, late, outer, parts, kept).split()


def _divisor(size: int) -> int | None:
    """A number of parts of equal length, near to the one that is wanted."""
    fitting = [parts for parts in range(4, 257) if size % parts == 0]
    return min(fitting, key=lambda parts: abs(parts - _PARTS)) if fitting else None


def _late(kernel: Kernel) -> set[int] | None:
    """Instructions that need the results of reductions, and stores per kept index; None when one of them goes over the
    whole space again."""
    late: set[int] = set()
    whole = _whole(kernel)
    for place, instruction in enumerate(kernel.code):
        if instruction.op.startswith("reduce_") and instruction.op not in _SPLITTABLE:
            return None
        uses = any(kernel.code[a].op in _SPLITTABLE or a in late for a in instruction.args)
        if uses and (place in whole or instruction.op.startswith("reduce_")):
            return None
        if uses or (instruction.op == "store" and place not in whole):  # in parts, each would store it
            late.add(place)
    return late


def _whole(kernel: Kernel) -> set[int]:
    """Instructions with a value for each element of the whole space."""
    whole: set[int] = set()
    for place, i in enumerate(kernel.code):
        strides = kernel.operands[i.operand].strides if i.operand >= 0 else ()
        varies = any(strides[dim] != 0 for dim in kernel.reduced) if strides else False
        varies |= i.op == "index" and i.dim in kernel.reduced
        varies |= not i.op.startswith("reduce_") and any(a in whole for a in i.args)
        if varies:
            whole.add(place)
    return whole


class _Splitter:
    def __init__(self, kernel: Kernel, late: set[int], outer: int, parts: int, kept: int) -> None:
        self._kernel, self._late, self._outer, self._parts, self._kept = kernel, late, outer, parts, kept
        self._reductions = [k for k, i in enumerate(kernel.code) if i.op in _SPLITTABLE]
        self._partials = tuple(_MEMORY[kernel.code[k].lane] for k in self._reductions)
        size = kernel.sizes[outer]
        assert isinstance(size, int)
        self._length = size // parts

    def split(self) -> Split:
        first, first_operands = self._first()
        second, second_operands = self._second()
        return Split(first, second, first_operands, second_operands, self._partials, self._parts, self._kept)

    def _first(self) -> tuple[Kernel, tuple[int, ...]]:
        kernel, outer = self._kernel, self._outer
        sizes = (*kernel.sizes[:outer], self._parts, self._length, *kernel.sizes[outer + 1 :])
        reduced = (outer + 1, *(dim + 1 for dim in kernel.reduced[1:]))
        early = [k for k in range(len(kernel.code)) if k not in self._late]
        used = sorted({kernel.code[k].operand for k in early if kernel.code[k].operand >= 0})
        operands = []
        for place in used:
            operand = kernel.operands[place]
            stride = operand.strides[outer]
            assert isinstance(stride, int)
            own = (*operand.strides[:outer], stride * self._length, stride, *operand.strides[outer + 1 :])
            operands.append(dataclasses.replace(operand, strides=own))
        strides = self._partial_strides()
        code, places = _renumbered(kernel, early, used, lambda dim: dim + 1 if dim > outer else dim)
        for dtype, k in zip(self._partials, self._reductions, strict=True):
            whole = [0] * len(sizes)
            for dim, step in enumerate(strides):  # kept dimensions, then the parts
                whole[dim if dim <= outer else dim + len(kernel.reduced)] = step
            operands.append(Operand(dtype, tuple(whole)))
            code.append(Instruction("store", kernel.code[k].lane, (places[k],), operand=len(operands) - 1))
        return Kernel(sizes, tuple(operands), tuple(code), reduced), tuple(used)

    def _partial_strides(self) -> list[int]:
        """By the dimensions of the second kernel: kept ones contiguous, the parts outside of them."""
        kernel = self._kernel
        dims = [dim for dim in range(len(kernel.sizes)) if dim not in kernel.reduced]
        strides: dict[int, int] = {}
        step = 1
        for dim in reversed(dims):
            strides[dim] = step
            size = kernel.sizes[dim]
            assert isinstance(size, int)
            step *= size
        before = [strides[dim] for dim in dims if dim < self._outer]
        return [*before, self._kept, *(strides[dim] for dim in dims if dim > self._outer)]

    def _second(self) -> tuple[Kernel, tuple[int, ...]]:
        kernel, outer = self._kernel, self._outer
        count = len(kernel.reduced)
        sizes = (*kernel.sizes[:outer], self._parts, *kernel.sizes[outer + count :])
        needed = set(self._late) | {k for k in self._reductions if self._is_stored(k)}
        stack = list(self._late)
        while stack:
            for a in kernel.code[stack.pop()].args:
                if a not in needed:
                    needed.add(a)
                    if kernel.code[a].op not in _SPLITTABLE:
                        stack.append(a)
        used = sorted({kernel.code[k].operand for k in needed if kernel.code[k].operand >= 0})
        partial = tuple(self._partial_strides())
        operands = [Operand(dtype, partial) for dtype in self._partials]
        for place in used:
            operand = kernel.operands[place]
            strides = (*operand.strides[:outer], 0, *operand.strides[outer + count :])
            operands.append(dataclasses.replace(operand, strides=strides))
        code: list[Instruction] = []
        places: dict[int, int] = {}
        for k in sorted(needed):
            i = kernel.code[k]
            if i.op in _SPLITTABLE:
                code.append(Instruction("load", i.lane, operand=self._reductions.index(k)))
                code.append(dataclasses.replace(i, args=(len(code) - 1,), source=None))
            else:
                dim = i.dim - count + 1 if i.dim > outer else i.dim
                place = len(self._partials) + used.index(i.operand) if i.operand >= 0 else -1
                args = tuple(places[a] for a in i.args)
                code.append(dataclasses.replace(i, args=args, operand=place, dim=dim))
            places[k] = len(code) - 1
        return Kernel(sizes, tuple(operands), tuple(code), (outer,)), tuple(used)

    def _is_stored(self, place: int) -> bool:
        return any(i.op == "store" and i.args == (place,) for i in self._kernel.code)


def _renumbered(
    kernel: Kernel, chosen: list[int], operands: list[int], dim: Callable[[int], int]
) -> tuple[list[Instruction], dict[int, int]]:
    code: list[Instruction] = []
    places: dict[int, int] = {}
    for k in chosen:
        i = kernel.code[k]
        places[k] = len(code)
        code.append(
            dataclasses.replace(
                i,
                args=tuple(places[a] for a in i.args),
                operand=operands.index(i.operand) if i.operand >= 0 else -1,
                dim=dim(i.dim) if i.dim >= 0 else -1,
            )
        )
    return code, places
