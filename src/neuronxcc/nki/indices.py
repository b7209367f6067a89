"""Index expressions and masks of the Beta 1 dialect: `nl.arange(128)[:, None] * 4 + 1`, `(i_p < 64) & (i_f < 256)`.

Loops are unrolled while a kernel is traced, so every index is known. Almost all are affine in the positions of a tile,
`const + sum(steps[d] * position[d])`, and are kept in that form: a tile that they choose is a strided view, and a mask
of them is a smaller tile. Whatever else arises from them (`//`, `%`, products) is kept element by element.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nki.errors import IndexExpressionError, MaskTruthWarning
from nki.trace import source_line

__all__ = ["Grid", "Index", "Mask", "arange", "mgrid"]

Numbers = np.ndarray[Any, Any]
Shape = tuple[int, ...]


def _common(a: Shape, b: Shape) -> Shape:
    """The shape that two shapes are broadcast to."""
    if a == b:
        return a
    try:
        return np.broadcast_shapes(a, b)
    except ValueError:
        raise IndexExpressionError(
            reason=f"shapes {a} and {b} cannot be broadcast to each other", line=source_line()
        ) from None


def _aligned(steps: Shape, rank: int) -> Shape:
    return (0,) * (rank - len(steps)) + steps


class Index:
    """Integers, one for each position of `shape`.

    Attributes:
        shape: positions along each dimension.
        const, steps: of the affine form, one step per dimension.
        values: the integers themselves where there is no such form, else None.
    """

    __slots__ = ("const", "shape", "steps", "values")
    __array_ufunc__ = None  # NumPy's numbers leave operators to this class

    def __init__(self, shape: Shape, const: int, steps: Shape, values: Numbers | None = None) -> None:
        self.shape = shape
        self.const = const
        self.steps = steps
        self.values = values

    @classmethod
    def of(cls, value: Any) -> Index | None:
        """`value` as an index expression; None when it is none."""
        if isinstance(value, cls):
            return value
        if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.ndim:
            return cls(value.shape, 0, (0,) * value.ndim, value.astype(np.int64))
        if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
            return cls((), operator.index(value), ())
        return None

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    def dense(self) -> Numbers:
        """All integers, in an array of `shape`."""
        if self.values is not None:
            return np.broadcast_to(self.values, self.shape)
        total = np.full((1,) * len(self.shape), self.const, np.int64)
        for d, (n, step) in enumerate(zip(self.shape, self.steps, strict=True)):
            if step:
                total = total + (np.arange(n) * step).reshape((1,) * d + (n,) + (1,) * (len(self.shape) - d - 1))
        return np.broadcast_to(total, self.shape)

    def range(self) -> tuple[int, int]:
        """The smallest and the largest of the integers."""
        if self.values is not None:
            return int(self.values.min()), int(self.values.max())
        reach = [step * (n - 1) for n, step in zip(self.shape, self.steps, strict=True)]
        return self.const + sum(r for r in reach if r < 0), self.const + sum(r for r in reach if r > 0)

    def broadcast(self, shape: Shape) -> Index:
        """The same integers for the positions of a larger shape."""
        if shape == self.shape:
            return self
        before = (1,) * (len(shape) - len(self.shape)) + self.shape
        steps = tuple(
            0 if old != n else s for old, n, s in zip(before, shape, _aligned(self.steps, len(shape)), strict=True)
        )
        return Index(shape, self.const, steps, self.values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Numbers:
        return np.array(self.dense(), dtype)

    def __index__(self) -> int:
        if self.size != 1:
            raise IndexExpressionError(reason=f"an index of shape {self.shape} is no single number", line=source_line())
        return int(self.dense().reshape(()))

    __int__ = __index__

    def __getitem__(self, key: Any) -> Index:
        keys = key if isinstance(key, tuple) else (key,)
        if self.values is not None:
            chosen = np.asarray(self.dense()[keys])
            return Index(chosen.shape, 0, (0,) * chosen.ndim, chosen)
        shape: list[int] = []
        steps: list[int] = []
        const, dim = self.const, 0
        for k in keys:
            if k is None:
                shape.append(1)
                steps.append(0)
                continue
            if k is Ellipsis:
                rest = len(self.shape) - sum(1 for other in keys if other is not None and other is not Ellipsis)
                shape += self.shape[dim : dim + rest]
                steps += self.steps[dim : dim + rest]
                dim += rest
                continue
            n, step = self.shape[dim], self.steps[dim]
            dim += 1
            if isinstance(k, slice):
                start, stop, stride = k.indices(n)
                shape.append(len(range(start, stop, stride)))
                steps.append(step * stride)
                const += start * step
            else:
                const += range(n)[operator.index(k)] * step
        return Index((*shape, *self.shape[dim:]), const, (*steps, *self.steps[dim:]))

    def _binary(self, other: Any, function: Callable[[Any, Any], Any], sign: int, swapped: bool = False) -> Any:
        """`sign` is that of `other` in an affine sum, or 0 where the result has no affine form."""
        right = Index.of(other)
        if right is None:
            return NotImplemented
        shape = _common(self.shape, right.shape)
        if sign and self.values is None and right.values is None:
            mine, its = _aligned(self.steps, len(shape)), _aligned(right.steps, len(shape))
            steps = tuple(a + sign * b for a, b in zip(mine, its, strict=True))
            return Index(shape, self.const + sign * right.const, steps)
        a, b = self.dense(), right.dense()
        values = function(b, a) if swapped else function(a, b)
        return Index(shape, 0, (0,) * len(shape), np.asarray(values, np.int64))

    def __add__(self, other: Any) -> Any:
        return self._binary(other, np.add, 1)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._binary(other, np.subtract, -1)

    def __neg__(self) -> Any:
        return self * -1

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __mul__(self, other: Any) -> Any:
        right = Index.of(other)
        if right is not None and self.values is None and right.values is None:
            for factor, affine in ((self, right), (right, self)):
                if not any(factor.steps):
                    shape = _common(self.shape, right.shape)
                    steps = tuple(s * factor.const for s in _aligned(affine.steps, len(shape)))
                    return Index(shape, affine.const * factor.const, steps)
        return self._binary(other, np.multiply, 0)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        return self._binary(other, np.floor_divide, 0)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._binary(other, np.floor_divide, 0, swapped=True)

    def __mod__(self, other: Any) -> Any:
        return self._binary(other, np.mod, 0)

    def __rmod__(self, other: Any) -> Any:
        return self._binary(other, np.mod, 0, swapped=True)

    def __lt__(self, other: Any) -> Any:
        return Mask.not_negative(other - self - 1)

    def __le__(self, other: Any) -> Any:
        return Mask.not_negative(other - self)

    def __gt__(self, other: Any) -> Any:
        return Mask.not_negative(self - other - 1)

    def __ge__(self, other: Any) -> Any:
        return Mask.not_negative(self - other)

    def __eq__(self, other: Any) -> Any:
        return (self <= other) & (self >= other)

    def __ne__(self, other: Any) -> Any:
        return ~(self == other)

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        if self.values is not None:
            return f"<index {self.shape}, element by element>"
        terms = "".join(f" + {s}*i{d}" for d, s in enumerate(self.steps) if s)
        return f"<index {self.shape}: {self.const}{terms}>"


class Mask:
    """Which positions of a tile an instruction works on.

    Attributes:
        shape: positions along each dimension.
        terms: affine expressions that are all at least 0 where the mask is true; not used where `values` is not None.
        values: booleans, where the mask is no conjunction of affine comparisons.
    """

    __slots__ = ("shape", "terms", "values")
    __array_ufunc__ = None

    def __init__(self, shape: Shape, terms: tuple[Index, ...], values: Numbers | None = None) -> None:
        self.shape = shape
        self.terms = terms
        self.values = values

    @classmethod
    def not_negative(cls, expression: Any) -> Mask:
        if expression is NotImplemented or not isinstance(expression, Index):
            raise IndexExpressionError(reason="an index is compared with something else", line=source_line())
        if expression.values is not None:
            return cls(expression.shape, (), expression.dense() >= 0)
        return cls(expression.shape, (expression,))

    @classmethod
    def of(cls, value: Any) -> Mask | None:
        """`value` as a mask: one, an array of booleans, a boolean, or None for "everywhere"."""
        if value is None or isinstance(value, Mask):
            return value
        if isinstance(value, (bool, np.bool_)):
            return None if value else cls((), (), np.zeros((), bool))
        if isinstance(value, np.ndarray) and value.dtype == bool:
            return cls(value.shape, (), value)
        raise IndexExpressionError(
            reason=f"mask={value!r} is no mask; compare indices, as in mask=(i_p < 64)", line=source_line()
        )

    def dense(self, shape: Shape | None = None) -> Numbers:
        """Booleans for all positions of `shape`, by default the mask's own."""
        values: Numbers = np.ones((), bool) if self.values is None else self.values
        for term in self.terms if self.values is None else ():
            values = values & (term.dense() >= 0)
        return np.broadcast_to(values, self.shape if shape is None else shape)

    def box(self, shape: Shape) -> list[tuple[int, int]] | None:
        """First and one past the last position along each dimension of `shape`, if the mask is such a box."""
        if self.values is not None or len(self.shape) > len(shape):
            return None
        ranges = [(0, n) for n in shape]
        for term in self.terms:
            steps = _aligned(term.steps, len(shape))
            varying = [d for d, s in enumerate(steps) if s and shape[d] > 1]
            if not varying:
                if term.const < 0:
                    ranges = [(0, 0) for _ in shape]
                continue
            if len(varying) > 1:
                return None
            d, step = varying[0], steps[varying[0]]
            low, high = ranges[d]
            # const + step * i >= 0
            if step > 0:
                low = max(low, -(term.const // step))
            else:
                high = min(high, term.const // -step + 1)
            ranges[d] = (low, max(low, high))
        return ranges

    def __and__(self, other: Any) -> Any:
        right = Mask.of(other)
        if right is None:
            return self
        shape = _common(self.shape, right.shape)
        if self.values is None and right.values is None:
            return Mask(shape, self.terms + right.terms)
        return Mask(shape, (), self.dense() & right.dense())

    __rand__ = __and__

    def __or__(self, other: Any) -> Any:
        right = Mask.of(other)
        return True if right is None else Mask(_common(self.shape, right.shape), (), self.dense() | right.dense())

    __ror__ = __or__

    def __xor__(self, other: Any) -> Any:
        right = Mask.of(other)
        return ~self if right is None else Mask(_common(self.shape, right.shape), (), self.dense() ^ right.dense())

    __rxor__ = __xor__

    def __invert__(self) -> Mask:
        if self.values is None and len(self.terms) == 1:
            return Mask(self.shape, (self.terms[0] * -1 - 1,))
        return Mask(self.shape, (), ~self.dense())

    def __bool__(self) -> bool:
        if int(np.prod(self.shape)) == 1:
            return bool(self.dense().reshape(()))
        # `a and b` is `b` then, and `a or b` is `a`: kernels of the older dialect were accepted with it.
        warnings.warn(MaskTruthWarning(self.shape), stacklevel=2)
        return True

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Numbers:
        return np.array(self.dense(), dtype)

    def __repr__(self) -> str:
        return f"<mask {self.shape}>"


def arange(*args: int) -> Index:
    """Integers from `start` (0 by default) to below `stop`: `arange(stop)` or `arange(start, stop)`.

    Returns:
        An index of one dimension; `[:, None]` or `[None, :]` gives it its place among those of a tile.
    """
    numbers = range(*(operator.index(a) for a in args))
    return Index((len(numbers),), numbers.start, (numbers.step,))


class Grid(tuple[Index, ...]):
    """The indices of a grid, one per dimension, by place or as `.p`, `.x`, `.y`, `.z`, `.w`."""

    _NAMES = "pxyzwuv"

    def __getattr__(self, name: str) -> Index:
        place = self._NAMES.find(name) if len(name) == 1 else -1
        if not 0 <= place < len(self):
            raise AttributeError(f"a grid of {len(self)} dimensions has no {name!r}")
        return self[place]


class _Mgrid:
    """`mgrid[0:128, 0:512]`: one index per slice, each of the shape of the whole grid, as numpy.mgrid makes them."""

    def __getitem__(self, key: Any) -> Grid:
        slices: Sequence[slice] = key if isinstance(key, tuple) else (key,)
        ranges = [range(*(operator.index(n) for n in (s.start or 0, s.stop, s.step or 1))) for s in slices]
        shape = tuple(len(r) for r in ranges)
        return Grid(
            Index(shape, r.start, tuple(r.step if d == place else 0 for d in range(len(ranges))))
            for place, r in enumerate(ranges)
        )


mgrid = _Mgrid()
