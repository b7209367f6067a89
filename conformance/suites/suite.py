"""What all suites share: the same call made on the CPU and on the device, and the tally of its samples."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy
import torch
from torch import Tensor

from conformance.candidate import Candidate
from conformance.cases import Case
from conformance.compare import EXACT_RULE, Grade, Mismatch, Observation, Rule, ValueMismatch, compare, no_farther
from conformance.placement import Placement

SEED = 20240601
HOST = torch.device("cpu")

Item = TypeVar("Item")
T = TypeVar("T")
# Makes its inputs with the placement, calls the thing under test and says what can be seen afterwards.
Call = Callable[[Placement], Observation]


@dataclass(frozen=True)
class Options:
    """What the user can turn in a run."""

    max_samples: int = 32


@dataclass
class Tally:
    """What became of the samples of one case."""

    exact: int = 0
    close: int = 0
    failed: int = 0
    # Samples that the CPU itself refuses; they say nothing about the device.
    not_on_cpu: int = 0
    messages: list[str] = field(default_factory=list)

    @property
    def counted(self) -> int:
        return self.exact + self.close + self.failed

    def fail(self, sample: str, message: str) -> None:
        """Notes a sample that the CPU passes and the device does not."""
        self.failed += 1
        self.messages.append(f"{sample}: {message}")

    def keep(self, grade: Grade) -> None:
        """Notes a sample that passes."""
        if grade is Grade.EXACT:
            self.exact += 1
        else:
            self.close += 1


class Suite(Protocol):
    """A table of entries, each of which can be run in some variants and dtypes."""

    def cases(self) -> Iterator[Case]:
        """All cases, those of one entry next to each other."""

    def check(self, case: Case, candidate: Candidate, options: Options, check_values: bool) -> Tally:
        """Runs one case. Whatever the device does wrong ends up in the tally, not in an exception."""


def spread(items: Sequence[Item], limit: int) -> list[tuple[int, Item]]:
    """At most ``limit`` items with their positions: the first half of them in order, the rest evenly from what follows.

    Tables put the plain samples first and enumerate corner cases after them, sometimes in the thousands.
    """
    if len(items) <= limit:
        return list(enumerate(items))
    head = limit - limit // 2
    step = (len(items) - head) / (limit // 2)
    positions = [*range(head), *(head + int(step * index) for index in range(limit // 2))]
    return [(position, items[position]) for position in positions]


def describe(error: BaseException) -> str:
    """An exception as one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:600]


def settle(candidate: Candidate) -> None:
    """Lets the device forget a failed call: an error that nobody has been told yet must not hit the next sample."""
    for _ in range(2):
        try:
            candidate.synchronize()
        except Exception:  # noqa: BLE001 - the failure is in the tally already
            continue
        return


def seed_everything() -> None:
    """Seeds the generators that tables draw samples from."""
    random.seed(SEED)
    numpy.random.seed(SEED)
    torch.default_generator.manual_seed(SEED)


def cotangents(outputs: Sequence[Tensor], place: Placement) -> list[Tensor]:
    """What is fed into a backward pass: fixed random quarters, which every dtype holds without rounding."""
    source = torch.Generator().manual_seed(SEED)
    made: list[Tensor] = []
    for output in outputs:
        parts = torch.randint(-8, 9, (2, *output.shape), generator=source) / 4
        whole = torch.complex(parts[0], parts[1]) if output.is_complex() else parts[0]
        made.append(place(whole.to(output.dtype)))
    return made


def _seeded(call: Callable[[Placement], T], device: torch.device) -> T:
    place = Placement(device)
    place.seed(SEED)
    return call(place)


def _judge(
    call: Call, expected: Observation, actual: Observation, device: torch.device, check_values: bool, rule: Rule
) -> Grade:
    try:
        return compare(expected, actual, device, check_values, rule)
    except ValueMismatch:
        compare(expected, actual, device, check_values=False, rule=rule)
        try:
            place = Placement(HOST, widen=rule.coarse, into=rule.wide)
            place.seed(SEED)
            exact = call(place)
            near = no_farther(expected, actual, exact, rule)
        except Exception:  # noqa: BLE001 - without an exact answer the mismatch stands
            near = False
        if not near:
            raise
        return Grade.CLOSE


def against_cpu(
    entry: str,
    sample: str,
    call: Call,
    candidate: Candidate,
    tally: Tally,
    check_values: bool = True,
    on_device: Call | None = None,
    rule: Rule = EXACT_RULE,
) -> None:
    """Makes ``call`` on the CPU and, if that works, twice on the device, and notes in ``tally`` how they compare.

    Twice, because the first call with new shapes and dtypes may take another path than the ones that follow it.
    ``on_device`` is what the device does instead of ``call``.
    """
    try:
        expected = _seeded(call, HOST)
    except Exception:  # noqa: BLE001 - what the CPU refuses, for whatever reason, is not counted
        tally.not_on_cpu += 1
        return
    grade = Grade.EXACT
    for attempt in ("first call", "repeated call"):
        try:
            actual = candidate.run(entry, lambda: _seeded(on_device or call, candidate.device))
            candidate.synchronize()
            grade = max(grade, _judge(call, expected, actual, candidate.device, check_values, rule))
        except Mismatch as mismatch:
            tally.fail(sample, f"{attempt}: {mismatch}")
            return
        except Exception as error:  # noqa: BLE001 - any error is a verdict on the device
            tally.fail(sample, f"{attempt}: raised {describe(error)}")
            settle(candidate)
            return
    tally.keep(grade)


def same_error(
    entry: str,
    sample: str,
    call: Callable[[Placement], Any],
    expected: type[BaseException],
    accepts: Callable[[str], bool],
    candidate: Candidate,
    tally: Tally,
) -> None:
    """Checks that a wrong call fails on the device with the CPU's class of error and a message that ``accepts`` likes.

    The device may raise at the call or, as it runs behind the host, at the next synchronisation.
    """
    with warnings.catch_warnings():
        if issubclass(expected, Warning):
            warnings.simplefilter("error", expected)
        try:
            _seeded(call, HOST)
        except Exception as error:  # noqa: BLE001 - its class is what is examined
            if not (isinstance(error, expected) and accepts(str(error))):
                tally.not_on_cpu += 1
                return
            reference = type(error)
        else:
            tally.not_on_cpu += 1
            return
        for attempt in ("first call", "repeated call"):
            try:
                candidate.run(entry, lambda: _seeded(call, candidate.device))
                candidate.synchronize()
            except Exception as error:  # noqa: BLE001 - its class is what is examined
                if type(error) is not reference:
                    tally.fail(sample, f"{attempt}: raised {describe(error)} instead of {reference.__name__}")
                elif not accepts(str(error)):
                    tally.fail(sample, f"{attempt}: wording of {describe(error)}")
                else:
                    continue
            else:
                tally.fail(sample, f"{attempt}: raised nothing instead of {reference.__name__}")
            settle(candidate)
            return
    settle(candidate)
    tally.keep(Grade.EXACT)
