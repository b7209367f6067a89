"""Where in the launch grid a program is."""

from __future__ import annotations

from math import prod
from typing import Any

from ..tensor_errors import LanguageArgumentError
from ..trace import Trace, current, source_line

__all__ = ["num_programs", "program_id", "program_ndim"]


def _check(trace: Trace, function: str, axis: Any) -> None:
    count = max(len(trace.grid), 1)
    if not isinstance(axis, int) or not 0 <= axis < count:
        raise LanguageArgumentError(
            function=function, what=f"the launch grid {trace.grid} has no axis {axis!r}", line=source_line()
        )


def program_id(axis: int = 0) -> int:
    """The place of this program along an axis of the launch grid; 0 without a grid.

    Raises:
        LanguageArgumentError: the grid has no such axis.
    """
    trace = current()
    _check(trace, "program_id", axis)
    return trace.program[axis] if trace.program else 0


def num_programs(axes: Any = 0) -> int:
    """How many programs there are along one or several axes of the launch grid; 1 without a grid.

    Args:
        axes: an axis, a tuple of them, or None for all.

    Raises:
        LanguageArgumentError: the grid has no such axis.
    """
    trace = current()
    wanted = range(len(trace.grid)) if axes is None else axes if isinstance(axes, (tuple, list)) else (axes,)
    for axis in wanted:
        _check(trace, "num_programs", axis)
    return prod(trace.grid[axis] for axis in wanted) if trace.grid else 1


def program_ndim() -> int:
    """The number of axes of the launch grid; 0 without a grid."""
    return len(current().grid)
