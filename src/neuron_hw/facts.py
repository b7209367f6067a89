"""Numbers with their sources.

A `Fact` is a float that knows its unit, the public page that states it, and what other pages say instead.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Conflict", "Fact", "UnknownMachineError"]


class Conflict(NamedTuple):
    """Another value that a public page gives for the same thing.

    Attributes:
        value: in the unit of the fact.
        source: the page.
        reason: why the fact's own value is used.
    """

    value: float
    source: str
    reason: str


class Fact(float):
    """One number of the hardware.

    Attributes:
        unit: of the value.
        source: the public document that states it, or "inference: ..." with what it was concluded from.
        conflicts: other published values.
    """

    unit: str
    source: str
    conflicts: tuple[Conflict, ...]

    def __new__(cls, value: float, unit: str, source: str, *conflicts: Conflict) -> Fact:
        self = super().__new__(cls, value)
        self.unit = unit
        self.source = source
        self.conflicts = conflicts
        return self

    @property
    def inferred(self) -> bool:
        """Whether no page states the value itself."""
        return self.source.startswith("inference")

    def __reduce__(self) -> tuple[object, ...]:
        return Fact, (float(self), self.unit, self.source, *self.conflicts)

    def __repr__(self) -> str:
        return f"{float(self):g} {self.unit} [{self.source}]"


class UnknownMachineError(ValueError):
    """A chip or instance type that is not in the tables."""

    def __init__(self, kind: str, name: object, known: tuple[str, ...]) -> None:
        self.name = name
        super().__init__(f"there is no {kind} {name!r}; there are: {', '.join(known)}.")
