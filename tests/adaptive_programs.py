"""Programs for the fusion window: Python lines over a pool of tensors, run on the CPU and on the device and compared.

A program is text, so that one that fails can be replayed: its repr is a script to be run from this folder. Lines may
name `torch`, `F`, tensors and numbers that earlier lines made, and the methods of `Machine`. A line that raises is
noted and the program goes on, so every part of a program is a program too.
"""

import contextlib
import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from comparison import bits

# What a line may raise without being a mistake of this file.
EXPECTED_ERRORS = (RuntimeError, IndexError, ValueError, TypeError, NameError)

# Laid over the first elements of a drawn tensor: where rounding, ordering and sign rules show.
SPECIAL = (float("inf"), -0.0, float("nan"), 0.0, float("-inf"), 1e-42, -1e30, 65504.0, 1.0, -1e-5)


@dataclass(frozen=True, repr=False)
class Program:
    """Lines, and the seed of the device's generator."""

    lines: tuple[str, ...]
    seed: int

    def __repr__(self) -> str:
        lines = "".join(f"    {line!r},\n" for line in self.lines)
        return (
            "\nfrom adaptive_programs import Program, check\n\n"
            f'program = Program(seed={self.seed}, lines=(\n{lines}))\ncheck(program, "neuron")\n'
        )


def draw_values(seed: int, shape: tuple[int, ...], dtype: torch.dtype, special: bool) -> torch.Tensor:
    """A CPU tensor of normal numbers, small integers or booleans; with infinities and their like if `special`."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).to(dtype)
    if not dtype.is_floating_point:
        return torch.randint(-9, 10, shape, generator=generator).to(dtype)
    values = torch.randn(shape, generator=generator)
    if special:
        count = min(len(SPECIAL), values.numel())
        values.view(-1)[:count] = torch.tensor(SPECIAL[:count])
    return values.to(dtype)


@functools.cache
def side_stream() -> torch.Stream:
    # One for all programs: each stream of the pool has a worker thread.
    return torch.neuron.Stream(0)


class Machine:
    """What the lines of a program call besides PyTorch. Stream 0 is the default one, stream 1 another."""

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self.asynchronous = self.device.type != "cpu"
        self.streams = (torch.neuron.default_stream(0), side_stream()) if self.asynchronous else ()

    def make(self, seed: int, shape: tuple[int, ...], dtype: torch.dtype, special: bool = False) -> torch.Tensor:
        """A tensor on the device, with the same values on every device."""
        return draw_values(seed, shape, dtype, special).to(self.device)

    def on(self, stream: int) -> contextlib.AbstractContextManager[Any]:
        """The stream is current inside."""
        return torch.neuron.stream(self.streams[stream]) if self.asynchronous else contextlib.nullcontext()

    def wait(self, stream: int, other: int) -> None:
        """What comes on `stream` runs after what has been launched on `other`."""
        if self.asynchronous:
            self.streams[stream].wait_stream(self.streams[other])

    def mark(self, stream: int) -> torch.Event | None:
        """An event recorded on the stream."""
        return self.streams[stream].record_event() if self.asynchronous else None

    def hold(self, stream: int, event: torch.Event | None) -> None:
        """What comes on `stream` runs after `event`."""
        if event is not None:
            self.streams[stream].wait_event(event)

    def keep(self, tensor: torch.Tensor, stream: int) -> None:
        """The tensor's memory is not used again before `stream` is done with it."""
        if self.asynchronous:
            tensor.record_stream(self.streams[stream])

    def names(self) -> dict[str, Any]:
        """The namespace that a program starts with."""
        own = {name: getattr(self, name) for name in ("make", "on", "wait", "mark", "hold", "keep")}
        return {"torch": torch, "F": F, **own}

    def fall_behind(self) -> None:
        """Gives the workers something to do for a few ms, so that a program launched now meets a full window."""
        for stream in range(len(self.streams)):
            with self.on(stream):
                x = torch.ones(384, 384, device=self.device)
                torch.mm(x, x)

    def synchronize(self) -> None:
        if self.asynchronous:
            torch.accelerator.synchronize()


@dataclass
class Outcome:
    """What is left of a program: tensors and numbers alive at its end, and which line raised what."""

    values: dict[str, torch.Tensor] = field(default_factory=dict)
    strides: dict[str, tuple[int, ...]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)


@functools.lru_cache(maxsize=4096)
def compiled(line: str) -> Any:
    return compile(line, "<program>", "exec")


def execute(line: str, names: dict[str, Any]) -> str | None:
    """Runs a line; the class of the error that it raised, if any."""
    try:
        exec(compiled(line), names)
    except EXPECTED_ERRORS as error:
        return type(error).__name__
    return None


def run(program: Program, device: torch.device | str, behind: bool = False) -> Outcome:
    """Runs a program on a device; `behind`: while the device is busy with something else."""
    machine, outcome = Machine(device), Outcome()
    names = machine.names()
    torch.manual_seed(program.seed)
    if behind:
        machine.fall_behind()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch, about variances of one element and the like
        for number, line in enumerate(program.lines):
            error = execute(line, names)
            if error:
                outcome.errors.append(f"line {number}: {error}")
    try:
        machine.synchronize()
    except EXPECTED_ERRORS as error:
        outcome.errors.append(f"at the end: {type(error).__name__}")
    for name, value in names.items():
        if isinstance(value, torch.Tensor):
            outcome.strides[name] = value.stride()
            outcome.values[name] = value.cpu()
        elif isinstance(value, int | float):
            outcome.values[name] = torch.tensor(value)
    return outcome


def _plain_bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor's elements with all NaNs alike."""
    if tensor.is_floating_point():
        tensor = torch.where(tensor.isnan(), float("nan"), tensor)
    return bits(tensor)


def differences(actual: Outcome, expected: Outcome) -> list[str]:
    """What is not the same, in words; nothing when all is."""
    found = []
    if actual.errors != expected.errors:
        found.append(f"errors {actual.errors}, expected {expected.errors}")
    if actual.values.keys() != expected.values.keys():
        found.append(f"alive {sorted(actual.values)}, expected {sorted(expected.values)}")
    for name in actual.values.keys() & expected.values.keys():
        a, e = actual.values[name], expected.values[name]
        facts = (a.dtype, tuple(a.shape), actual.strides.get(name))
        wanted = (e.dtype, tuple(e.shape), expected.strides.get(name))
        if facts != wanted:
            found.append(f"{name}: {facts}, expected {wanted}")
        elif not torch.equal(_plain_bits(a), _plain_bits(e)):
            wrong = [i for i, (x, y) in enumerate(zip(_rows(a), _rows(e), strict=True)) if not torch.equal(x, y)]
            x, y = a.flatten()[wrong[0]].item(), e.flatten()[wrong[0]].item()
            found.append(
                f"{name}, {e.dtype} of {tuple(e.shape)}: {len(wrong)} of {e.numel()} elements differ, the first is "
                f"number {wrong[0]}: {x!r}, expected {y!r}"
            )
    return sorted(found)


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    return _plain_bits(tensor).view(tensor.numel(), -1)


# How a program is run with the window on. The first run of a signature is synchronous, so one with the window off comes
# before; then with a full queue and with a draining one, and again, since regions that run often may change tiers.
RUNS = (True, False, True)


def failure(program: Program, device: torch.device | str, runs: tuple[bool, ...]) -> str | None:
    """What is not as CPU eager has it, if anything: with the window off, and in each of the runs with it on."""
    expected = run(program, "cpu")
    with torch.neuron.adaptive_eager(False):
        if found := differences(run(program, device), expected):
            return "\n".join(["with the window off:", *found])
    with torch.neuron.adaptive_eager(True):
        for number, behind in enumerate(runs, 1):
            if found := differences(run(program, device, behind), expected):
                return "\n".join([f"run {number} with the window on:", *found])
    return None


def reduced(program: Program, fails: Callable[[Program], bool]) -> Program:
    """A shorter program that fails too.

    Only for one stream: without one of its lines a program on two streams may be one that waits too little. So one on
    two is returned as it is, unless it fails on one as well.
    """
    lines = [line.removeprefix("with on(1): ") for line in program.lines if not _orders_streams(line)]
    best = Program(tuple(lines), program.seed)
    if best != program and not fails(best):
        return program
    size = len(best.lines)
    while size:
        start, shorter = 0, False
        while start < len(best.lines):
            candidate = Program(best.lines[:start] + best.lines[start + size :], program.seed)
            if fails(candidate):
                best, shorter = candidate, True
            else:
                start += size
        size = size if shorter and size == 1 else size // 2
    return best


def _orders_streams(line: str) -> bool:
    return line.startswith(("wait(", "hold(", "keep(")) or " = mark(" in line


def check(program: Program, device: torch.device | str, runs: tuple[bool, ...] = RUNS) -> None:
    """The program gives the bits and the errors of CPU eager with the window off, and in each run with it on."""
    what = failure(program, device, runs)
    if what is None:
        return
    short = reduced(program, lambda candidate: failure(candidate, device, runs) is not None)
    why = failure(short, device, runs) or "does not fail each time: a matter of timing"
    raise AssertionError(f"{what}\n{program!r}\nReduced, {why}\n{short!r}")
