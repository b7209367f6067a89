"""Matrix product of any sizes."""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl
from nki.tensor import NkiTensor

from .tiling import (
    BANK_COLUMNS,
    PARTITIONS,
    drain,
    load_contraction,
    load_row,
    load_transposed,
    psum,
    sbuf,
    spans,
    store,
)

__all__ = ["matmul_kernel"]

# A block of the product: rows, and bytes of a row. While it is summed up the two operands' parts of depth K and, where
# K is deeper than that, fp32 sums of the block stay in SBUF: 32 + 64 + 64 KiB of each partition with the parts that are
# loaded next. For bf16, 2 K (1024 + 2048) bytes come from HBM for 2 K 1024 x 2048 operations, 680 for each byte; the
# Tensor engine needs 220 (trn2).
_ROWS = 1024
_ROW_BYTES = 4096
_DEPTH = 1024


@nki.jit
def matmul_kernel(
    a: NkiTensor,
    b: NkiTensor,
    bias: NkiTensor | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> NkiTensor:
    """`a @ b + bias`, with sums in fp32 that are rounded once, to the type of `a`.

    Args:
        a: (M, K), or (K, M) with `transpose_a`; bf16, fp16 or fp32. M, K and N may have any size from 1 on.
        b: (K, N), or (N, K) with `transpose_b` (as torch.nn.Linear keeps its weight); the type of `a`.
        bias: (N,), or None.

    Returns:
        (M, N).

    The Tensor engine contracts over partitions, so that (K, M) and (K, N) are loaded as they are and the other two
    layouts are transposed by it, once for each block they are part of: 128 / N_block + 128 / M_block of the time of the
    products, 6 % for `a` and 12 % for `b`. A stationary tile (128 of K, 128 of M) meets moving ones of 512 columns, and
    sums of a depth of 1024 are gathered in PSUM, deeper ones in SBUF. Modelled on trn2, large products are limited by
    the Tensor engine: bf16 takes 512 of its cycles for 128 x 128 x 512 multiplications, fp32 four times as many.
    """
    depth, rows = a.shape if transpose_a else (a.shape[1], a.shape[0])
    columns = b.shape[0] if transpose_b else b.shape[1]
    result = nl.ndarray((rows, columns), dtype=a.dtype, buffer=nl.shared_hbm)
    widths = spans(columns, _ROW_BYTES // a.dtype.itemsize)
    depths = spans(depth, _DEPTH)
    for n0, n in widths:
        offsets = None if bias is None else load_row(bias[n0 : n0 + n], min(rows, PARTITIONS))
        for m0, m in spans(rows, _ROWS):
            # For each 128 rows: their sums so far.
            sums: list[NkiTensor | None] = [None] * len(spans(m, PARTITIONS))
            for k0, k in depths:
                last = k0 + k == depth
                if transpose_b:
                    right = load_transposed(b[n0 : n0 + n, k0 : k0 + k])
                else:
                    right = load_contraction(b[k0 : k0 + k, n0 : n0 + n])
                if transpose_a:
                    left = load_contraction(a[k0 : k0 + k, m0 : m0 + m])
                else:
                    left = load_transposed(a[m0 : m0 + m, k0 : k0 + k])
                for i, (start, p) in enumerate(spans(m, PARTITIONS)):
                    tiles = [tile[:, start : start + p] for tile in left]
                    target = sbuf((p, n), a.dtype) if last else sums[i] or sbuf((p, n))
                    _add_products(target, sums[i], tiles, right, offsets)
                    if last:
                        store(result[m0 + start : m0 + start + p, n0 : n0 + n], target)
                    else:
                        sums[i] = target
    return result


def _add_products(
    target: NkiTensor,
    before: NkiTensor | None,
    left: list[NkiTensor],
    right: list[NkiTensor],
    offsets: NkiTensor | None,
) -> None:
    """`target = before + left @ right`, or with `offsets` instead of `before` where nothing has been summed up."""
    p, columns = target.shape
    if before is None and offsets is not None:
        before = offsets[0:p, :]
    for turn, (start, count) in enumerate(spans(columns, BANK_COLUMNS)):
        bank = psum((p, count))
        for k, (stationary, moving) in enumerate(zip(left, right, strict=True)):
            nisa.nc_matmul(bank, stationary, moving[:, start : start + count], accumulate=k > 0)
        part = target[:, start : start + count]
        if before is None:
            drain(part, bank, turn)
        else:
            nisa.tensor_tensor(part, bank, before[:, start : start + count], op=nl.add)
