"""Compiled code once it is compiled: wall time per call in milliseconds, the wait for the device included."""

import time
from collections.abc import Callable, Mapping, Sequence

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from benchmarks import section
from benchmarks.compile_workloads import WORKLOADS, Workload, step_of
from benchmarks.interleave import Case, Row, run_case

EAGER, INDUCTOR = "eager", "Inductor"


def milliseconds(step: Callable[[], Tensor], wait: Callable[[], None], calls: int) -> float:
    """Per call; each is waited for."""
    start = time.perf_counter()
    for _ in range(calls):
        result = step()
        wait()
    elapsed = time.perf_counter() - start
    del result
    return elapsed / calls * 1e3


def peers(workload: Workload, settings: section.Settings) -> Mapping[str, Callable[[], float]]:
    """CPU eager, Inductor if it takes part, the device; results are compared before anything is measured."""
    reference, subject = torch.device(settings.reference), torch.device(settings.subject)
    wait = section.synchronizer(subject)
    steps = {EAGER: step_of(workload, reference, None)}
    if settings.inductor:
        steps[INDUCTOR] = step_of(workload, reference, "inductor")
    steps["compiled"] = step_of(workload, subject, "neuron" if subject.type == "neuron" else "inductor")
    expected = steps[EAGER]()
    for name, step in steps.items():
        torch.testing.assert_close(step().cpu(), expected, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")

    def measure(name: str) -> Callable[[], float]:
        waits = wait if name == "compiled" else lambda: None
        return lambda: milliseconds(steps[name], waits, workload.calls)

    return {name: measure(name) for name in steps}


def measure(settings: section.Settings) -> Sequence[Row]:
    """One row per workload; `ratio` is against eager."""
    rows = []
    for workload in track(WORKLOADS, "steady state", console=Console(stderr=True), transient=True):
        torch.compiler.reset()
        case = Case(
            name=workload.name,
            unit="ms",
            measure=peers(workload, settings),
            threads=settings.threads,
            bound=workload.bound_eager,
            repetitions=2 if settings.quick else 20,
            warmup=1 if settings.quick else 3,
            against={INDUCTOR: workload.bound} if settings.inductor else {},
        )
        rows.append(run_case(case))
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    section.main(measure, __doc__, argv)


if __name__ == "__main__":
    main()
