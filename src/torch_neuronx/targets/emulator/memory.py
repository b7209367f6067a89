"""Where intermediate results lie: one block of memory, in which those that live at the same time do not overlap."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["ALIGNMENT", "plan_arena"]

# Of every buffer: a cache line.
ALIGNMENT = 64


def plan_arena(lives: Sequence[tuple[int, int, int]]) -> tuple[list[int], int]:
    """Offsets of buffers (bytes, first step, last step), and the size of the block.

    Greedy by size, as in Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference" (2020): large
    buffers first, each at the lowest place that is free during its life.
    """
    offsets = [0] * len(lives)
    placed: list[tuple[int, int, int, int]] = []  # offset, end, first, last; by offset
    total = 0
    for k in sorted(range(len(lives)), key=lambda k: (-lives[k][0], lives[k][1])):
        nbytes, first, last = lives[k]
        nbytes = -(-nbytes // ALIGNMENT) * ALIGNMENT
        offset = 0
        for start, end, other_first, other_last in placed:
            if other_last < first or last < other_first:
                continue
            if start - offset >= nbytes:
                break
            offset = max(offset, end)
        offsets[k] = offset
        total = max(total, offset + nbytes)
        placed.append((offset, offset + nbytes, first, last))
        placed.sort()
    return offsets, total
