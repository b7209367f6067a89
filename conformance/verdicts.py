"""What is known not to work, with the reason: one file per suite in ``verdicts/``.

    [[verdict]]
    entry = "empty"                  # full name in the table
    variant = ["forward", "out"]     # a name or a list; left out: every variant
    dtypes = ["float32"]             # left out: every dtype
    verdict = "undefined-values"
    reason = "returns uninitialised memory; only its metadata can be compared"

``xfail`` runs the case and expects it to fail: a pass is an error, so that a mended operator leaves the file. ``skip``
does not run it, for what would take the machine down. ``undefined-values`` compares everything but the values.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.cases import Case

FOLDER = Path(__file__).with_name("verdicts")
XFAIL, SKIP, UNDEFINED_VALUES = "xfail", "skip", "undefined-values"
KINDS = (XFAIL, SKIP, UNDEFINED_VALUES)
_KEYS = {"entry", "variant", "dtypes", "verdict", "reason"}


class VerdictError(ValueError):
    """A verdict file says something that cannot be meant."""


@dataclass(frozen=True)
class Verdict:
    """One entry of a verdict file. Empty ``variants`` or ``dtypes`` mean all of them."""

    suite: str
    entry: str
    variants: tuple[str, ...]
    dtypes: tuple[str, ...]
    kind: str
    reason: str

    def covers(self, case: Case) -> bool:
        """Whether this verdict is about ``case``."""
        return (
            (self.suite, self.entry) == (case.suite, case.entry)
            and (not self.variants or case.variant in self.variants)
            and (not self.dtypes or case.dtype in self.dtypes)
        )


class Verdicts:
    """All verdicts, looked up by case."""

    def __init__(self, verdicts: Iterable[Verdict] = ()) -> None:
        self.all: list[Verdict] = list(verdicts)
        self._by_entry: dict[tuple[str, str], list[Verdict]] = {}
        for verdict in self.all:
            self._by_entry.setdefault((verdict.suite, verdict.entry), []).append(verdict)

    def of_the_tables(self) -> Verdicts:
        """Only those about the tables themselves, which hold on every device."""
        return Verdicts(each for each in self.all if each.kind == UNDEFINED_VALUES)

    def of(self, case: Case) -> Verdict | None:
        """The verdict about ``case``, if there is one."""
        return next((each for each in self._by_entry.get((case.suite, case.entry), ()) if each.covers(case)), None)

    def check(self, cases: Sequence[Case]) -> None:
        """Raises if a verdict is about nothing that exists, or if two are about the same case."""
        for verdict in self.all:
            if not any(verdict.covers(case) for case in cases):
                raise VerdictError(f"{verdict.suite}.toml: no case matches {verdict}; remove it or mend its names")
        for case in cases:
            found = [each for each in self._by_entry.get((case.suite, case.entry), ()) if each.covers(case)]
            if len(found) > 1:
                raise VerdictError(f"{case.suite}.toml: {len(found)} verdicts cover {case}; keep one")


def load(folder: Path = FOLDER, suites: Sequence[str] = ()) -> Verdicts:
    """Reads the verdict files of ``suites``, by default of all; raises ``VerdictError`` for one without a reason."""
    found: list[Verdict] = []
    for path in sorted(folder.glob("*.toml")):
        if suites and path.stem not in suites:
            continue
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        if set(content) - {"verdict"}:
            raise VerdictError(f"{path.name}: unknown keys {sorted(set(content) - {'verdict'})}, expected [[verdict]]")
        found.extend(_parse(path, item) for item in content.get("verdict", []))
    return Verdicts(found)


def _parse(path: Path, item: dict[str, Any]) -> Verdict:
    where = f"{path.name}: verdict on {item.get('entry', '(no entry)')}"
    if unknown := set(item) - _KEYS:
        raise VerdictError(f"{where}: unknown keys {sorted(unknown)}; known are {sorted(_KEYS)}")
    if not item.get("entry"):
        raise VerdictError(f"{where}: 'entry' is missing")
    if item.get("verdict") not in KINDS:
        raise VerdictError(f"{where}: verdict {item.get('verdict')!r}; expected one of {', '.join(KINDS)}")
    if len(str(item.get("reason", "")).strip()) < 15:
        raise VerdictError(f"{where}: an exclusion needs a reason that tells a reader why")
    return Verdict(
        path.stem,
        item["entry"],
        _names(item.get("variant")),
        _names(item.get("dtypes")),
        item["verdict"],
        item["reason"],
    )


def _names(value: str | list[str] | None) -> tuple[str, ...]:
    return () if value is None else (value,) if isinstance(value, str) else tuple(value)
