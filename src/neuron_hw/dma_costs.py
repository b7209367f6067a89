"""What a DMA transfer costs.

A transfer consists of elements, contiguous runs of bytes; the elements of a row of SBUF belong to one of the 16 DMA
engines, which serve 8 partitions each, and a transfer between HBM and HBM is dealt over all. An engine moves
`dma_rate` bytes per nanosecond; no element takes less than `dma_smallest` bytes do, and each contiguous run of the
memory that is read (or written, when that one is HBM) costs as much again. A transfer ends when its last engine has
written its semaphore. The engines get their parts `dma_stagger` apart; before the first byte goes `dma_start`, after
the last one `dma_completion`. Transfers of one queue start at least `dma_trigger` apart, or `dma_descriptors` when the
device makes their descriptors.
"""

from __future__ import annotations

from typing import NamedTuple

from .chips import Chip

__all__ = ["EngineShare", "dma_efficiency", "shares_of_rows", "transfer_time"]

_SEMAPHORE_BYTES = 4
# A run is not cut into smaller pieces than this, the size below which the guide calls transfers inefficient.
_SMALLEST_PIECE = 512


class EngineShare(NamedTuple):
    """What one DMA engine does for a transfer.

    Attributes:
        engine: its number.
        time: ns that it is busy.
        arrival: ns from the trigger until it begins, if it is free.
    """

    engine: int
    time: float
    arrival: float


def element_time(chip: Chip, size: int, share: float = 1.0) -> float:
    """ns that one engine takes to move an element of `size` bytes at a part `share` of its rate."""
    return max(size, chip.dma_smallest) / (chip.dma_rate * share)


def shares_of_rows(
    chip: Chip,
    first: int,
    rows: int,
    elements: int,
    size: int,
    runs: float | None = None,
    rate: float = 1.0,
    spread: bool = False,
) -> tuple[EngineShare, ...]:
    """The work of each engine for a transfer of `rows` rows of `elements` elements of `size` bytes.

    Args:
        first: partition of the first row.
        runs: contiguous runs per row in the memory that is read; less than 1 when rows follow each other there. As many
            as elements when not given.
        rate: part of the copying rate (transposition, arithmetic on the way).
        spread: rows lie in HBM on both sides, and are dealt over all engines.
    """
    engines = int(chip.dma_engines)
    per_engine = chip.partitions // engines
    overhead = element_time(chip, int(chip.dma_smallest))
    each = element_time(chip, size, rate) * elements + overhead * (elements if runs is None else runs)
    done = element_time(chip, _SEMAPHORE_BYTES)
    if spread:
        if rows == 1:  # one long run: a piece for each engine
            pieces = max(1, min(engines, elements * size // _SMALLEST_PIECE))
            return tuple(_share(chip, e, each / pieces + overhead + done) for e in range(pieces))
        counts = [rows // engines + (e < rows % engines) for e in range(engines)]
    else:
        counts = [0] * engines
        for e in range(first // per_engine, min((first + rows - 1) // per_engine + 1, engines)):
            counts[e] = min(first + rows, (e + 1) * per_engine) - max(first, e * per_engine)
    return tuple(_share(chip, e, n * each + done) for e, n in enumerate(counts) if n)


def _share(chip: Chip, engine: int, time: float) -> EngineShare:
    turn = int(chip.dma_engines) - 1 - engine
    return EngineShare(engine, time, float(chip.dma_start + turn * chip.dma_stagger))


def transfer_time(chip: Chip, shares: tuple[EngineShare, ...]) -> float:
    """ns from the trigger of a lone transfer until what waits for it starts."""
    return max(s.arrival + s.time for s in shares) + chip.dma_completion


def dma_efficiency(chip: Chip, size: int, busy: float) -> float:
    """Part of the rate that was reached: `size` bytes in `busy` ns of engine time."""
    return size / (busy * chip.dma_rate) if busy else 0.0
