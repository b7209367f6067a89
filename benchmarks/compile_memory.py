"""The most memory that tensors take during a compiled training step, in MiB.

CPU tensors are counted from the profiler's record of allocations, the device's by its allocator.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks import section
from benchmarks.compile_workloads import GPT, step_of
from benchmarks.interleave import Case, Row, run_case

BOUND = 1.05
MIB = 1 << 20


def peak_on_cpu(step: Callable[[], Tensor]) -> float:
    """Above what was allocated before the step."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        step()
    current = peak = 0
    events = [e for e in record.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        current += event.nbytes()
        peak = max(peak, current)
    return peak / MIB


def peak_on_device(step: Callable[[], Tensor], device: torch.device) -> float:
    """Above what was allocated before the step."""
    module = torch.get_device_module(device)
    module.synchronize()
    module.reset_peak_memory_stats()
    before = module.memory_allocated()
    step()
    module.synchronize()
    return (module.max_memory_allocated() - before) / MIB


def measure(settings: section.Settings) -> Sequence[Row]:
    """One row; the gradients of the step before are there when it begins."""
    reference, subject = torch.device(settings.reference), torch.device(settings.subject)
    backend = "inductor" if settings.inductor else None
    steps = {
        "Inductor" if settings.inductor else "eager": step_of(GPT, reference, backend),
        "compiled": step_of(GPT, subject, "neuron" if subject.type == "neuron" else "inductor"),
    }
    for step in steps.values():
        step()
    name = next(iter(steps))
    on_device = subject.type != "cpu"
    case = Case(
        name=GPT.name,
        unit="MiB",
        measure={
            name: lambda: peak_on_cpu(steps[name]),
            "compiled": lambda: (peak_on_device if on_device else lambda s, _: peak_on_cpu(s))(
                steps["compiled"], subject
            ),
        },
        threads=settings.threads,
        bound=BOUND if settings.inductor else None,
        repetitions=1 if settings.quick else 3,
        warmup=1,
    )
    return [run_case(case)]


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    section.main(measure, __doc__, argv)


if __name__ == "__main__":
    main()
