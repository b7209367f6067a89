"""What was compiled, how long it took, and why something was compiled again."""

from __future__ import annotations

import copy
import logging
import threading
from typing import Any

from torch._dynamo.utils import counters, guard_failures
from torch._guards import CompileContext

__all__ = ["add", "get_dynamo_metrics", "note_compilation", "reset_dynamo_metrics"]

_log = logging.getLogger("torch_neuronx.compile")
_lock = threading.Lock()
_NAMES = ("graphs", "programs", "steps", "kernels", "host_calls", "fallbacks", "build_seconds")
_counts: dict[str, Any] = {}
_recompilations: list[dict[str, str]] = []
_failures_seen: dict[Any, int] = {}


def get_dynamo_metrics() -> dict[str, Any]:
    """Counts since the start of the process, or since `reset_dynamo_metrics()`.

    Returns:
        `graphs` (forward, backward and inference graphs that were built), `programs`, `steps`, `kernels`,
        `host_calls` (ops that run from Python between programs), `fallbacks` (graphs that run op by op),
        `build_seconds` (wall time from graph to program, machine code included), `cache_hits`, `cache_misses`
        (of AOTAutograd's cache), `unique_graphs`, `graph_breaks` (reason to count) and `recompilations` (a list of
        `{"id", "reason"}`).
    """
    with _lock:
        result: dict[str, Any] = {name: _counts.get(name, 0) for name in _NAMES}
        result["recompilations"] = copy.deepcopy(_recompilations)
    result["cache_hits"] = counters["aot_autograd"]["autograd_cache_hit"]
    result["cache_misses"] = counters["aot_autograd"]["autograd_cache_miss"]
    result["unique_graphs"] = counters["stats"]["unique_graphs"]
    result["graph_breaks"] = dict(counters["graph_break"])
    return result


def reset_dynamo_metrics() -> None:
    """Sets all counts of :func:`get_dynamo_metrics` to zero, Dynamo's own among them."""
    with _lock:
        _counts.clear()
        _recompilations.clear()
    for group in ("aot_autograd", "stats", "graph_break"):
        counters[group].clear()


def add(**counts: float) -> None:
    """To the counts of these names."""
    with _lock:
        for name, count in counts.items():
            assert name in _NAMES
            _counts[name] = _counts.get(name, 0) + count


def note_compilation() -> None:
    """Called when Dynamo hands over a graph: tells why, if it is not the first one of its frame."""
    reasons = []
    with _lock:
        for code, failures in guard_failures.items():
            seen = _failures_seen.get(code, 0)
            reasons += [failure.reason if hasattr(failure, "reason") else str(failure) for failure in failures[seen:]]
            _failures_seen[code] = len(failures)
        compile_id = CompileContext.current_compile_id()
        if compile_id is None or not compile_id.frame_compile_id:
            return
        reason = reasons[-1] if reasons else "unknown"
        _recompilations.append({"id": str(compile_id), "reason": reason})
    _log.info("compiling again (%s): %s", compile_id, reason)
