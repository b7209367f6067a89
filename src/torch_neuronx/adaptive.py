"""Adaptive eager: neighbouring ops of a stream run as one fused launch, with the bits of one launch each.

A stream's worker looks at the launches that wait for it. Pointwise and row-wise ones become *regions* that run tile by
tile, so that what they hand each other stays in the caches, and a result that the program has let go of is never
written. Regions that take much time are compiled to machine code in the background.

On by default; `TORCH_NEURONX_ADAPTIVE_EAGER=0` or :func:`adaptive_eager` turn it off. It is off as well in
deterministic mode (`torch.use_deterministic_algorithms`) and with `NEURON_LAUNCH_BLOCKING=1`.
"""

from __future__ import annotations

import contextlib
import functools
import io
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from . import _C, knobs

__all__ = [
    "AdaptiveReport",
    "FusedRegion",
    "adaptive_eager",
    "adaptive_report",
    "is_adaptive_eager_enabled",
    "reset_adaptive_report",
]


class adaptive_eager(contextlib.ContextDecorator):
    """Context manager and decorator: turns adaptive eager on or off for the launches made inside, on all threads.

    Args:
        enabled: whether launches may be fused.
    """

    def __init__(self, enabled: bool = True) -> None:
        self._enabled = enabled
        self._before: list[bool] = []

    def __enter__(self) -> None:
        # The knob is the one place that knows: setting another knob inside applies this one again.
        self._before.append(knobs.ADAPTIVE_EAGER.value)
        knobs.set(knobs.ADAPTIVE_EAGER.name, self._enabled)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        knobs.set(knobs.ADAPTIVE_EAGER.name, self._before.pop())


def is_adaptive_eager_enabled() -> bool:
    """Whether the switch is on; deterministic mode and blocking launches suspend it without changing it."""
    return bool(_C.adaptive())


@dataclass(frozen=True)
class FusedRegion:
    """Launches that ran as one."""

    ops: tuple[str, ...]
    """In the order of the program, such as `aten::mul.Tensor`."""
    lines: tuple[str, ...]
    """Where in the program they stand, as `file:line`: of each launch with TORCH_NEURONX_LAUNCH_LINES=1, else of the
    first call with the same shapes."""
    elements: int
    """Of the largest tensor."""
    launches: int
    """How many launches one run replaces."""
    runs: int
    bytes_not_written: int
    """Size of all results that no later launch could read, so that they were never written to memory; of all runs.
    Results that shared a block one after the other count once."""
    compiled: bool
    """Whether it is machine code by now; else tile kernels run it."""


@dataclass(frozen=True)
class AdaptiveReport:
    """What adaptive eager has done since the process started, or since :func:`reset_adaptive_report`."""

    windows: int
    """Stretches of launches that ran fused."""
    hits: int
    """Windows whose plan was known."""
    misses: int
    """Windows that were seen for the first time."""
    launches: int
    """Launches in all windows."""
    single: int
    """Fusable launches that stood alone and ran as usual."""
    regions: tuple[FusedRegion, ...]
    """Most runs first."""

    @property
    def bytes_not_written(self) -> int:
        """Of all regions."""
        return sum(region.bytes_not_written for region in self.regions)

    def __str__(self) -> str:
        out = io.StringIO()
        out.write(
            f"Adaptive eager: {self.launches} launches in {self.windows} windows ({self.hits} hits, {self.misses} "
            f"misses), {self.single} fusable launches stood alone, {_bytes(self.bytes_not_written)} not written\n"
        )
        for region in self.regions:
            kind = "machine code" if region.compiled else "tile kernels"
            out.write(
                f"\n{region.launches} launches, {region.elements} elements, {region.runs} runs as {kind}, "
                f"{_bytes(region.bytes_not_written)} not written\n  {_chain(region.ops)}\n"
            )
            for line in region.lines:
                out.write(f"  {_short(line)}\n")
        return out.getvalue().rstrip("\n")


def adaptive_report(show: bool = True) -> AdaptiveReport:
    """Prints the fused regions with their ops, source lines and savings, and returns them.

    Waits for nothing: launches in flight are not counted yet.

    Args:
        show: whether to print.
    """
    data = _C.adaptive_report()
    regions = [
        FusedRegion(**(region | {"ops": tuple(region["ops"]), "lines": tuple(region["lines"])}))
        for region in data.pop("regions")
    ]
    regions.sort(key=lambda region: (-region.runs, region.ops, region.elements))
    report = AdaptiveReport(**data, regions=tuple(regions))
    if show:
        print(report)
    return report


def reset_adaptive_report() -> None:
    """Starts all counts anew."""
    _C.reset_adaptive_report()


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def _chain(ops: tuple[str, ...]) -> str:
    """The ops without their namespace; repetitions of one op as `op x n`."""
    parts: list[tuple[str, int]] = []
    for op in (op.removeprefix("aten::") for op in ops):
        if parts and parts[-1][0] == op:
            parts[-1] = (op, parts[-1][1] + 1)
        else:
            parts.append((op, 1))
    return " -> ".join(op if count == 1 else f"{op} x {count}" for op, count in parts)


def _short(line: str) -> str:
    file, _, number = line.rpartition(":")
    with contextlib.suppress(ValueError):
        return f"{Path(file).relative_to(Path.cwd())}:{number}"
    return line


@functools.cache
def _compiler() -> Any:
    """The background compiler, or None where there is no machine-code tier."""
    from . import jit

    if not knobs.JIT.value or not jit.available():
        return None
    directory = knobs.CACHE_DIR.value
    folder = Path(directory).expanduser() if directory else jit.default_directory()
    return jit.Compiler(
        next_stage=_C.next_stage_to_compile,
        install=_C.install_stage,
        failed=lambda stage: None,  # the tile kernels go on with it
        wake=_C.wake_compiler,
        cache=jit.ObjectCache(folder) if folder else None,
    )


def _start_compiler() -> None:
    """Called by the extension on the main thread, when the first region is worth compiling."""
    compiler = _compiler()
    if compiler is not None:
        compiler.start()
