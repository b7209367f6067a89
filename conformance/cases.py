"""What is run: a case is one entry of a table, in one variant, with one dtype."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

# Variants that have no dtype of their own (error inputs choose theirs) use this word in its place.
ANY_DTYPE = "any"


@dataclass(frozen=True, order=True)
class Case:
    """One line of the verdict: which table, which entry of it, what is done with it and in which dtype."""

    suite: str
    entry: str
    variant: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.suite}::{self.entry}::{self.variant}::{self.dtype}"

    @property
    def draw(self) -> int:
        """A number that depends on the name alone, so that a slice holds the same cases on every machine."""
        return zlib.crc32(str(self).encode())


@dataclass(frozen=True)
class Selection:
    """Which of all the cases the user asked for. An empty field means no restriction."""

    only: str = ""
    variants: Sequence[str] = ()
    dtypes: Sequence[str] = ()
    slice_index: int = 1
    slice_count: int = 1
    _pattern: re.Pattern[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not 1 <= self.slice_index <= self.slice_count:
            raise ValueError(f"slice {self.slice_index}/{self.slice_count}: N must lie between 1 and M")
        object.__setattr__(self, "_pattern", re.compile(self.only))

    def __call__(self, case: Case) -> bool:
        return (
            (not self.variants or case.variant in self.variants)
            and (not self.dtypes or case.dtype in self.dtypes)
            and case.draw % self.slice_count == self.slice_index - 1
            and self._pattern.search(str(case)) is not None
        )


def chunks(cases: Iterable[Case], size: int) -> list[list[Case]]:
    """Splits cases into runs of about ``size``, never within an entry: its samples are generated once per process."""
    result: list[list[Case]] = []
    for case in cases:
        same_entry = bool(result) and (result[-1][-1].suite, result[-1][-1].entry) == (case.suite, case.entry)
        if same_entry or (result and len(result[-1]) < size):
            result[-1].append(case)
        else:
            result.append([case])
    return result
