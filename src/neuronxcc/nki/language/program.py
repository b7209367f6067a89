"""Where in the launch grid a program is, and how grids are written (Beta 1)."""

from __future__ import annotations

from math import prod
from typing import Any

from nki.trace import current

__all__ = ["Dimension", "nc", "num_programs", "program_id", "program_ndim", "spmd_dim"]


def program_id(axis: int) -> int:
    """The place of this program along an axis of the launch grid; 0 where there is no such axis."""
    program = current().program
    return program[axis] if axis < len(program) else 0


def num_programs(axes: Any = None) -> int:
    """How many programs there are, along one axis, several, or all."""
    grid = current().grid
    wanted = range(len(grid)) if axes is None else axes if isinstance(axes, (tuple, list)) else (axes,)
    return prod(grid[a] if a < len(grid) else 1 for a in wanted)


def program_ndim() -> int:
    """The number of axes of the launch grid; 0 without a grid."""
    return len(current().grid)


class Dimension:
    """A dimension of a launch grid and how it is spread over cores, which changes no result here.

    Attributes:
        size: number of programs along it.
    """

    def __init__(self, size: int) -> None:
        self.size = size

    def __mul__(self, other: Any) -> Dimension:
        return Dimension(self.size * getattr(other, "size", other))

    __rmul__ = __mul__

    def __repr__(self) -> str:
        return f"nl.spmd_dim({self.size})"


def nc(cores: int) -> Dimension:
    """A dimension of a launch grid that goes along physical cores: `kernel[nl.nc(2) * 4]`."""
    return Dimension(cores)


def spmd_dim(*dimensions: Any) -> Dimension:
    """A dimension of a launch grid made of several, outermost first: `kernel[nl.spmd_dim(4, nl.nc(2))]`."""
    return Dimension(prod(getattr(d, "size", d) for d in dimensions))
