"""Results as a table, as a list of failures, as JSON, and as they come in."""

from __future__ import annotations

import dataclasses
import enum
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from conformance.cases import Case


class Status(enum.StrEnum):
    """What became of a case."""

    PASSED = "passed"
    FAILED = "failed"
    CRASHED = "crashed"
    HUNG = "hung"
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    XPASSED = "xpassed"
    NOT_APPLICABLE = "not on cpu"


# A run with any of these is not in order; an unexpected pass means that a verdict file is out of date.
BAD = frozenset({Status.FAILED, Status.CRASHED, Status.HUNG, Status.XPASSED})


@dataclass(frozen=True)
class Result:
    """One judged case. ``samples`` counts exact, close, failed and those that the CPU refuses."""

    case: Case
    status: Status
    message: str = ""
    seconds: float = 0.0
    samples: dict[str, int] = field(default_factory=dict)


class Live:
    """Shows what is running. On a terminal a bar with one line per process, elsewhere a line now and then."""

    LINE_SECONDS = 20.0

    def __init__(self, console: Console, total: int, jobs: int) -> None:
        self._console = console
        self._total = total
        self._counts: Counter[Status] = Counter()
        self._began = time.monotonic()
        self._last_line = self._began
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._bar = self._progress.add_task("conformance", total=total, note="")
        self._slots = [self._progress.add_task(f"  process {slot + 1}", total=None, note="") for slot in range(jobs)]

    def __enter__(self) -> Live:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, slot: int, case: Case) -> None:
        """Process ``slot`` starts on ``case``."""
        self._progress.update(self._slots[slot], note=str(case))

    def result(self, result: Result) -> None:
        """A case is done."""
        self._counts[result.status] += 1
        if result.status in BAD:
            self._progress.console.print(f"{result.status.upper()} {result.case}: {result.message[:300]}", markup=False)
        self._progress.update(self._bar, advance=1, note=summary(self._counts))
        now = time.monotonic()
        if not self._console.is_terminal and now - self._last_line >= self.LINE_SECONDS:
            self._last_line = now
            done = sum(self._counts.values())
            left = (now - self._began) / done * (self._total - done)
            self._console.print(
                f"{done}/{self._total} cases, {summary(self._counts)}, about {left:.0f} s left", markup=False
            )


def summary(counts: Counter[Status]) -> str:
    """Counts in the words that pytest uses."""
    failed = counts[Status.FAILED] + counts[Status.CRASHED] + counts[Status.HUNG]
    parts = [f"{counts[Status.PASSED]} passed", f"{failed} failed"]
    parts.append(f"{counts[Status.SKIPPED] + counts[Status.NOT_APPLICABLE]} skipped")
    parts += [f"{counts[status]} {status}" for status in (Status.XFAILED, Status.XPASSED) if counts[status]]
    return ", ".join(parts)


def table(results: Iterable[Result]) -> Table:
    """Pass rates per suite, variant and dtype, relative to what passes on the CPU."""
    groups: dict[tuple[str, str, str], list[Result]] = {}
    for result in results:
        case = result.case
        groups.setdefault((case.suite, case.variant, case.dtype), []).append(result)
    suites = {key[0] for key in groups}
    shown = Table("suite", "variant", "dtype", title="Conformance: the device against the CPU")
    for heading in ("cases", "passed", "rate", "xfailed", "samples", "equal", "close"):
        shown.add_column(heading, justify="right")
    for key in sorted(key for key, group in groups.items() if rate(group)["counted"]):
        shown.add_row(*key, *_row(groups[key]))
    for name in sorted(suites):
        shown.add_section()
        shown.add_row(
            name, "all", "all", *_row([one for key, group in groups.items() if key[0] == name for one in group])
        )
    return shown


def _row(group: Sequence[Result]) -> list[str]:
    figures = rate(group)
    shown = "-" if figures["counted"] == 0 else f"{100 * figures['passed'] / figures['counted']:.2f} %"
    numbers = (figures[key] for key in ("xfailed", "samples", "exact", "close"))
    return [str(figures["counted"]), str(figures["passed"]), shown, *map(str, numbers)]


def rate(group: Iterable[Result]) -> dict[str, int]:
    """Counts of a group. ``counted`` are the cases that pass on the CPU; an exclusion counts against the device."""
    results = [result for result in group if result.status is not Status.NOT_APPLICABLE]
    samples: Counter[str] = Counter()
    for result in results:
        samples.update(result.samples)
    return {
        "counted": len(results),
        "passed": sum(result.status in (Status.PASSED, Status.XPASSED) for result in results),
        "xfailed": sum(result.status in (Status.XFAILED, Status.SKIPPED) for result in results),
        "samples": samples["exact"] + samples["close"] + samples["failed"],
        "exact": samples["exact"],
        "close": samples["close"],
    }


def write_json(path: Path, results: Sequence[Result], settings: dict[str, Any]) -> None:
    """Writes every result, sorted by case, with what it was run with."""
    document = {
        "settings": settings,
        "counts": Counter(result.status for result in results),
        "suites": {
            name: rate(result for result in results if result.case.suite == name)
            for name in sorted({result.case.suite for result in results})
        },
        "results": [dataclasses.asdict(result) for result in sorted(results, key=lambda result: result.case)],
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def console() -> Console:
    """Standard output; not wrapped at 80 columns when it goes to a file."""
    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else 160, highlight=False)
