"""A timeline as the events of a Chrome trace, which Perfetto opens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .timeline import Timeline

__all__ = ["trace_events"]

_FIRST_ROWS = ("tensor", "vector", "scalar", "gpsimd", "sync")


def trace_events(timelines: Sequence[Timeline]) -> list[dict[str, Any]]:
    """Events of all programs: one process each, one thread per engine and DMA queue. Times are in microseconds."""
    events: list[dict[str, Any]] = []
    for process, timeline in enumerate(timelines):
        events += _names(process, timeline)
        events += _slices(process, timeline)
    return events


def _rows(timeline: Timeline) -> dict[str, int]:
    used = dict.fromkeys(w.queue for w in timeline.schedule.work)
    ordered = [q for q in _FIRST_ROWS if q in used] + sorted(q for q in used if q not in _FIRST_ROWS)
    return {queue: row for row, queue in enumerate(ordered)}


def _names(process: int, timeline: Timeline) -> list[dict[str, Any]]:
    title = f"core {process} ({timeline.target}, modelled)"
    found: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": process, "args": {"name": title}}]
    for queue, row in _rows(timeline).items():
        place = {"ph": "M", "pid": process, "tid": row}
        found.append({**place, "name": "thread_name", "args": {"name": queue}})
        found.append({**place, "name": "thread_sort_index", "args": {"sort_index": row}})
    return found


def _slices(process: int, timeline: Timeline) -> list[dict[str, Any]]:
    s, rows = timeline.schedule, _rows(timeline)
    completion = float(s.chip.dma_completion)
    found: list[dict[str, Any]] = []
    for i, instruction in enumerate(timeline.instructions):
        work = s.work[i]
        # Slices of one row must not overlap: what follows in a pipeline begins where the next instruction can.
        end = s.end[i] - completion if work.shares else s.start[i] + work.interval
        row = rows[work.queue]
        args: dict[str, Any] = {"place": i, "source": f"{instruction.line[0]}:{instruction.line[1]}", "modelled": True}
        if s.cause[i] >= 0:
            args["waited_for"] = f"{s.cause[i]} ({s.reason[i]})"
        if work.moved:
            args["bytes"] = work.moved
        if s.times[i] != 1:
            args["times"] = s.times[i]
        event = {"ph": "X", "pid": process, "tid": row, "ts": s.start[i] / 1e3, "dur": max(end - s.start[i], 0.0) / 1e3}
        found.append(event | {"name": instruction.name or instruction.op, "cat": instruction.engine, "args": args})
        cause = s.cause[i]
        if cause >= 0 and s.reason[i] == "operand":
            flow = {"cat": "dependency", "name": "operand", "id": f"{process}.{i}", "pid": process}
            source = timeline.schedule.work[cause].queue
            found.append({**flow, "ph": "s", "tid": rows[source], "ts": s.start[cause] / 1e3})
            found.append({**flow, "ph": "f", "bp": "e", "tid": row, "ts": s.start[i] / 1e3})
    return found
