"""Time on the launching thread per op, in microseconds.

On an asynchronous device that is what a launch costs; on the CPU the call itself. Launches come in bursts shorter than
the queue, and what waits for them is not timed. The loop's own cost, the same for both, is part of the figure.
"""

import timeit
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track

from benchmarks import section
from benchmarks.interleave import Case, Row, peer_names, run_case


class Op(NamedTuple):
    """A statement over the names of `operands`, the bound on its ratio, and how many make a burst."""

    name: str
    statement: str
    bound: float | None = None
    burst: int = 200


OPS = (
    Op("add[4]", "short + other", bound=1.1),
    Op("mul[4]", "short * other"),
    Op("mm 64x64", "torch.mm(matrix, square)", bound=0.35),
    Op("layer_norm 64x64", "F.layer_norm(matrix, (64,), scale, shift)", bound=0.5),
    Op("gelu 64x64", "F.gelu(matrix)"),
    Op("F.linear 64x64", "F.linear(matrix, square, shift)", bound=0.45),
    Op("softmax 64x64", "torch.softmax(matrix, -1)"),
    Op("cat 2 of 64x64", "torch.cat((matrix, square))"),
    Op("view 64x64", "matrix.view(4096)"),
    Op("empty(4)", "torch.empty(4, device=device)"),
    Op("_foreach_add_ of 20", "torch._foreach_add_(many, 1.0)", burst=40),
)


def operands(device: torch.device) -> dict[str, Any]:
    """What the statements speak of."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    return {
        "torch": torch,
        "F": F,
        "device": device,
        "short": draw(4),
        "other": draw(4),
        "matrix": draw(64, 64),
        "square": draw(64, 64),
        "scale": draw(64),
        "shift": draw(64),
        "many": [draw(64) for _ in range(20)],
    }


def host_cost(op: Op, device: torch.device) -> Callable[[], float]:
    """A function that launches one burst and returns microseconds per op."""
    timer = timeit.Timer(op.statement, globals=operands(device))
    synchronize = section.synchronizer(device)

    def measure() -> float:
        synchronize()
        seconds = timer.timeit(op.burst)
        synchronize()
        return seconds / op.burst * 1e6

    return measure


def measure(settings: section.Settings) -> Sequence[Row]:
    """One row per op."""
    names = peer_names(settings.reference, settings.subject)
    devices = torch.device(settings.reference), torch.device(settings.subject)
    rows = []
    for op in track(OPS, "host cost", console=Console(stderr=True), transient=True):
        case = Case(
            name=op.name,
            unit="us",
            measure={name: host_cost(op, device) for name, device in zip(names, devices, strict=True)},
            threads=settings.threads,
            bound=op.bound,
            repetitions=3 if settings.quick else 60,
        )
        rows.append(run_case(case))
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    section.main(measure, __doc__, argv)


if __name__ == "__main__":
    main()
