"""How the kernels cut arrays into tiles, and what they all do with tiles: loads, transposes, sums over partitions."""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl
from nki.element_types import DType
from nki.tensor import NkiTensor

__all__ = [
    "BANK_COLUMNS", "PARTITIONS", "drain", "flat", "load", "load_contraction", "load_row", "load_transposed", "psum",
    "sbuf", "spans", "store", "sum_over_partitions",
]  # fmt: skip

PARTITIONS = 128  # rows of a tile: partitions of SBUF and PSUM, rows and columns of the Tensor engine
BANK_COLUMNS = 512  # fp32 elements per partition in a bank of PSUM, which is what one matmul writes
_BANK_BYTES = 2048


def spans(size: int, step: int) -> list[tuple[int, int]]:
    """(start, count) of the pieces of `step` that `size` elements fall into; the last one is what is left."""
    return [(start, min(step, size - start)) for start in range(0, size, step)]


def sbuf(shape: tuple[int, ...], dtype: DType = nl.float32) -> NkiTensor:
    """A fresh tile in SBUF."""
    return nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)


def psum(shape: tuple[int, ...], dtype: DType = nl.float32) -> NkiTensor:
    """A fresh tile in PSUM."""
    return nl.ndarray(shape, dtype=dtype, buffer=nl.psum)


def load(source: NkiTensor, dtype: DType | None = None) -> NkiTensor:
    """A part of a tensor in HBM as a tile: dimension 0 becomes the partition."""
    tile = sbuf(source.shape, dtype or source.dtype)
    nisa.dma_copy(dst=tile, src=source)
    return tile


def store(destination: NkiTensor, tile: NkiTensor) -> None:
    """A tile in SBUF to a part of a tensor in HBM."""
    nisa.dma_copy(dst=destination, src=tile)


def load_row(source: NkiTensor, rows: int) -> NkiTensor:
    """A vector in HBM, (n,), on each of `rows` partitions: engines cannot broadcast along them, DMA can."""
    return load(source.reshape((1, source.size)).broadcast(0, rows))


def flat(source: NkiTensor, start: int, count: int) -> NkiTensor:
    """Elements of a vector in HBM, (n,), as a column: one per partition."""
    return source[start : start + count].reshape((count, 1))


def drain(destination: NkiTensor, sums: NkiTensor, turn: int) -> None:
    """Copies from PSUM to SBUF, in turns on the Vector and the Scalar engine, which share the work so."""
    if turn % 2 == 0:
        nisa.tensor_copy(destination, sums)
    else:
        nisa.activation(destination, nl.copy, sums)


def load_contraction(source: NkiTensor) -> list[NkiTensor]:
    """A matrix (K, columns) in HBM as tiles of up to 128 rows, which is how the Tensor engine contracts over K.

    All full tiles come with one transfer, in which each partition gets a row of each of them.
    """
    rows = source.shape[0]
    count, rest = divmod(rows, PARTITIONS)
    tiles = []
    if count:
        block = source[0 : count * PARTITIONS, :]
        full = load(block.rearrange((("t", "p"), "c"), ("p", "t", "c"), {"p": PARTITIONS}))
        tiles += [full[:, i, :] for i in range(count)]
    if rest:
        tiles.append(load(source[count * PARTITIONS : rows, :]))
    return tiles


def load_transposed(source: NkiTensor) -> list[NkiTensor]:
    """A matrix (rows, K) in HBM as tiles (up to 128 of K, rows): what load_contraction gives of its transpose.

    The Tensor engine transposes 128 x 128 elements at a time, bit for bit and for every type; as many of them as fit
    into a bank of PSUM leave it with one copy.
    """
    rows, depth = source.shape
    count, rest = divmod(depth, PARTITIONS)
    full = sbuf((PARTITIONS, count, rows), source.dtype) if count else None
    last = sbuf((rest, rows), source.dtype) if rest else None
    turn = 0
    for start, p in spans(rows, PARTITIONS):
        tile = load(source[start : start + p, :])
        if full is not None:
            for first, group in spans(count, _BANK_BYTES // (PARTITIONS * source.dtype.itemsize)):
                bank = psum((PARTITIONS, group, p), source.dtype)
                for i in range(group):
                    k = (first + i) * PARTITIONS
                    nisa.nc_transpose(bank[:, i, :], tile[:, k : k + PARTITIONS])
                drain(full[:, first : first + group, start : start + p], bank, turn)
                turn += 1
        if last is not None:
            bank = psum((rest, p), source.dtype)
            nisa.nc_transpose(bank, tile[:, count * PARTITIONS : depth])
            drain(last[:, start : start + p], bank, turn)
            turn += 1
    tiles = [] if full is None else [full[:, i, :] for i in range(count)]
    return tiles if last is None else [*tiles, last]


def sum_over_partitions(destination: NkiTensor, tile: NkiTensor) -> None:
    """Sums of the columns of a tile (p, n) of fp32 to a vector (n,) in HBM: a product with ones."""
    rows, columns = tile.shape
    ones = sbuf((rows, 1))
    nisa.memset(ones, 1.0)
    for start, count in spans(columns, BANK_COLUMNS):
        sums = psum((1, count))
        nisa.nc_matmul(sums, ones, tile[:, start : start + count], accumulate=False)
        result = sbuf((1, count), destination.dtype)
        nisa.tensor_copy(result, sums)
        store(destination[start : start + count].reshape((1, count)), result)
