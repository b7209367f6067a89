"""Functions of nki.language that move tiles between memories, or change how they are seen (Beta 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import nki.isa as hardware
from nki.errors import MaskedInstructionError
from nki.indexing import ds
from nki.trace import source_line

from ..addressing import cropped
from ..emission import as_tile, broadcast, copy, each, fresh, in_sbuf, plain, transfer
from ..indices import Mask
from ..isa.movement import dma_transpose, nc_matmul, nc_transpose
from ..isa.selection import gathered
from ..tile import BlockTensor, Tile

__all__ = [
    "atomic_rmw", "broadcast_to", "device_print", "ds", "expand_dims", "gather_flattened", "load",
    "load_transpose2d", "matmul", "store", "transpose"
]  # fmt: skip


def load(src: Any, *, mask: Any = None, dtype: Any = None, **_: Any) -> Tile:
    """A tile in SBUF with what lies in HBM; elements outside of the mask are not loaded.

    Args:
        src: in HBM, with at most 128 rows along its first dimension, which becomes the partition. A tile among the
            indices (`x[index_tile, i_f]`) chooses rows when the kernel runs.
    """
    source = as_tile(src, "load")
    shape = source.shape if source.ndim > 1 else (*source.shape, 1)
    if source.ndim == 1:
        table = None if source.table is None else source.table.reshape(shape)
        source = Tile(source.storage, source.dtype, shape, (*source.strides, 1), source.offset, source.dynamic, table,
                      source.bounds)  # fmt: skip
    result = fresh(shape, dtype or source.dtype)
    chosen = Mask.of(mask)
    result.mask = chosen
    part, target = cropped(source, chosen, shape), cropped(result, chosen, shape)
    if part is not None and target is not None:
        if target.table is not None:
            # What the table of the source leaves out is left alone in the tile.
            target = result
        transfer(target, part)
    return result


def store(dst: Any, value: Any, *, mask: Any = None, **_: Any) -> None:
    """Writes a tile, or a number, to HBM; elements outside of the mask stay as they are."""
    target = as_tile(dst, "store")
    chosen = Mask.of(mask)
    if not isinstance(value, (Tile, BlockTensor)):
        part = cropped(target, chosen, target.shape)
        if part is not None:
            _store_number(part, value)
        return
    source = as_tile(value)
    shape = target.shape
    if chosen is not None and source.shape != shape:
        if source.size != target.size:
            raise MaskedInstructionError(op="store", mask=mask, shape=source.shape, line=source_line())
        source = Tile.of(source.reshape(shape))
    if chosen is None and source.mask is not None and source.shape == shape:
        chosen = source.mask
    to, what = cropped(target, chosen, shape), cropped(source, chosen, shape)
    if to is None or what is None:
        return
    if what.table is not None and source.table is None and not what.on_chip:
        what = source
    transfer(to, what)


def _store_number(target: Tile, value: Any) -> None:
    shape = target.shape if target.ndim > 1 else (*target.shape, 1)
    rows = shape[0] <= 128
    constant = fresh(shape if rows else (1, *shape[1:]), target.dtype)
    number = float(value) if target.dtype.is_float else int(value)
    for (view,) in each(constant):
        hardware.memset(view, number)
    if rows:
        transfer(target, constant)
        return
    for row in range(shape[0]):
        transfer(target[row : row + 1], constant)


def load_transpose2d(src: Any, *, mask: Any = None, dtype: Any = None, **_: Any) -> Tile:
    """A tile in SBUF with the transpose of a matrix in HBM."""
    return dma_transpose(src, mask=mask, dtype=dtype)


def transpose(x: Any, *, dtype: Any = None, mask: Any = None, **_: Any) -> Tile:
    """Partitions and elements exchanged, by the Tensor Engine; the result lies in PSUM."""
    return nc_transpose(x, dtype=dtype, mask=mask)


def matmul(x: Any, y: Any, *, transpose_x: bool = False, mask: Any = None, **_: Any) -> Tile:
    """`x @ y` (`x.T @ y` with `transpose_x`), in PSUM.

    Args:
        x: (M, K), or (K, M) with `transpose_x`, which is what the Tensor Engine takes: the other is transposed first.
        y: (K, N).
    """
    left = as_tile(x, "matmul")
    if not transpose_x:
        left = in_sbuf(nc_transpose(in_sbuf(left)))
    right = in_sbuf(as_tile(y, "matmul"))
    if left.dtype != right.dtype and "float32" in (left.dtype, right.dtype):
        left, right = (t if t.dtype == "float32" else t.astype("float32") for t in (left, right))
    return nc_matmul(left, right, mask=mask)


def broadcast_to(src: Any, *, shape: Sequence[int], **_: Any) -> Tile:
    """A tile repeated along its dimensions of size 1."""
    return broadcast(in_sbuf(as_tile(src, "broadcast_to")), tuple(map(int, shape)))


def expand_dims(data: Any, axis: int) -> Tile:
    """A view with one more dimension, of size 1, at `axis`."""
    return as_tile(data, "expand_dims").expand_dims(axis)


def gather_flattened(data: Any, indices: Any, *, mask: Any = None, dtype: Any = None, **_: Any) -> Tile:
    """For each index (uint32) the element of the same partition that it names, all free dimensions counted as one."""
    if Mask.of(mask) is not None:
        raise MaskedInstructionError(op="gather_flattened", mask=mask, shape=as_tile(indices).shape, line=source_line())
    places = as_tile(indices)
    if places.dtype != "uint32":
        places = places.astype("uint32")
    return gathered(data, places, dtype)


def atomic_rmw(dst: Any, value: Any, op: Any, *, mask: Any = None, **_: Any) -> None:
    """Adds a tile to rows in HBM that a tile among the indices of `dst` chooses."""
    from ..isa.movement import dma_copy

    dma_copy(dst=dst, src=value, mask=mask, dst_rmw_op=op)


def device_print(prefix: str, x: Any, *, mask: Any = None, **_: Any) -> None:
    """Prints a tile when the kernel runs."""
    from nki.language import device_print as instruction

    tile = as_tile(x, "device_print")
    part = cropped(tile, Mask.of(mask), tile.shape)
    if part is None:
        return
    if part.table is not None or part.ndim > 5:
        dense = fresh(part.shape, part.dtype)
        copy(dense, part)
        part = dense
    instruction(prefix, plain(part))
