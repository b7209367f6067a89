"""Pointwise and row-wise work, wall time per call in milliseconds, the wait for the device included."""

from collections.abc import Sequence

from rich.console import Console
from rich.progress import track
from torch import Tensor

from benchmarks import section
from benchmarks.interleave import Case, Row, geometric_mean, run_case
from benchmarks.pointwise_workloads import CHAIN, COMPOSED, COMPOSED_MEAN_BOUND, Pointwise
from benchmarks.window import Peer, against, peers, same_bits

# The first call of a signature is unplanned, later ones are fused, and compiled after some more.
CHECKED_CALLS = 6


class Run:
    """A workload on one peer."""

    def __init__(self, workload: Pointwise, peer: Peer) -> None:
        self.workload, self.peer = workload, peer
        self.function = peer.prepared(workload.function)
        self.arguments = self.fresh_arguments()

    def fresh_arguments(self) -> tuple[Tensor, ...]:
        return tuple(argument.to(self.peer.device, copy=True) for argument in self.workload.arguments())

    def checked(self) -> tuple[Tensor, ...]:
        """The results of the last of some calls that the device runs without a wait between them."""
        arguments = self.fresh_arguments()
        with self.peer.scope():
            for _ in range(CHECKED_CALLS):
                results = self.function(*arguments)
            return tuple(result.cpu() for result in results)

    def measure(self) -> float:
        """Milliseconds per call."""
        return self.peer.milliseconds(lambda: self.function(*self.arguments), calls=1)


def require_same_bits(runs: Sequence[Run]) -> None:
    """Raises when an eager peer does not compute what the reference computes, to the bit."""
    expected = runs[0].checked()
    for run in runs[1:]:
        if not run.peer.compiled and not same_bits(run.checked(), expected):
            raise AssertionError(f"{run.workload.name}: {run.peer.name} does not give the bits of {runs[0].peer.name}")


def measure_workload(workload: Pointwise, settings: section.Settings) -> Row:
    """Checks and measures one workload."""
    taking_part = peers(settings, inductor=True)
    runs = [Run(workload, peer) for peer in taking_part]
    require_same_bits(runs)
    return run_case(
        Case(
            name=workload.name,
            unit="ms",
            measure={run.peer.name: run.measure for run in runs},
            threads=settings.threads,
            bound=workload.bound,
            repetitions=2 if settings.quick else 20,
            warmup=1 if settings.quick else 3,
            against=against(taking_part),
        )
    )


def measure(settings: section.Settings) -> Sequence[Row]:
    """A row per workload, and the mean of those that are not the chain."""
    workloads = track((CHAIN, *COMPOSED), "pointwise work", console=Console(stderr=True), transient=True)
    rows = [measure_workload(workload, settings) for workload in workloads]
    return [*rows, geometric_mean(rows[1:], COMPOSED_MEAN_BOUND)]


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    section.main(measure, __doc__, argv)


if __name__ == "__main__":
    main()
