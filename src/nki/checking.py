"""`nki.check`: all problems of a kernel at once, without running it."""

from __future__ import annotations

from typing import Any

from .errors import NkiError, NotAKernelError
from .kernel import BoundKernel, Kernel, described_by
from .specialization import specialize

__all__ = ["Report", "check"]


class Report(list[Exception]):
    """The problems that were found, in the order of the kernel's lines. Empty, and false, when there are none."""

    def __str__(self) -> str:
        if not self:
            return "no problems"
        return "\n".join(f"{i}. {type(problem).__name__}: {problem}" for i, problem in enumerate(self, 1))


class Checker:
    """Takes the kernel's arguments; see :func:`check`."""

    def __init__(self, bound: BoundKernel) -> None:
        self._bound = bound

    def __getitem__(self, grid: Any) -> Checker:
        return Checker(self._bound[grid])

    def __call__(self, *args: Any, **kwargs: Any) -> Report:
        bound = self._bound
        structure = bound.structure(args, kwargs)
        try:
            found = specialize(
                bound.kernel.function,
                structure,
                described_by(structure),
                bound.request(),
                bound.kernel._schedule,
                gather=True,
            )
        except NkiError as problem:  # what nothing can go on after
            return Report([problem])
        return Report(found.problems)


def check(kernel: Kernel | BoundKernel, *, target: str | None = None) -> Checker:
    """Looks for everything that the chip would fail on or quietly get wrong.

    `nki.check(kernel)(*args)` traces the kernel for these arguments and returns all problems as a :class:`Report`,
    instead of raising the first. Nothing is run and no argument is changed, so indices that are known only at run time
    are not checked.

    Args:
        kernel: made by `nki.jit`, with or without a grid.
        target: "trn1", "trn2" or "trn3".

    Raises:
        NotAKernelError: `kernel` was not made by `nki.jit`.
    """
    if isinstance(kernel, BoundKernel):
        return Checker(BoundKernel(kernel.kernel, kernel.grid, target or kernel.target))
    if not isinstance(kernel, Kernel):
        raise NotAKernelError(function="nki.check", kernel=kernel)
    return Checker(BoundKernel(kernel, (), target))
