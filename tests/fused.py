"""Running a function behind other work with the fusion window on, so that its launches meet in one window."""

from collections.abc import Callable
from typing import Any

import torch
from comparison import assert_same, copied_to

from torch_neuronx.adaptive import AdaptiveReport


def hold_up(device: torch.device | str, launches: int = 2) -> None:
    """Keeps the current stream busy for about 10 ms per launch, with work that no window fuses."""
    x = torch.ones(700, 700, device=device)
    for _ in range(launches):
        torch.mm(x, x)


def warmed(function: Callable[..., Any], *arguments: Any, device: torch.device | str) -> None:
    """Runs `function` with the window off until its launches are planned: unplanned ones wait for the queue."""
    with torch.neuron.adaptive_eager(False):
        for _ in range(2):
            function(*copied_to(arguments, device))
        torch.accelerator.synchronize()


def run_fused(function: Callable[..., Any], *arguments: Any, device: torch.device | str) -> tuple[Any, AdaptiveReport]:
    """What `function` returns when all its launches wait in a queue, and the report of the windows that ran then."""
    warmed(function, *arguments, device=device)
    moved = copied_to(arguments, device)
    with torch.neuron.adaptive_eager(True):
        torch.accelerator.synchronize()
        torch.neuron.reset_adaptive_report()
        hold_up(device)
        result = function(*moved)
        torch.accelerator.synchronize()
        return result, report()


def assert_fused_as_cpu(function: Callable[..., Any], *arguments: Any, device: torch.device | str) -> AdaptiveReport:
    """`function` gives the bits of CPU eager, and some of its launches ran fused; returns the report."""
    expected = function(*copied_to(arguments, "cpu"))
    actual, windows = run_fused(function, *arguments, device=device)
    assert_same(actual, expected)
    assert runs(windows) > 0, f"nothing was fused\n{windows}"
    return windows


def report() -> AdaptiveReport:
    """What has been fused since the report was reset."""
    return torch.neuron.adaptive_report(show=False)


def runs(report: AdaptiveReport) -> int:
    """How often a region has run."""
    return sum(region.runs for region in report.regions)


def ops(report: AdaptiveReport) -> set[str]:
    """Names of the ops that regions were made of."""
    return {str(op) for region in report.regions for op in region.ops}


def bytes_not_written(report: AdaptiveReport) -> int:
    """Of intermediates, by all regions together."""
    return sum(region.bytes_not_written for region in report.regions)
