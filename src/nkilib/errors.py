"""The catalogue of mistakes in calls of the kernel library: one class per mistake, its text as class attribute.

Imports nothing, so that every part of the package may import it.
"""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = [
    "NkilibError",
    "UnknownRouteError",
    "UnsupportedDtypeError",
    "UnsupportedOptionError",
    "UnsupportedShapeError",
]


class NkilibError(Exception):
    """Base of all errors of nkilib."""

    message: ClassVar[str] = ""

    def __init__(self, **facts: Any) -> None:
        super().__init__(self.message.format(**facts))
        self.facts = facts


class UnsupportedShapeError(NkilibError, ValueError):
    """Sizes that a kernel does not compute with."""

    message = "nkilib.{op}: {operand} has the shape {shape}, but {rule}."


class UnsupportedDtypeError(NkilibError, TypeError):
    """A type that a kernel does not compute with."""

    message = "nkilib.{op}: {operand} is {dtype}, but {rule}."


class UnknownRouteError(NkilibError, ValueError):
    """A name that nkilib.enable does not know."""

    message = "nkilib.enable has no route {name!r}. There are: {known}."


class UnsupportedOptionError(NkilibError, ValueError):
    """A setting that a kernel does not have."""

    message = "nkilib.{op}: {option}={value}, but {rule}."
