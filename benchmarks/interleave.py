"""Measuring peers against each other: in turns, in one process, so that a change of the machine's speed hits all alike.

A benchmark makes one `Case` per line of its table, calls `run_case` for each and puts the rows into a `Report`, which
prints a table and writes JSON. What is compared is the best of the repetitions; medians stand in the JSON file.
"""

import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

# Above this load per core before a run starts, times are noise and ratios are weak.
QUIET_LOAD_PER_CORE = 0.25


@dataclass(frozen=True)
class Case:
    """One line of a table: what each peer does, and the bound its ratio is held against."""

    name: str
    unit: str
    measure: Mapping[str, Callable[[], float]]  # peer -> one measurement, in `unit`
    threads: int
    bound: float | None = None  # highest subject / reference that is still good
    repetitions: int = 20
    warmup: int = 2
    # Other peers that the subject is compared with, and the highest subject / peer that is still good, if there is one.
    against: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """What was measured for one case."""

    name: str
    unit: str
    threads: int
    best: Mapping[str, float]  # peer -> minimum over the repetitions, in `unit`
    median: Mapping[str, float]
    repetitions: int
    reference: str
    subject: str
    bound: float | None = None
    remark: str = ""
    against: Mapping[str, float | None] = field(default_factory=dict)  # as in Case

    @property
    def ratio(self) -> float:
        """Subject / reference, of the best of each."""
        return self.best[self.subject] / self.best[self.reference]

    @property
    def verdict(self) -> str:
        """`met`, `missed`, or nothing when there is no bound."""
        return _verdict(self.ratio, self.bound)

    def ratio_to(self, peer: str) -> float:
        """Subject / peer, of the best of each."""
        return self.best[self.subject] / self.best[peer]

    def verdict_against(self, peer: str) -> str:
        """As `verdict`, for a peer of `against`."""
        return _verdict(self.ratio_to(peer), self.against[peer])

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "Row":
        """The row that `to_json` wrote."""
        return Row(**{key: value for key, value in data.items() if key not in _DERIVED})

    def to_json(self) -> dict[str, Any]:
        """All fields, the ratios and the verdicts."""
        others = {peer: {"ratio": self.ratio_to(peer), "verdict": self.verdict_against(peer)} for peer in self.against}
        return asdict(self) | {"ratio": self.ratio, "verdict": self.verdict, "ratios": others}


# What to_json writes besides the fields.
_DERIVED = ("ratio", "verdict", "ratios")


def _verdict(ratio: float, bound: float | None) -> str:
    if bound is None:
        return ""
    return "met" if ratio <= bound else "missed"


def interleave(measure: Mapping[str, Callable[[], float]], repetitions: int, warmup: int) -> dict[str, list[float]]:
    """Measures the peers in turns, after `warmup` uncounted turns; every second turn in reverse order.

    The order changes because a peer that always runs right after another one inherits its caches and its clock speed.
    """
    if repetitions < 1:
        raise ValueError(f"repetitions must be at least 1, not {repetitions}")
    samples: dict[str, list[float]] = {peer: [] for peer in measure}
    for turn in range(warmup + repetitions):
        peers = list(measure)
        for peer in peers if turn % 2 == 0 else reversed(peers):
            value = measure[peer]()
            if turn >= warmup:
                samples[peer].append(value)
    return samples


def run_case(case: Case, remark: Callable[[], str] | None = None) -> Row:
    """Measures a case whose first peer is the reference and whose last is the subject; `remark` is asked afterwards."""
    samples = interleave(case.measure, case.repetitions, case.warmup)
    peers = list(samples)
    return Row(
        name=case.name,
        unit=case.unit,
        threads=case.threads,
        best={peer: min(values) for peer, values in samples.items()},
        median={peer: statistics.median(values) for peer, values in samples.items()},
        repetitions=case.repetitions,
        reference=peers[0],
        subject=peers[-1],
        bound=case.bound,
        remark=remark() if remark else "",
        against=case.against,
    )


def geometric_mean(rows: Sequence[Row], bound: float | None = None) -> Row:
    """A row of each peer's geometric means over rows of the same peers, whose ratios are the means of their ratios."""

    def means(values: Sequence[Mapping[str, float]]) -> dict[str, float]:
        return {peer: statistics.geometric_mean(row[peer] for row in values) for peer in rows[0].best}

    best, median = means([row.best for row in rows]), means([row.median for row in rows])
    against = dict.fromkeys(rows[0].against)
    return replace(rows[0], name="geometric mean", best=best, median=median, bound=bound, remark="", against=against)


def peer_names(reference: str, subject: str) -> tuple[str, str]:
    """Names for two peers, different even when a device is measured against itself (which tests the harness)."""
    return reference, subject if subject != reference else f"{subject} (again)"


def cpu_model() -> str:
    """The processor's name as the operating system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@dataclass
class Report:
    """Rows in sections, and the conditions they were measured under."""

    title: str
    sections: dict[str, list[Row]] = field(default_factory=dict)
    load_before: tuple[float, float, float] = field(default_factory=os.getloadavg)

    def add(self, section: str, rows: Sequence[Row]) -> None:
        """Appends rows to a section."""
        self.sections.setdefault(section, []).extend(rows)

    @property
    def quiet(self) -> bool:
        """Was the machine idle when the run started?"""
        return self.load_before[0] <= QUIET_LOAD_PER_CORE * (os.cpu_count() or 1)

    def conditions(self) -> dict[str, Any]:
        """The machine, the versions, and its load before and after."""
        return {
            "processor": cpu_model(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "load_before": list(self.load_before),
            "load_after": list(os.getloadavg()),
            "quiet": self.quiet,
            "clock": "wall time of this machine",
        }

    def to_json(self) -> dict[str, Any]:
        """Conditions and rows."""
        rows = {section: [row.to_json() for row in rows] for section, rows in self.sections.items()}
        return {"title": self.title, "conditions": self.conditions(), "sections": rows}

    def write_json(self, path: Path) -> None:
        """Writes `to_json` to a file."""
        path.write_text(json.dumps(self.to_json(), indent=2) + "\n")

    def print(self, console: Console | None = None) -> None:
        """Prints the conditions and a table per section."""
        console = console or Console(width=None if sys.stdout.isatty() else 110)
        conditions = self.conditions()
        console.print(
            f"[bold]{self.title}[/bold]\n{conditions['processor']}, {conditions['cores']} cores, torch "
            f"{conditions['torch']}, Python {conditions['python']}; load average {self.load_before[0]:.2f} before, "
            f"{conditions['load_after'][0]:.2f} after. Best of interleaved repetitions, wall time of this machine.",
            highlight=False,
        )
        if not self.quiet:
            console.print(
                "[yellow]Other programs were running: the ratios are weak, the times are not to be quoted.[/]"
            )
        for section, rows in self.sections.items():
            console.print(_table(section, rows))


def _table(section: str, rows: Sequence[Row]) -> Table:
    table = Table(title=section, title_justify="left", show_edge=False)
    table.add_column("case")
    for heading in ("threads", *rows[0].best, "unit", "ratio", "bound"):
        table.add_column(heading, justify="left" if heading == "unit" else "right")
    for peer in rows[0].against:
        table.add_column(f"/ {peer}", justify="right")
    table.add_column("")
    for row in rows:
        verdicts = [row.verdict, *(row.verdict_against(peer) for peer in row.against)]
        verdict = "missed" if "missed" in verdicts else "met" if "met" in verdicts else ""
        table.add_row(
            row.name,
            str(row.threads),
            *(f"{value:.2f}" for value in row.best.values()),
            row.unit,
            _coloured(f"{row.ratio:.2f}", row.verdict),
            "" if row.bound is None else f"{row.bound:.2f}",
            *(_coloured(f"{row.ratio_to(peer):.2f}", row.verdict_against(peer)) for peer in row.against),
            " ".join(filter(None, (_coloured(verdict, verdict), row.remark))),
        )
    return table


def _coloured(text: str, verdict: str) -> str:
    colour = {"met": "green", "missed": "red"}.get(verdict)
    return f"[{colour}]{text}[/]" if colour else text
