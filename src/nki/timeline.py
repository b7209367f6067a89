"""The modelled timeline of a kernel, and what profiles say about one: activity, bandwidth, utilisation, critical path.

Metrics are those of Neuron Explorer's summary page, with its definitions. Nothing here was measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from neuron_hw import Chip, chip

from .instruction import Instruction, Line
from .instruction_costs import CostModel
from .schedule import Schedule, schedule
from .trace import Trace

__all__ = ["LineCost", "Step", "Timeline", "build_timeline"]

ENGINES = ("tensor", "vector", "scalar", "gpsimd")


@dataclass(frozen=True)
class Step:
    """A step of the critical path: `instruction`, for `time` ns of it nothing else could have gone on.

    `reason` says why it came after the step before: "operand", "order" of its queue, or a busy DMA "engine".
    """

    instruction: Instruction
    time: float
    reason: str


@dataclass(frozen=True)
class LineCost:
    """What a line of the kernel costs: ns of the critical path, ns of work on any engine, and instructions run."""

    line: Line
    critical: float
    work: float
    count: int


@dataclass
class Timeline:
    """Times of all instructions of one program on one core.

    Attributes:
        target: the chip.
        instructions: in program order, with those that were added for spilling.
        schedule: their times.
        spilled: bytes that were moved because SBUF was too small.
    """

    target: str
    instructions: Sequence[Instruction]
    schedule: Schedule
    spilled: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def chip(self) -> Chip:
        return self.schedule.chip

    @property
    def latency(self) -> float:
        """ns from the first trigger to the end of the last instruction."""
        return self.schedule.finish

    # Activity ---------------------------------------------------------------------------------------------------------

    @cached_property
    def active(self) -> dict[str, float]:
        """ns that each engine ran at least one instruction, and that "dma" moved at least one byte."""
        s = self.schedule
        spans: dict[str, list[tuple[float, float, int]]] = {e: [] for e in ENGINES}
        spans["dma"] = []
        completion = float(s.chip.dma_completion)
        for i, w in enumerate(s.work):
            if w.shares:
                spans["dma"].append((s.start[i], s.end[i] - completion, s.times[i]))
            elif w.queue in spans:
                spans[w.queue].append((s.issued[i], s.end[i], s.times[i]))
        return {name: _union(found) for name, found in spans.items()}

    def active_percent(self, engine: str) -> float:
        """Share of the time that `engine` ("tensor", ..., "dma") was active, in percent."""
        return 100 * self.active[engine] / self.latency if self.latency else 0.0

    # Data movement ----------------------------------------------------------------------------------------------------

    def _sum(self, attribute: str) -> int:
        return sum(getattr(w, attribute) * n for w, n in zip(self.schedule.work, self.schedule.times, strict=True))

    @cached_property
    def hbm_read(self) -> int:
        """Bytes."""
        return self._sum("hbm_read")

    @cached_property
    def hbm_written(self) -> int:
        """Bytes."""
        return self._sum("hbm_written")

    @cached_property
    def dma_bytes(self) -> int:
        """Bytes that DMA engines moved."""
        return sum(w.moved * n for w, n in zip(self.schedule.work, self.schedule.times, strict=True) if w.shares)

    @cached_property
    def dma_transfers(self) -> int:
        return sum(n for w, n in zip(self.schedule.work, self.schedule.times, strict=True) if w.shares)

    @cached_property
    def dma_busy(self) -> float:
        """ns that DMA engines moved data, summed over the engines ("DMA packet time")."""
        return sum(w.busy * n for w, n in zip(self.schedule.work, self.schedule.times, strict=True))

    @property
    def dma_efficiency(self) -> float:
        """Part of the engines' rate that their busy time used: small elements waste the rest."""
        return self.dma_bytes / (self.dma_busy * self.chip.dma_rate) if self.dma_busy else 0.0

    @property
    def mbu_percent(self) -> float:
        """Model bandwidth utilisation: HBM traffic over what one HBM stack could have moved, in percent."""
        if not self.latency:
            return 0.0
        return 100 * (self.hbm_read + self.hbm_written) / (self.latency * self.chip.hbm_stack_bandwidth)

    # Arithmetic -------------------------------------------------------------------------------------------------------

    @cached_property
    def macs(self) -> int:
        """Multiplications of matrix products, without transpositions."""
        pairs = zip(self.schedule.work, self.schedule.times, strict=True)
        return sum(w.macs * n for w, n in pairs if not w.transposes)

    def _utilisation(self, macs: int) -> float:
        peak = 128 * 128 * self.chip.tensor_clock * self.latency
        return 100 * macs / peak if peak else 0.0

    @property
    def mfu_percent(self) -> float:
        """Model FLOP utilisation against the bf16 peak, in percent."""
        return self._utilisation(self.macs)

    @property
    def hfu_percent(self) -> float:
        """As MFU, with transpositions on the tensor engine."""
        return self._utilisation(self._sum("macs"))

    # Where the time goes ----------------------------------------------------------------------------------------------

    @cached_property
    def critical_path(self) -> list[Step]:
        """The chain of instructions that decides when the kernel ends, first one first."""
        s = self.schedule
        if not self.instructions:
            return []
        at = max(range(len(self.instructions)), key=s.end.__getitem__)
        steps: list[Step] = []
        until = s.end[at]
        while at >= 0:
            before = s.cause[at]
            # What the cause does until this one starts is its own part of the path.
            since = 0.0 if before < 0 else min(s.end[before], max(s.issued[at], s.issued[before]))
            if before >= 0 and s.reason[at] == "engine":
                since = min(s.end[before], s.start[at])
            since = min(since, until)
            steps.append(Step(self.instructions[at], until - since, s.reason[at] if before >= 0 else "start"))
            until, at = since, before
        steps.reverse()
        return steps

    @cached_property
    def lines(self) -> list[LineCost]:
        """Costs by source line, those with the largest part of the critical path first."""
        s = self.schedule
        critical: dict[Line, float] = {}
        for step in self.critical_path:
            critical[step.instruction.line] = critical.get(step.instruction.line, 0.0) + step.time
        work: dict[Line, float] = {}
        count: dict[Line, int] = {}
        for i, instruction in enumerate(self.instructions):
            w, n, line = s.work[i], s.times[i], instruction.line
            each = w.busy / len(w.shares) if w.shares else w.interval
            work[line] = work.get(line, 0.0) + each * n
            count[line] = count.get(line, 0) + n
        found = [LineCost(line, critical.get(line, 0.0), work[line], count[line]) for line in work]
        return sorted(found, key=lambda c: (-c.critical, -c.work))


def _union(spans: Iterable[tuple[float, float, int]]) -> float:
    """Length of the union of intervals; those that repeat count as often."""
    once, more = [], 0.0
    for start, end, times in spans:
        if times == 1:
            once.append((start, end))
        else:
            more += (end - start) * times
    once.sort()
    total, until = 0.0, 0.0
    for start, end in once:
        if end > until:
            total += end - max(start, until)
            until = end
    return total + more


def build_timeline(
    trace: Trace,
    dependencies: Sequence[Sequence[int]],
    sharing: int = 1,
    instructions: Sequence[Instruction] | None = None,
) -> Timeline:
    """The timeline of one program.

    Args:
        trace: what it does.
        dependencies: per instruction the earlier ones that it waits for.
        sharing: cores that use the same HBM stack at the same time: 2 for the two of a logical core.
        instructions: in place of the trace's, with `dependencies` by place in this list.
    """
    costs = CostModel(chip(trace.target), sharing)
    if instructions is None:
        instructions = trace.instructions
        dependencies = _with_order(instructions, dependencies)
    result = schedule(instructions, dependencies, costs)
    return Timeline(trace.target, instructions, result, notes=list(result.notes))


def _with_order(instructions: Sequence[Instruction], dependencies: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
    """Adds what depends_on, no_reorder and schedules ask for."""
    if not any(i.after for i in instructions):
        return dependencies
    found: list[Any] = list(dependencies)
    for i, instruction in enumerate(instructions):
        if instruction.after:
            found[i] = tuple(dict.fromkeys((*found[i], *(a.index for a in instruction.after))))
    return found
