"""Replays of captured graphs against the same work launched op by op, in microseconds.

`--part` chooses: `host` is the time on the launching thread, in bursts that nobody waits for; `call` is one call and
the wait for it, in a loop; `step` is a training step, five to a wait.
"""

import argparse
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn

from benchmarks import section
from benchmarks.interleave import Case, Row, run_case
from benchmarks.window import same_bits

Function = Callable[..., Any]
# Makes, for a device, a function that does the work and returns its results without waiting for them. What the work
# computes from tensors goes through the second argument, which may compile it.
Maker = Callable[[torch.device, Callable[[Function], Function]], Callable[[], Sequence[Tensor]]]


def as_it_is(function: Function) -> Function:
    """Nothing is compiled."""
    return function


def ten_ops(x: Tensor, y: Tensor) -> Tensor:
    """Ten pointwise ops."""
    h = x * y + 1
    h = (h - y) * 0.5
    h = torch.relu(h + x) * y
    return (h * h - x) + y


def pointwise(device: torch.device, prepare: Callable[[Function], Function]) -> Callable[[], Sequence[Tensor]]:
    """Ten pointwise ops on 64x64 float32."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(64, 64, generator=generator).to(device) for _ in range(2))
    function = prepare(ten_ops)
    return lambda: (function(x, y),)


def training(make: Callable[..., torch.optim.Optimizer]) -> Maker:
    """A step of an MLP of seven linear layers, batch 32, width 64."""

    def make_step(device: torch.device, prepare: Callable[[Function], Function]) -> Callable[[], Sequence[Tensor]]:
        torch.manual_seed(0)
        layers = [part for _ in range(6) for part in (nn.Linear(64, 64), nn.ReLU())]
        model = prepare(nn.Sequential(*layers, nn.Linear(64, 10)).to(device))
        x, target = torch.randn(32, 64).to(device), torch.randint(0, 10, (32,)).to(device)
        optimizer = make(model.parameters(), device)

        def step() -> Sequence[Tensor]:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), target)
            loss.backward()
            optimizer.step()
            return (loss.detach(),)

        return step

    return make_step


def adam(parameters: object, device: torch.device) -> torch.optim.Optimizer:
    """As each device wants it in a loop: `capturable` where graphs are."""
    return torch.optim.Adam(parameters, lr=1e-3, foreach=True, capturable=device.type != "cpu")  # type: ignore[arg-type]


def sgd(parameters: object, device: torch.device) -> torch.optim.Optimizer:
    """Gradient descent with momentum."""
    return torch.optim.SGD(parameters, lr=1e-2, momentum=0.9, foreach=True)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Work:
    """One line of the table."""

    name: str
    make: Maker
    calls_per_wait: int
    bound: float | None  # replay / CPU eager
    against: float | None  # replay / eager on the device
    against_inductor: float | None = None
    waits: int = 1  # of one measurement; 0: the wait is not part of it
    exact: bool = True  # the device's eager results equal the CPU's to the bit


PARTS: dict[str, tuple[Work, ...]] = {
    "host": (Work("10 pointwise ops, 64x64", pointwise, 200, None, 0.5, waits=0),),
    "call": (Work("10 pointwise ops, 64x64", pointwise, 1, None, 0.5, against_inductor=0.5, waits=50),),
    "step": (
        Work("MLP of 7 linears, SGD", training(sgd), 5, 0.8, 0.5),
        Work("MLP of 7 linears, Adam", training(adam), 5, 0.8, 0.5, exact=False),
    ),
}


def captured(work: Callable[[], Sequence[Tensor]]) -> Callable[[], Sequence[Tensor]]:
    """A function that replays the work, after two warm-up runs."""
    side = torch.neuron.Stream()
    with torch.neuron.stream(side):
        for _ in range(2):
            work()
    torch.neuron.synchronize()
    graph = torch.neuron.NeuronGraph()
    with torch.neuron.graph(graph):
        results = work()

    def replay(_static: object = work) -> Sequence[Tensor]:  # the graph does not keep the tensors that it reads
        graph.replay()
        return results

    return replay


def measured(work: Work, function: Callable[[], Sequence[Tensor]], device: torch.device) -> Callable[[], float]:
    """Microseconds per call."""
    synchronize = section.synchronizer(device)
    rounds = max(work.waits, 1)

    def measure() -> float:
        synchronize()
        start = time.perf_counter()
        for _ in range(rounds):
            results = [function() for _ in range(work.calls_per_wait)]  # held: the device would not write them else
            if work.waits:
                synchronize()
        elapsed = time.perf_counter() - start
        synchronize()
        del results
        return elapsed / (rounds * work.calls_per_wait) * 1e6

    return measure


def require_same(work: Work, device: torch.device) -> None:
    """Raises when replays do not give the bits of eager mode on the device, call by call."""
    eager, replay = work.make(device, as_it_is), captured(work.make(device, as_it_is))
    for _ in range(2):  # the warm-up of the capture
        eager()
    for number in range(3):
        actual, expected = replay(), eager()
        if not same_bits(actual, expected):
            raise AssertionError(f"{work.name}: replay {number} does not give the bits of eager mode")


def measure_work(work: Work, settings: section.Settings) -> Row:
    """Checks and measures one line."""
    cpu, device = torch.device(settings.reference), torch.device(settings.subject)
    require_same(work, device)
    peers = {f"{settings.reference} eager": measured(work, work.make(cpu, as_it_is), cpu)}
    against: dict[str, float | None] = {}
    if settings.inductor and work.against_inductor is not None:
        compiled = functools.partial(torch.compile, backend="inductor", dynamic=False)
        peers["Inductor"] = measured(work, work.make(cpu, compiled), cpu)
        against["Inductor"] = work.against_inductor
    peers[f"{settings.subject} eager"] = measured(work, work.make(device, as_it_is), device)
    against[f"{settings.subject} eager"] = work.against
    peers["replay"] = measured(work, captured(work.make(device, as_it_is)), device)
    case = Case(
        name=work.name,
        unit="us",
        measure=peers,
        threads=settings.threads,
        bound=work.bound,
        repetitions=3 if settings.quick else 200,
        warmup=2 if settings.quick else 20,
        against=against,
    )
    return run_case(case)


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--part", choices=tuple(PARTS), default="call")
    arguments, rest = parser.parse_known_args(argv)
    part: str = arguments.part

    def measure(settings: section.Settings) -> Sequence[Row]:
        works = track(PARTS[part], f"graphs, {part}", console=Console(stderr=True), transient=True)
        return [measure_work(work, settings) for work in works]

    section.main(measure, __doc__, rest)


if __name__ == "__main__":
    main()
