"""`nki.profile`: how long a kernel would take on the chip, and why. Every figure is modelled, none is measured.

docs/nki-profile.md explains the report; docs/model-accuracy.md says how far the model is from published measurements.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .allocation import capacity
from .errors import MemoryOverflowError, NotAKernelError, UnwrittenReadError
from .kernel import BoundKernel, Kernel, described_by
from .perfetto import trace_events
from .specialization import Program, Specialization, specialize
from .spills import add_spills
from .timeline import ENGINES, Timeline, build_timeline

__all__ = ["Profile", "Profiler", "profile", "profile_of"]

_HOT_LINES = 3
_PATH_STEPS = 12


@dataclass
class Profile:
    """The modelled profile of a kernel for one set of shapes.

    Attributes:
        kernel: its name.
        target: the chip.
        timelines: one per program of the grid; the first one is the one that reports show.
    """

    kernel: str
    target: str
    timelines: Sequence[Timeline]

    @property
    def timeline(self) -> Timeline:
        """Of the slowest program."""
        return max(self.timelines, key=lambda t: t.latency)

    @property
    def latency_us(self) -> float:
        """Modelled time of the kernel on the device in microseconds, without what a launch costs."""
        return self.timeline.latency / 1e3

    @property
    def engines(self) -> dict[str, float]:
        """Modelled share of the time that each engine is active, in percent; "dma" counts while any byte moves."""
        return {name: self.timeline.active_percent(name) for name in (*ENGINES, "dma")}

    @property
    def notes(self) -> list[str]:
        """What the model had to assume."""
        return [note for t in self.timelines for note in t.notes]

    def to_json(self) -> dict[str, Any]:
        """The figures as plain values; their names are those of Neuron Explorer's summary page."""
        t = self.timeline
        return {
            "modelled": True,
            "kernel": self.kernel,
            "target": self.target,
            "programs": len(self.timelines),
            "instructions": len(t.instructions),
            "latency_us": self.latency_us,
            "engine_active_time_percent": {name: t.active_percent(name) for name in ENGINES},
            "dma_active_time_percent": t.active_percent("dma"),
            "dma_transfer_count": t.dma_transfers,
            "dma_bytes": t.dma_bytes,
            "dma_packet_time_us": t.dma_busy / 1e3,
            "dma_efficiency_percent": 100 * t.dma_efficiency,
            "hbm_read_bytes": t.hbm_read,
            "hbm_write_bytes": t.hbm_written,
            "hbm_bandwidth_gb_per_s": (t.hbm_read + t.hbm_written) / t.latency if t.latency else 0.0,
            "spill_bytes": t.spilled,
            "mbu_estimated_percent": t.mbu_percent,
            "mfu_estimated_percent": t.mfu_percent,
            "hfu_estimated_percent": t.hfu_percent,
            "matmul_macs": t.macs,
            "lines": [
                {
                    "file": c.line[0],
                    "line": c.line[1],
                    "function": c.line[2],
                    "critical_us": c.critical / 1e3,
                    "work_us": c.work / 1e3,
                    "instructions": c.count,
                }
                for c in t.lines
            ],
            "notes": self.notes,
        }

    def json(self) -> str:
        """:meth:`to_json` as text."""
        return json.dumps(self.to_json(), indent=2)

    def text(self) -> str:
        """The report for people."""
        t, rows = self.timeline, []
        rows.append(f"{self.kernel} on {self.target}: {_time(t.latency)} (modelled)")
        if len(self.timelines) > 1:
            rows[-1] += f", slowest of {len(self.timelines)} programs"
        rows.append(f"  {len(t.instructions)} instructions; modelled share of the time that each engine is active:")
        for name in (*ENGINES, "dma"):
            percent = t.active_percent(name)
            rows.append(f"    {name:<7}{percent:6.2f} %  {'#' * round(percent / 2.5)}")
        traffic = t.hbm_read + t.hbm_written
        rows.append(
            f"  HBM: {_bytes(t.hbm_read)} read, {_bytes(t.hbm_written)} written, "
            f"{traffic / t.latency if t.latency else 0:.1f} GB/s, MBU {t.mbu_percent:.1f} % (modelled)"
        )
        rows.append(
            f"  DMA: {t.dma_transfers} transfers, {_bytes(t.dma_bytes)}, "
            f"{100 * t.dma_efficiency:.0f} % of the engines' rate while they are busy (modelled)"
        )
        if t.macs:
            rows.append(f"  tensor engine: MFU {t.mfu_percent:.1f} %, HFU {t.hfu_percent:.1f} % (modelled)")
        if t.spilled:
            rows.append(f"  spilling: {_bytes(t.spilled)} because SBUF is too small (modelled)")
        rows.append("  lines with the largest part of the critical path:")
        for cost in t.lines[:_HOT_LINES]:
            file, number, function = cost.line
            share = 100 * cost.critical / t.latency if t.latency else 0.0
            rows.append(
                f"    {share:5.1f} %  {Path(file).name}:{number} in {function}: {cost.count} instructions, "
                f"{_time(cost.work)} of work"
            )
        rows.append("  end of the critical path:")
        for step in t.critical_path[-_PATH_STEPS:]:
            i = step.instruction
            rows.append(
                f"    {_time(step.time):>10}  {i.engine}.{i.op}, {Path(i.line[0]).name}:{i.line[1]} "
                f"(after {step.reason})"
            )
        rows += [f"  note: {note}" for note in self.notes]
        return "\n".join(rows)

    __str__ = text

    def perfetto(self, path: str | Path) -> Path:
        """Writes the timeline for https://ui.perfetto.dev: a row per engine and DMA queue, arrows for what waits."""
        target = Path(path)
        target.write_text(json.dumps({"traceEvents": trace_events(self.timelines), "displayTimeUnit": "ns"}))
        return target


def _time(ns: float) -> str:
    for unit, size in (("ms", 1e6), ("us", 1e3)):
        if ns >= size:
            return f"{ns / size:.2f} {unit}"
    return f"{ns:.0f} ns"


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def profile_of(specialization: Specialization) -> Profile:
    """The profile of a traced kernel. Where SBUF is too small, transfers that spill are added."""
    sharing = 2 if specialization.request.grid == (2,) else 1
    timelines = [_timeline(program, sharing) for program in specialization.programs]
    return Profile(specialization.name, specialization.request.target, timelines)


def _timeline(program: Program, sharing: int) -> Timeline:
    trace, allocation = program.trace, program.allocation
    overflow = next((o for o in allocation.overflows if o.region == "sbuf"), None)
    if overflow is None:
        return build_timeline(trace, program.executable.dependencies(allocation.aliases(trace)), sharing)
    dependencies = program.executable.dependencies()
    instructions, waits, moved = add_spills(trace, dependencies, capacity(trace.target, "sbuf"))
    timeline = build_timeline(trace, waits, sharing, instructions)
    timeline.spilled = moved
    timeline.notes.append(
        f"SBUF is too small: {overflow.used} bytes per partition are needed at once, {overflow.limit} are there. "
        "Tensors that are needed last wait in HBM."
    )
    return timeline


class Profiler:
    """Takes the kernel's arguments; see :func:`profile`."""

    def __init__(self, bound: BoundKernel) -> None:
        self._bound = bound

    def __getitem__(self, grid: Any) -> Profiler:
        return Profiler(self._bound[grid])

    def __call__(self, *args: Any, **kwargs: Any) -> Profile:
        bound = self._bound
        structure = bound.structure(args, kwargs)
        described = described_by(structure)
        kernel = bound.kernel
        found = specialize(kernel.function, structure, described, bound.request(), kernel._schedule, gather=True)
        for problem in found.problems:
            spills = isinstance(problem, MemoryOverflowError) and problem.facts["region"] == "SBUF"
            # What is read from unwritten memory is wrong, but takes the same time: a call only warns of it.
            if not spills and not isinstance(problem, UnwrittenReadError | Warning):
                raise problem
        return profile_of(found)


def profile(kernel: Kernel | BoundKernel, *, target: str | None = None) -> Profiler:
    """Models how long a kernel takes on the chip.

    `nki.profile(kernel)(*args)` traces the kernel for these arguments, of which only shapes, types and compile-time
    values matter, and returns a :class:`Profile`. Nothing is run.

    Args:
        kernel: made by `nki.jit`, with or without a grid.
        target: "trn1", "trn2" or "trn3"; by default what NEURON_PLATFORM_TARGET_OVERRIDE or the emulated instance says.

    Raises:
        NotAKernelError: `kernel` was not made by `nki.jit`.
        NkiError: the kernel does what the chip cannot do. A kernel that needs more SBUF than there is gets spills.
    """
    if isinstance(kernel, BoundKernel):
        return Profiler(BoundKernel(kernel.kernel, kernel.grid, target or kernel.target, kernel.ranks))
    if not isinstance(kernel, Kernel):
        raise NotAKernelError(function="nki.profile", kernel=kernel)
    return Profiler(BoundKernel(kernel, (), target))
