"""Kernels of compiled programs: a nest of loops around straight-line code, as data.

A kernel goes over a space of `sizes` (outermost loop first). Each operand is met at `offset + sum(index * stride)`
elements of its first one; code is in SSA form, one value per instruction. There is no order among loop iterations
except that of reductions.

Reduced dimensions stand together: `kept..., reduced...` (each kept index has its own reduction, as softmax over the
last dimension has) or `kept..., reduced..., kept` (columns: the innermost loop goes along memory, as the gradient of a
bias does). What `reduce` gives is one value per kept index; used beside values of the whole space it stands for all of
them, so a softmax is one kernel of three passes. In the second form it can only be used by values per kept index, and
not be reduced again.

A kernel has at least one dimension. Those whose `index` is used are shorter than 2**31.

All numbers that may differ between calls are entries of the array `ints`; the rest is known to the code generator.
Lanes are those of :mod:`.stage`. Arithmetic on floating point is in the lane's precision and is not rounded to narrower
types in between; sums of a reduction are in no given order. Imports nothing of ours but :mod:`.stage`.
"""

from __future__ import annotations

from dataclasses import dataclass

from .stage import Dtype, Lane

__all__ = ["Instruction", "Int", "Kernel", "Operand", "Variable"]


@dataclass(frozen=True)
class Variable:
    """Entry `index` of the array `ints` that the kernel is called with."""

    index: int


Int = int | Variable


@dataclass(frozen=True)
class Operand:
    """Memory of one tensor. A stride is 0 in dimensions along which it repeats.

    Operands of different `alias` share no memory, unless all are only loaded. Those of the same one lie element for
    element at the same places, so that a kernel may store to one what it has loaded from the other: without
    reductions, and with those over the last dimensions too (whose stores come after all loads of the same row).
    """

    dtype: Dtype
    strides: tuple[Int, ...]
    offset: Int = 0
    alias: int = -1  # -1: its own


@dataclass(frozen=True)
class Instruction:
    """One value (or none, for stores). `lane` is that of the result, of the stored value for stores.

    | op | args | meaning |
    |---|---|---|
    | `load` | | element of `operand`, widened to its lane |
    | `gather` | offset (i64) | element at `operand`'s offset plus the value, in elements; its strides are all 0 |
    | `store` | value | narrowed to the type of `operand`: rounded to nearest even, integers wrap |
    | `constant` | | `constant`; of lane i64 it may be a Variable |
    | `index` | | position in dimension `dim`, i64 |
    | `reduce_<r>` | value | over all reduced dimensions; r: sum, prod, max, min (NaN wins), any, all (b8), |
    |   | | argmax, argmin (i64: place in the order of the loops, the first of equals; the first NaN wins) |
    | `cast` | value | from `source` lane to `lane`: towards zero; to b8: is not zero |
    | `round` | value | as if stored to `dtype` and loaded again |
    | `select` | b8, a, b | |
    | anything else | values | element by element, see `ELEMENTWISE` in :mod:`.kernel_code` |
    """

    op: str
    lane: Lane
    args: tuple[int, ...] = ()  # places of the instructions that made the values
    operand: int = -1
    dim: int = -1
    constant: float | int | bool | Variable | None = None
    source: Lane | None = None  # lane of the arguments, where it differs from the result's: casts, comparisons
    dtype: Dtype | None = None


@dataclass(frozen=True)
class Kernel:
    """`reduced` are the dimensions (places in `sizes`) that reductions go over; empty for pointwise kernels."""

    sizes: tuple[Int, ...]
    operands: tuple[Operand, ...]
    code: tuple[Instruction, ...]
    reduced: tuple[int, ...] = ()

    @property
    def columns(self) -> bool:
        """Whether a kept dimension comes after the reduced ones."""
        return bool(self.reduced) and self.reduced[-1] < len(self.sizes) - 1
