"""The first call with a new shape, wall time in milliseconds, the wait for the device included.

Each measurement takes a number of elements that the process has not seen before, so no launch is planned and no region
is known. Inductor takes no part: it would compile for seconds.
"""

import itertools
from collections.abc import Callable, Sequence

import torch

from benchmarks import section
from benchmarks.interleave import Case, Row, run_case
from benchmarks.pointwise_workloads import CHAIN, ELEMENTS
from benchmarks.window import Peer, against, peers, same_bits

BOUND = 0.25
STEP = 64  # elements from one size to the next: all sizes are about the same, and rows stay aligned


def first_calls(peer: Peer, others: int, index: int) -> Callable[[], float]:
    """A function that measures a call with a new size. The device's peers (`others` in all) share no size."""
    sizes = (ELEMENTS - STEP * number for number in itertools.count(index + 1, others))

    def measure() -> float:
        x = torch.ones(next(sizes)).to(peer.device)
        return peer.milliseconds(lambda: CHAIN.function(x), calls=1)

    return measure


def require_same_bits(taking_part: Sequence[Peer]) -> None:
    """Raises when a first call does not give the bits of the reference."""
    for index, peer in enumerate(taking_part[1:]):
        # Sizes that no measurement uses.
        x = torch.randn(ELEMENTS + STEP * (index + 1), generator=torch.Generator().manual_seed(index))
        with peer.scope():
            (result,) = CHAIN.function(x.to(peer.device))
        if not same_bits((result,), CHAIN.function(x)):
            raise AssertionError(f"the first call of {CHAIN.name} on {peer.name} does not give the reference's bits")


def measure(settings: section.Settings) -> Sequence[Row]:
    """One row."""
    taking_part = peers(settings)
    require_same_bits(taking_part)
    case = Case(
        name=CHAIN.name,
        unit="ms",
        measure={p.name: first_calls(p, len(taking_part), index) for index, p in enumerate(taking_part)},
        threads=settings.threads,
        bound=BOUND,
        repetitions=2 if settings.quick else 20,
        warmup=1 if settings.quick else 3,
        against=against(taking_part),
    )
    return [run_case(case)]


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    section.main(measure, __doc__, argv)


if __name__ == "__main__":
    main()
