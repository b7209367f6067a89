"""What the attention kernels share: rows of matrices on chip, their transposes, and who sees whom."""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
from nki.tensor import NkiTensor

from .tiling import PARTITIONS, psum, sbuf, spans

__all__ = ["Visibility", "load_rows", "rectangles", "store_rows", "transposed"]

# Added to a score that must not count. Times any sensible scale it stays far below LOWEST.
_MASKED = -1e37


def load_rows(matrix: NkiTensor, start: int, count: int) -> NkiTensor:
    """Rows of a matrix [rows, columns] in HBM as a tile [P, blocks, columns]: row start + 128 * b + p at [p, b].

    Partitions of the last block that have no row are not written.
    """
    columns = matrix.shape[1]
    whole, rest = divmod(count, PARTITIONS)
    tile = sbuf((min(count, PARTITIONS), whole + (rest > 0), columns), matrix.dtype)
    if whole:
        rows = matrix[start : start + whole * PARTITIONS, :]
        nisa.dma_copy(dst=tile[:, 0:whole, :], src=rows.reshape((whole, PARTITIONS, columns)).permute((1, 0, 2)))
    if rest:
        nisa.dma_copy(dst=tile[0:rest, whole, :], src=matrix[start + whole * PARTITIONS : start + count, :])
    return tile


def store_rows(matrix: NkiTensor, start: int, count: int, tile: NkiTensor) -> None:
    """The way back: rows start ... start + count of a matrix in HBM from a tile [P, blocks, columns]."""
    columns = matrix.shape[1]
    whole, rest = divmod(count, PARTITIONS)
    if whole:
        rows = matrix[start : start + whole * PARTITIONS, :]
        nisa.dma_copy(dst=rows.reshape((whole, PARTITIONS, columns)).permute((1, 0, 2)), src=tile[:, 0:whole, :])
    if rest:
        nisa.dma_copy(dst=matrix[start + whole * PARTITIONS : start + count, :], src=tile[0:rest, whole, :])


def rectangles(count: int) -> list[tuple[int, int, int]]:
    """(block, blocks, rows) of a tile of `count` rows: the full blocks, and the one that is not."""
    whole, rest = divmod(count, PARTITIONS)
    return [r for r in ((0, whole, PARTITIONS), (whole, 1, rest)) if r[1] and r[2]]


def transposed(tile: NkiTensor, count: int) -> NkiTensor:
    """A tile [P, blocks, columns] of `count` rows, as :func:`load_rows` makes it, as [columns, count].

    The Tensor engine transposes blocks of 128 x 128 into a bank of PSUM, which leaves it with one copy.
    """
    columns = tile.shape[2]
    result = sbuf((columns, count), tile.dtype)
    for start, size in spans(count, 4 * PARTITIONS):
        bank = psum((columns, size), tile.dtype)
        for row, rows in spans(size, PARTITIONS):
            nisa.nc_transpose(
                dst=bank[:, row : row + rows],
                data=tile[0:rows, (start + row) // PARTITIONS, :],
                engine=nisa.engine.tensor,
            )
        nisa.tensor_copy(dst=result[:, start : start + size], src=bank, engine=nisa.engine.vector)
    return result


class Visibility:
    """Which keys a query sees: query i sees key j if -left <= j - (i + offset) <= right; -1 is no limit.

    Hidden scores get a large negative number added by the Tensor engine: identity x mask, accumulated onto the scores
    in PSUM. That costs one matmul for each block of 128 x 128 that a limit passes through, and nothing on the engines
    that attention keeps busiest, Vector and Scalar.
    """

    def __init__(self, left: int, right: int, offset: int) -> None:
        self.left = left
        self.right = right
        self.offset = offset
        self._identity: NkiTensor | None = None
        self._masks: dict[tuple[int | None, int | None], NkiTensor] = {}

    def keys(self, row: int, rows: int, keys: int) -> tuple[int, int]:
        """Range of the keys that some of the queries see, its start a multiple of 128; empty: (0, 0)."""
        start, stop = 0, keys
        if self.left >= 0:
            start = max(0, row + self.offset - self.left) // PARTITIONS * PARTITIONS
        if self.right >= 0:
            stop = min(keys, row + rows - 1 + self.offset + self.right + 1)
        # What lies left of the limit in the first block does not make it visible.
        hidden = self.left >= 0 and stop <= row + self.offset - self.left
        return (0, 0) if stop <= start or hidden else (start, stop)

    def blind(self, queries: int, keys: int) -> bool:
        """Whether there are queries that see no key."""
        early = self.right >= 0 and self.offset + self.right < 0
        late = self.left >= 0 and queries - 1 + self.offset - self.left >= keys
        return early or late

    def hide(self, scores: NkiTensor, row: int, key: int) -> None:
        """Adds the masks to scores of queries from `row` and keys from `key` (a multiple of 128), in PSUM."""
        rows, keys = scores.shape
        for column, columns in spans(keys, PARTITIONS):
            # Column c of the block and row p: c - p - distance is the j - (i + offset) of above.
            distance = row + self.offset - key - column
            right = distance + self.right if 0 <= self.right < columns - 1 - distance else None
            left = self.left - distance if 0 <= self.left < rows - 1 + distance else None
            if right is None and left is None:
                continue
            mask = self._mask(right, left)
            nisa.nc_matmul(
                dst=scores[:, column : column + columns],
                stationary=self._ones_on_diagonal()[0:rows, 0:rows],
                moving=mask[0:rows, 0:columns],
                accumulate=True,
            )

    def _ones_on_diagonal(self) -> NkiTensor:
        if self._identity is None:
            self._identity = self._tile(1.0)
            _select(self._identity, 1, 0, 0.0, nl.equal)
        return self._identity

    def _mask(self, right: int | None, left: int | None) -> NkiTensor:
        """128 x 128: hidden where c > p + right, or c < p - left."""
        if (right, left) not in self._masks:
            mask = self._tile(0.0)
            if right is not None:
                _select(mask, 1, right, _MASKED)
            if left is not None:
                _select(mask, -1, left, _MASKED)
            self._masks[right, left] = mask
        return self._masks[right, left]

    @staticmethod
    def _tile(value: float) -> NkiTensor:
        tile = sbuf((PARTITIONS, PARTITIONS), nl.bfloat16)
        nisa.memset(dst=tile, value=value)
        return tile


def _select(tile: NkiTensor, sign: int, offset: int, otherwise: float, op: Any = nl.greater_equal) -> None:
    """Keeps elements where sign * (p - c) + offset <op> 0; all others become `otherwise`."""
    nisa.affine_select(
        dst=tile,
        pattern=[[-sign, PARTITIONS]],
        channel_multiplier=sign,
        offset=offset,
        on_true_tile=tile,
        on_false_value=otherwise,
        cmp_op=op,
    )
