"""The k largest elements of each row, with their places."""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl
from nki.tensor import NkiTensor

from .tiling import PARTITIONS, load, sbuf, spans, store

__all__ = ["LARGEST_K", "topk_kernel"]

LARGEST_K = 256

# What the Vector engine finds and searches in one instruction.
_ROUND = 8
_SHORTEST, _LONGEST = 8, 16384

_MINUS_INFINITY = float("-inf")


@nki.jit
def topk_kernel(x: NkiTensor, k: int) -> tuple[NkiTensor, NkiTensor]:
    """Largest elements of each row in descending order; of equal ones, the first comes first.

    Args:
        x: (rows, columns) of bf16, fp16 or fp32, any sizes from 1 on, without NaN.
        k: 1 to min(columns, 256).

    Returns:
        Values (rows, k) as `x`, and their places (rows, k) in int32. A row with fewer than k elements above -inf has
        no certain places for those that are -inf.

    128 rows at a time, one per partition. Each round is three passes of the Vector engine over the row: max8 finds the
    eight largest, nc_find_index8 their places, nc_match_replace8 takes them out. Rows of more than 16384 elements are
    searched in pieces, and the winners of all pieces once more, which gives places among the winners; GpSimd then
    looks up where those came from. Modelled time: 3 * ceil(k / 8) * columns cycles of Vector for each 128 rows.
    """
    rows = x.shape[0]
    values = nl.ndarray((rows, k), dtype=x.dtype, buffer=nl.shared_hbm)
    places = nl.ndarray((rows, k), dtype=nl.int32, buffer=nl.shared_hbm)
    for start, p in spans(rows, PARTITIONS):
        found = _search(x[start : start + p, :], k)
        for result, tile in zip((values, places), found, strict=True):
            out = sbuf((p, k), result.dtype)
            nisa.tensor_copy(out, tile[:, 0:k])
            store(result[start : start + p, :], out)
    return values, places


def _search(x: NkiTensor, k: int) -> tuple[NkiTensor, NkiTensor]:
    """Values in fp32 and places in uint32 of the k largest of up to 128 rows in HBM; k rounded up to eights."""
    p, columns = x.shape
    if columns <= _LONGEST:
        return _rounds(_padded(x), k)
    pieces = spans(columns, _LONGEST)
    wide = -(-k // _ROUND) * _ROUND
    values, places = sbuf((p, len(pieces) * wide)), sbuf((p, len(pieces) * wide), nl.uint32)
    for number, (start, count) in enumerate(pieces):
        best, where = _rounds(_padded(x[:, start : start + count]), k)
        at = slice(number * wide, (number + 1) * wide)
        nisa.tensor_copy(values[:, at], best)
        # Exact in fp32 up to 2**24 columns.
        nisa.tensor_scalar(places[:, at], where, op0=nl.add, operand0=float(start))
    best, where = _rounds(values, k)
    origins = sbuf(best.shape, nl.uint32)
    nisa.nc_n_gather(origins, places, where)
    return best, origins


def _padded(x: NkiTensor) -> NkiTensor:
    """Rows in fp32, at least as long as the search wants them."""
    p, columns = x.shape
    tile = sbuf((p, max(columns, _SHORTEST)))
    if columns < _SHORTEST:
        nisa.memset(tile, _MINUS_INFINITY)
    raw = load(x)
    nisa.tensor_copy(tile[:, 0:columns], raw)
    return tile


def _rounds(row: NkiTensor, k: int) -> tuple[NkiTensor, NkiTensor]:
    """The k largest of rows in SBUF, eight at a time; the rows are used up."""
    p = row.shape[0]
    wide = -(-k // _ROUND) * _ROUND
    values, places = sbuf((p, wide)), sbuf((p, wide), nl.uint32)
    for start in range(0, wide, _ROUND):
        best = values[:, start : start + _ROUND]
        nisa.max8(best, row)
        nisa.nc_find_index8(places[:, start : start + _ROUND], row, best)
        if start + _ROUND < wide:
            nisa.nc_match_replace8(row, row, best, imm=_MINUS_INFINITY)
    return values, places
