"""Running sums, along the free dimension and along the partitions."""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl
from nki.tensor import NkiTensor

from .tiling import BANK_COLUMNS, PARTITIONS, load, psum, sbuf, spans, store

__all__ = ["cumsum_columns_kernel", "cumsum_rows_kernel"]

_PIECE = 2048


@nki.jit
def cumsum_columns_kernel(x: NkiTensor, reverse: bool = False) -> NkiTensor:
    """Running sums along dimension 1: `y[r, c] = x[r, 0] + ... + x[r, c]`, in fp32, each rounded once.

    Args:
        x: (rows, columns) of bf16, fp16 or fp32, any sizes from 1 on.
        reverse: sums from the other end, `x[r, c] + ... + x[r, columns - 1]`: the gradient.

    Returns:
        As `x`.

    128 rows at a time, one per partition, in pieces of 2048 columns: one scan of the Vector engine each (2 cycles an
    element), that begins with the last sum of the piece before. The reverse reads and writes with a negative stride.
    """
    rows, columns = x.shape
    y = nl.ndarray((rows, columns), dtype=x.dtype, buffer=nl.shared_hbm)
    pieces = spans(columns, _PIECE)
    longest = pieces[0][1]
    for start, p in spans(rows, PARTITIONS):
        ones = sbuf((p, longest))
        nisa.memset(ones, 1.0)
        carry: NkiTensor | float = 0.0
        for c0, c in reversed(pieces) if reverse else pieces:
            piece, sums = load(x[start : start + p, c0 : c0 + c]), sbuf((p, c))
            given, made = (_backwards(piece), _backwards(sums)) if reverse else (piece, sums)
            nisa.tensor_tensor_scan(made, ones[:, 0:c], given, initial=carry, op0=nl.multiply, op1=nl.add)
            carry = sums[:, 0:1] if reverse else sums[:, c - 1 : c]
            store(y[start : start + p, c0 : c0 + c], _rounded(sums, x))
    return y


@nki.jit
def cumsum_rows_kernel(x: NkiTensor, reverse: bool = False) -> NkiTensor:
    """Running sums along dimension 0: `y[r, c] = x[0, c] + ... + x[r, c]`, in fp32, each rounded once.

    Args:
        x: (rows, columns) of bf16, fp16 or fp32, any sizes from 1 on.
        reverse: sums from the other end, `x[r, c] + ... + x[rows - 1, c]`: the gradient.

    Returns:
        As `x`.

    Rows lie on partitions, so a sum over them is a product: with a triangle of ones on the Tensor engine, [128, 128] x
    [128, 512]. What came before is one more product onto the same bank of PSUM, with a matrix that puts the last row of
    the sums so far onto all rows. Modelled on trn2: bound by the Tensor engine for fp32, by DMA for 16 bits.
    """
    rows, columns = x.shape
    y = nl.ndarray((rows, columns), dtype=x.dtype, buffer=nl.shared_hbm)
    blocks = spans(rows, PARTITIONS)
    triangle = _triangle(x, reverse)
    for c0, c in spans(columns, BANK_COLUMNS):
        # The sums of all rows before: one row, that a product with ones brings to all partitions.
        carry: NkiTensor | None = None
        ones = sbuf((1, PARTITIONS))
        nisa.memset(ones, 1.0)
        for r0, r in reversed(blocks) if reverse else blocks:
            piece = load(x[r0 : r0 + r, c0 : c0 + c])
            sums = psum((r, c))
            nisa.nc_matmul(sums, triangle[0:r, 0:r], piece, accumulate=False)
            if carry is not None:
                nisa.nc_matmul(sums, ones[:, 0:r], carry, accumulate=True)
            out = sbuf((r, c), x.dtype)
            nisa.tensor_copy(out, sums)
            if len(blocks) > 1:
                carry = _total(piece, carry)
            store(y[r0 : r0 + r, c0 : c0 + c], out)
    return y


def _total(piece: NkiTensor, carry: NkiTensor | None) -> NkiTensor:
    """Sums of all rows of a tile and of what came before, on partition 0, where a matmul can read it again."""
    r, c = piece.shape
    total = psum((1, c))
    ones = sbuf((r, 1), piece.dtype)
    nisa.memset(ones, 1.0)
    nisa.nc_matmul(total, ones, piece, accumulate=False)
    result = sbuf((1, c))
    if carry is None:
        nisa.tensor_copy(result, total)
    else:
        nisa.tensor_tensor(result, total, carry, op=nl.add)
    return result


def _triangle(x: NkiTensor, reverse: bool) -> NkiTensor:
    """Ones where row k counts for sum m: k <= m, or k >= m."""
    tile = sbuf((PARTITIONS, PARTITIONS), x.dtype)
    nisa.memset(tile, 1.0)
    sign = -1 if reverse else 1
    # sign * (m - k) >= 0, k on the partitions.
    nisa.affine_select(
        dst=tile,
        pattern=[[sign, PARTITIONS]],
        channel_multiplier=-sign,
        on_true_tile=tile,
        on_false_value=0.0,
        cmp_op=nl.greater_equal,
    )
    return tile


def _backwards(tile: NkiTensor) -> NkiTensor:
    """A tile (p, n), its columns from the last to the first."""
    p, n = tile.shape
    return tile.ap([[n, p], [-1, n]], offset=n - 1)


def _rounded(sums: NkiTensor, x: NkiTensor) -> NkiTensor:
    if x.dtype == nl.float32:
        return sums
    out = sbuf(sums.shape, x.dtype)
    nisa.tensor_copy(out, sums)
    return out
