"""Iteration spaces: which dimensions of different tensors are the same loop.

An :class:`Axis` is one loop. A dimension of a tensor goes along a tuple of axes, outermost first; one of size 1 along
none. Axes are found to be the same (`unify`) or to consist of two (a view that splits a dimension) as more ops are
looked at; both can be undone, for what does not fit is tried and given up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import sympy

from torch_neuronx.targets.graph import Size

__all__ = ["Axis", "Layout", "MismatchError", "Spaces", "equal", "is_one", "product"]


class MismatchError(Exception):
    """Two dimensions are not the same loops."""


class Axis:
    """One loop, or what became of it: another axis, or an outer and an inner one."""

    __slots__ = ("into", "size")

    def __init__(self, size: Size) -> None:
        self.size = size
        self.into: tuple[Axis, ...] | None = None

    def __repr__(self) -> str:
        return f"<{self.size}>" if self.into is None else repr(self.into)


# Axes of each dimension of a tensor.
Layout = tuple[tuple[Axis, ...], ...]


def equal(a: Size, b: Size) -> bool:
    """Whether two sizes are the same for all values of their symbols, as far as can be seen."""
    return bool(a == b)


def is_one(size: Size) -> bool:
    """Whether a size is always 1."""
    return bool(size == 1)


def product(sizes: Iterable[Size]) -> Size:
    """Of all sizes; 1 for none."""
    result: Size = 1
    for size in sizes:
        result = size if is_one(result) else result * size
    return result


def _quotient(a: Size, b: Size) -> Size | None:
    """a / b where it is a whole number above 1 for all values of the symbols."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if a > b and a % b == 0 else None
    ratio = sympy.sympify(a) / b
    if ratio.as_numer_denom()[1] != 1 or ratio == 1:
        return None
    return int(ratio) if ratio.is_Integer else ratio


class Spaces:
    """Makes axes and keeps a log of what was decided about them."""

    def __init__(self) -> None:
        self._log: list[Axis] = []

    # -- Trying --
    def mark(self) -> int:
        """A point to :meth:`undo` to."""
        return len(self._log)

    def undo(self, mark: int) -> None:
        """Forgets all decisions since `mark`."""
        while len(self._log) > mark:
            self._log.pop().into = None

    # -- Layouts --
    @staticmethod
    def fresh(sizes: Sequence[Size]) -> Layout:
        """A layout of new axes for a tensor of these sizes."""
        return tuple(() if is_one(size) else (Axis(size),) for size in sizes)

    def resolve(self, axes: Iterable[Axis]) -> tuple[Axis, ...]:
        """The axes that these have become."""
        result: list[Axis] = []
        for axis in axes:
            if axis.into is None:
                result.append(axis)
            else:
                result.extend(self.resolve(axis.into))
        return tuple(result)

    def layout(self, layout: Layout) -> Layout:
        """The same layout in axes as they are now."""
        return tuple(self.resolve(axes) for axes in layout)

    def _become(self, axis: Axis, into: tuple[Axis, ...]) -> None:
        axis.into = into
        self._log.append(axis)

    def unify(self, a: Iterable[Axis], b: Iterable[Axis]) -> None:
        """Makes two sequences of axes the same, splitting where one of them is finer.

        Raises:
            MismatchError: they cannot be; some axes may have been changed.
        """
        left, right = list(self.resolve(a)), list(self.resolve(b))
        while left and right:
            x, y = left.pop(), right.pop()
            if x is y:
                continue
            if equal(x.size, y.size):
                self._become(y, (x,))
            elif (outer := _quotient(x.size, y.size)) is not None:
                rest = Axis(outer)
                self._become(x, (rest, y))
                left.append(rest)
            elif (outer := _quotient(y.size, x.size)) is not None:
                rest = Axis(outer)
                self._become(y, (rest, x))
                right.append(rest)
            else:
                raise MismatchError(f"{x} and {y}")
        if left or right:
            raise MismatchError("different numbers of elements")

    def reshape(self, layout: Layout, sizes: Sequence[Size]) -> Layout:
        """The layout of the same elements, in the same order, seen with other sizes.

        Raises:
            MismatchError: a new dimension would need a part of a loop.
        """
        left = [axis for axes in self.layout(layout) for axis in axes]
        result: list[tuple[Axis, ...]] = []
        for size in reversed(sizes):
            taken: list[Axis] = []
            wanted = size
            while not is_one(wanted):
                if not left:
                    raise MismatchError("different numbers of elements")
                axis = left.pop()
                if equal(axis.size, wanted):
                    taken.append(axis)
                    wanted = 1
                elif (rest := _quotient(wanted, axis.size)) is not None:
                    taken.append(axis)
                    wanted = rest
                elif (outer := _quotient(axis.size, wanted)) is not None:
                    parts = (Axis(outer), Axis(wanted))
                    self._become(axis, parts)
                    left.append(parts[0])
                    taken.append(parts[1])
                    wanted = 1
                else:
                    raise MismatchError(f"{axis} in {sizes}")
            result.append(tuple(reversed(taken)))
        if left:
            raise MismatchError("different numbers of elements")
        return tuple(reversed(result))
