"""Kernels to LLVM IR: loops, and what is done in which of them.

The function does units [begin, end) of the kernel, which may run on several threads at the same time. A unit is

- of a pointwise kernel: an element, or a block of the last dimension where there are more dimensions than one (and of
  a second dimension, where operands lie along that);
- of reductions over the last dimensions: a kept index;
- of columns: a block of the last dimension, whose accumulators stand in an array on the stack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from .kernel import Int, Kernel, Variable
from .kernel_check import ELEMENTWISE, KernelError, check
from .kernel_loops import FUNCTION
from .kernel_passes import expanded
from .kernel_pointwise import Pointwise
from .kernel_ranges import INDEX_LIMIT
from .kernel_reductions import COLUMN_BLOCK, SCRATCH_ALIGNMENT, Columns, Rows

__all__ = ["ELEMENTWISE", "FUNCTION", "KernelCode", "KernelError", "check", "kernel_code"]


@dataclass(frozen=True)
class KernelCode:
    """What runs a kernel. Numbers depend on the array `ints` of the call."""

    ir: str
    """A module with the function :data:`FUNCTION`. Equal kernels have equal texts."""
    outer: tuple[Int, ...]
    """Sizes whose product is the number of units, times the numbers of blocks."""
    inner: tuple[Int, ...]
    """Sizes whose product is that of iterations in a unit, times the elements of the blocks."""
    blocked: tuple[tuple[Int, int], ...]
    """Sizes of which a unit has only a block, and of how many."""
    scratch: int
    """Bytes of scratch memory per iteration."""
    indexed: tuple[Int, ...]
    """Sizes that must be below 2**31."""

    def units(self, ints: Sequence[int]) -> int:
        """How many units there are.

        Raises:
            KernelError: a dimension whose index the kernel uses is too long.
        """
        if any(_number(size, ints) >= INDEX_LIMIT for size in self.indexed):
            raise KernelError("a dimension whose index is used has 2**31 elements or more")
        blocks = prod(-(-_number(size, ints) // block) for size, block in self.blocked)
        return blocks * prod(_number(size, ints) for size in self.outer)

    def elements_per_unit(self, ints: Sequence[int]) -> int:
        """How many times the innermost loop runs in a unit, at most."""
        elements = prod(min(_number(size, ints), block) for size, block in self.blocked)
        return elements * prod(_number(size, ints) for size in self.inner)

    def scratch_bytes(self, ints: Sequence[int]) -> int:
        """How much scratch memory a call needs for itself, aligned as for vectors (64 bytes)."""
        if not self.scratch:
            return 0
        return self.scratch * _aligned(prod(_number(size, ints) for size in self.inner))


def _number(value: Int, ints: Sequence[int]) -> int:
    return ints[value.index] if isinstance(value, Variable) else value


def _aligned(count: int) -> int:
    return -(-count // SCRATCH_ALIGNMENT) * SCRATCH_ALIGNMENT


def kernel_code(kernel: Kernel) -> KernelCode:
    """The code of `kernel`.

    Raises:
        KernelError: it is ill-formed.
    """
    check(kernel)
    sizes = kernel.sizes
    if not kernel.reduced:
        pointwise = Pointwise(kernel)
        outer = sizes if len(sizes) == 1 else tuple(sizes[dim] for dim in pointwise.outer)
        return KernelCode(pointwise.text(), outer, (), tuple(pointwise.blocked), 0, _indexed(kernel))
    inner = tuple(sizes[d] for d in kernel.reduced)
    kept = sizes[: kernel.reduced[0]]
    if kernel.columns:
        blocked = ((sizes[-1], COLUMN_BLOCK),)
        return KernelCode(Columns(kernel).text(), kept, inner, blocked, 0, _indexed(kernel))
    kernel = expanded(kernel)
    rows = Rows(kernel)
    return KernelCode(rows.text(), kept, inner, (), rows.scratch, _indexed(kernel))


def _indexed(kernel: Kernel) -> tuple[Int, ...]:
    """Sizes, not known yet, of dimensions whose index is used."""
    used = sorted({instruction.dim for instruction in kernel.code if instruction.op == "index"})
    return tuple(kernel.sizes[dim] for dim in used if isinstance(kernel.sizes[dim], Variable))
