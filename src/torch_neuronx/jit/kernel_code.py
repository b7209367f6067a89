"""Kernels to LLVM IR: loops, and what is done in which of them.

The function does units [begin, end) of the kernel, which may run on several threads at the same time. A unit is

- of a pointwise kernel: an element, or a block of the last dimension where there are more dimensions than one;
- of reductions over the last dimensions: a kept index;
- of columns: a block of the last dimension, whose accumulators stand in an array on the stack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from .kernel import Int, Kernel, Variable
from .kernel_check import ELEMENTWISE, KernelError, check
from .kernel_forms import COLUMN_BLOCK, POINTWISE_BLOCK, SCRATCH_ALIGNMENT, Columns, Pointwise, Rows
from .kernel_loops import FUNCTION
from .kernel_passes import expanded
from .kernel_ranges import INDEX_LIMIT

__all__ = ["ELEMENTWISE", "FUNCTION", "KernelCode", "KernelError", "check", "kernel_code"]


@dataclass(frozen=True)
class KernelCode:
    """What runs a kernel. Numbers depend on the array `ints` of the call."""

    ir: str
    """A module with the function :data:`FUNCTION`. Equal kernels have equal texts."""
    outer: tuple[Int, ...]
    """Sizes whose product is the number of units; times the blocks of `blocked`."""
    inner: tuple[Int, ...]
    """Sizes whose product is that of iterations in a unit; times the elements of a block."""
    blocked: Int
    block: int
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
        blocks = -(-_number(self.blocked, ints) // self.block)
        return blocks * prod(_number(size, ints) for size in self.outer)

    def elements_per_unit(self, ints: Sequence[int]) -> int:
        """How many times the innermost loop runs in a unit, at most."""
        return min(_number(self.blocked, ints), self.block) * prod(_number(size, ints) for size in self.inner)

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
    indexed = tuple(
        size
        for d, size in enumerate(sizes)
        if isinstance(size, Variable) and any(i.op == "index" and i.dim == d for i in kernel.code)
    )
    if not kernel.reduced:
        pointwise = Pointwise(kernel)
        if len(sizes) == 1:
            return KernelCode(pointwise.text(), sizes, (), 1, 1, 0, indexed)
        return KernelCode(pointwise.text(), sizes[:-1], (), sizes[-1], POINTWISE_BLOCK, 0, indexed)
    inner = tuple(sizes[d] for d in kernel.reduced)
    kept = sizes[: kernel.reduced[0]]
    if kernel.columns:
        return KernelCode(Columns(kernel).text(), kept, inner, sizes[-1], COLUMN_BLOCK, 0, indexed)
    rows = Rows(expanded(kernel))
    return KernelCode(rows.text(), kept, inner, 1, 1, rows.scratch, indexed)
