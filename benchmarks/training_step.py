"""Wall time per training step in milliseconds, the wait for the device at the end included."""

import time
from collections.abc import Callable, Sequence

import torch
from rich.console import Console
from rich.progress import track

from benchmarks import section
from benchmarks.interleave import Case, Row, peer_names, run_case
from benchmarks.models import WORKLOADS, Workload, training_step

# Kernel threads -> workloads measured with them.
MEASURED = {1: ("mlp", "mlp-loop"), 2: tuple(WORKLOADS)}
BOUNDS = {"mlp": 0.8, "gpt": 1.0, "gpt-sdpa": 1.0, "resnet": 1.05}
# A wait after each step would hide that the host runs ahead over short steps; the loops of users wait every few steps.
STEPS_PER_WAIT = {"mlp": 5, "mlp-loop": 5}


class Training:
    """A training loop on one device, measured a few steps at a time."""

    def __init__(self, workload: Workload, device: torch.device, steps: int) -> None:
        self.step = training_step(workload, device)
        self.steps = steps
        self.synchronize = section.synchronizer(device)
        self.loss = torch.tensor(float("nan"))

    def measure(self) -> float:
        """Milliseconds per step."""
        self.synchronize()
        start = time.perf_counter()
        for _ in range(self.steps):
            self.loss = self.step()
        self.synchronize()
        return (time.perf_counter() - start) / self.steps * 1e3


def compare_losses(peers: Sequence[Training]) -> Callable[[], str]:
    """A remark for the table when the peers, which have done the same steps, did not get the same loss."""

    def remark() -> str:
        losses = [peer.loss.item() for peer in peers]
        return "" if all(loss == losses[0] for loss in losses) else f"losses differ: {losses}"

    return remark


def measure(settings: section.Settings) -> Sequence[Row]:
    """One row per workload that is measured with so many threads."""
    names = peer_names(settings.reference, settings.subject)
    devices = torch.device(settings.reference), torch.device(settings.subject)
    rows = []
    keys = MEASURED.get(settings.threads, tuple(WORKLOADS))
    for key in track(keys, "training step", console=Console(stderr=True), transient=True):
        steps = STEPS_PER_WAIT.get(key, 1)
        peers = [Training(WORKLOADS[key], device, steps) for device in devices]
        case = Case(
            name=WORKLOADS[key].name,
            unit="ms",
            measure={name: peer.measure for name, peer in zip(names, peers, strict=True)},
            threads=settings.threads,
            bound=BOUNDS.get(key),
            repetitions=2 if settings.quick else 60,
            warmup=1 if settings.quick else 4,
        )
        rows.append(run_case(case, compare_losses(peers)))
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    section.main(measure, __doc__, argv)


if __name__ == "__main__":
    main()
