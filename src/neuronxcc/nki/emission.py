"""How operations on tiles of the Beta 1 dialect become instructions.

The dialect lets tiles have more dimensions than an access pattern, start at any partition, be broadcast, lie in HBM or
in PSUM where an engine wants SBUF, and skip elements. What its compiler would insert then is inserted here: copies by
DMA to where engines can start, an instruction per part of a tile with many dimensions, repetition of partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import numpy as np

import nki.isa as hardware
from nki.element_types import DType, of
from nki.errors import MaskedInstructionError, TileBroadcastError
from nki.isa.validation import emit
from nki.memory import allocate
from nki.regions import MemoryRegion
from nki.tensor import NkiTensor
from nki.trace import current, source_line

from .addressing import check_bounds, cropped, numbers_of
from .indices import Index, Mask
from .tile import BlockTensor, Tile

__all__ = [
    "as_tile", "broadcast", "broadcast_shape", "column", "converted", "copy", "cropped_box", "each", "elementwise",
    "fresh", "in_sbuf", "on_engine", "plain", "rest_mask", "startable", "transfer"
]  # fmt: skip

# Dimensions of an access pattern: the partition and four free ones.
_RANK = 5
_REGIONS = {"sbuf": MemoryRegion.sbuf, "psum": MemoryRegion.psum}


def as_tile(value: Any, op: str = "") -> Tile:
    """`value`, which has to be a tensor, as a tile."""
    if isinstance(value, BlockTensor):
        tiles = value.tiles()
        if len(tiles) == 1:
            return tiles[0]
        value._refuse()
    if isinstance(value, NkiTensor):
        return Tile.of(value)
    raise TypeError(f"{op}: {value!r} is no tile")


def fresh(
    shape: tuple[int, ...], dtype: Any, region: str = "sbuf", name: str = "", address: tuple[int, int] | None = None
) -> Tile:
    """A new tile on chip of any number of dimensions, at `address` (partition, byte) if one is given."""
    sizes = shape if len(shape) > 1 else (*shape, 1)
    tensor = allocate(_REGIONS[region], (sizes[0], prod(sizes[1:])), of(dtype), name, address)
    strides = [1] * len(sizes)
    for d in range(len(sizes) - 2, -1, -1):
        strides[d] = strides[d + 1] * sizes[d + 1]
    return Tile(tensor.storage, tensor.dtype, sizes, tuple(strides), 0)


def _free(tile: Tile) -> int:
    """Elements per partition of the storage."""
    return tile.storage.free * tile.storage.dtype.itemsize // tile.dtype.itemsize


def plain(tile: Tile) -> NkiTensor:
    """The view as instructions take it; one without an element table."""
    check_bounds(tile)
    shape, strides = tile.shape, tile.strides
    if tile.on_chip:
        if len(shape) < 2:
            shape, strides = (*shape, 1), (*strides, 1)
        # Of one partition or many: what an access pattern has there.
        if shape[0] == 1 or strides[0] != 0:
            strides = (_free(tile), *strides[1:])
    return NkiTensor(tile.storage, tile.dtype, shape, strides, tile.offset, tile.dynamic)


def startable(tile: Tile) -> bool:
    """Whether engines can begin at the tile's partition."""
    partitions = tile.shape[0]
    start = tile.offset // _free(tile)
    if tile.storage.address is not None:
        start += tile.storage.address[0]
    return not (start & 31 or (start and partitions > 64) or (partitions > 32 and start & 63))


def each(*tiles: Tile, rank: int = _RANK) -> Iterator[list[NkiTensor]]:
    """Views of a few dimensions that together are all elements of `tiles`, which have the same shape.

    Dimensions are joined where all the tiles allow it; the outermost of those that remain too many are walked through.
    """
    shape = tiles[0].shape
    for tile in tiles:
        check_bounds(tile)
    # Joined dimensions: size, and the stride in each tile. Dimension 0 stays as it is.
    joined: list[tuple[int, list[int]]] = []
    for d in range(1, len(shape)):
        n = shape[d]
        if n == 1:
            continue
        strides = [tile.strides[d] for tile in tiles]
        if joined and all(outer == inner * n for outer, inner in zip(joined[-1][1], strides, strict=True)):
            joined[-1] = (joined[-1][0] * n, strides)
        else:
            joined.append((n, strides))
    walked, kept = joined[: max(0, len(joined) - rank + 1)], joined[max(0, len(joined) - rank + 1) :]
    if not kept:
        kept = [(1, [1] * len(tiles))]
    for place in np.ndindex(*(n for n, _ in walked)):
        views = []
        for i, tile in enumerate(tiles):
            offset = tile.offset + sum(p * strides[i] for p, (_, strides) in zip(place, walked, strict=True))
            sizes = (shape[0], *(n for n, _ in kept))
            steps = (tile.strides[0], *(strides[i] for _, strides in kept))
            views.append(plain(Tile(tile.storage, tile.dtype, sizes, steps, offset, tile.dynamic)))
        yield views


def _whole(tile: Tile) -> NkiTensor:
    """All of a tile's storage."""
    storage = tile.storage
    free = _free(tile)
    if storage.on_chip:
        return NkiTensor(storage, tile.dtype, (storage.shape[0], free), (free, 1))
    return NkiTensor(storage, tile.dtype, (free,), (1,))


def _by_table(dst: Tile, src: Tile) -> None:
    """A DMA whose elements are listed one by one."""
    check_bounds(dst)
    check_bounds(src)
    tables = [None if t.table is None else np.ascontiguousarray(t.table, np.int64).reshape(-1) for t in (dst, src)]
    if dst.table is None and len(dst.shape) > _RANK:
        tables[0] = numbers_of(dst).reshape(-1)
    if src.table is None and len(src.shape) > _RANK:
        tables[1] = numbers_of(src).reshape(-1)
    views = [plain(t) if table is None else _whole(t) for t, table in zip((dst, src), tables, strict=True)]
    emit(current(), "table_copy", "dma", (views[0],), (views[1],), tuple(tables), None)


def in_sbuf(tile: Tile) -> Tile:
    """The tile, copied to SBUF where it lies in PSUM or HBM: what the Tensor Engine and DMA read."""
    if tile.storage.region == "sbuf":
        return tile
    result = fresh(tile.shape, tile.dtype)
    copy(result, tile)
    return result


def on_engine(tile: Tile) -> Tile:
    """The tile where engines can read it: on chip, strided, from a partition at which they can begin."""
    if tile.on_chip and tile.table is None and startable(tile):
        return tile
    result = fresh(tile.shape, tile.dtype)
    copy(result, tile)
    return result


def transfer(dst: Tile, src: Tile, **options: Any) -> None:
    """A DMA from `src` to `dst`; what lies in PSUM goes through SBUF."""
    if src.storage.region == "psum":
        src = in_sbuf(src)
    if dst.storage.region == "psum":
        landing = fresh(dst.shape, dst.dtype)
        transfer(landing, src, **options)
        copy(dst, landing)
        return
    if dst.table is not None or src.table is not None:
        _by_table(dst, src)
        return
    if dst.shape == src.shape:
        for to, where in each(dst, src):
            hardware.dma_copy(dst=to, src=where, **options)
        return
    hardware.dma_copy(dst=_few(dst), src=_few(src), **options)


def _few(tile: Tile) -> NkiTensor:
    """The view with dimensions joined; more than an access pattern has are refused by the instruction."""
    views = list(each(tile))
    return views[0][0] if len(views) == 1 else plain(tile)


def copy(dst: Tile, src: Tile) -> list[Any]:
    """Copies between any two tiles; returns the instructions where they are copies by an engine or one DMA each."""
    first = len(current().instructions)
    through_dma = not (dst.on_chip and src.on_chip)
    if not through_dma:
        irregular = dst.table is not None or src.table is not None
        through_dma = irregular or not (startable(dst) and startable(src)) or dst.shape[0] != src.shape[0]
    if through_dma:
        transfer(dst, src)
    elif dst.shape == src.shape:
        for to, where in each(dst, src):
            hardware.tensor_copy(dst=to, src=where)
    else:
        hardware.tensor_copy(dst=_few(dst), src=_few(src))
    return current().instructions[first:]


def converted(tile: Tile, dtype: DType) -> Tile:
    """A copy with elements of another type."""
    source = on_engine(tile)
    result = fresh(tile.shape, dtype)
    copy(result, source)
    return result


def broadcast_shape(op: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that tiles of these shapes are broadcast to."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise TileBroadcastError(op=op, shapes=", ".join(map(str, shapes)), line=source_line()) from None


def broadcast(tile: Tile, shape: tuple[int, ...]) -> Tile:
    """A tile repeated along dimensions of size 1: a view, or a copy where partitions are repeated."""
    if tile.shape == shape:
        return tile
    broadcast_shape("broadcast_to", tile.shape, shape)
    missing = len(shape) - tile.ndim
    if missing:
        tile = Tile(
            tile.storage, tile.dtype, (tile.shape[0], *(1,) * missing, *tile.shape[1:]),
            (tile.strides[0], *(0,) * missing, *tile.strides[1:]), tile.offset, tile.dynamic
        )  # fmt: skip
    if tile.shape[0] != shape[0]:
        tile = _repeated(on_engine(in_sbuf(tile)), shape[0])
    strides = (tile.strides[0], *(0 if n == 1 else s for n, s in zip(tile.shape[1:], tile.strides[1:], strict=True)))
    return Tile(tile.storage, tile.dtype, shape, strides, tile.offset, tile.dynamic)


def _repeated(tile: Tile, partitions: int) -> Tile:
    """One partition copied to many, by a DMA that reads it over and over."""
    result = fresh((partitions, *tile.shape[1:]), tile.dtype)
    for to, where in each(result, Tile(tile.storage, tile.dtype, result.shape, (0, *tile.strides[1:]), tile.offset)):
        hardware.dma_copy(dst=to, src=where)
    return result


def column(value: Any, partitions: int, dtype: str = "float32") -> Any:
    """A number as it is; a tile of one element per partition as instructions take it, in `dtype` ("" for any)."""
    if not isinstance(value, (NkiTensor, BlockTensor)):
        return value
    tile = on_engine(as_tile(value))
    if tile.shape[0] == 1 and partitions > 1:
        tile = broadcast(tile, (partitions, *tile.shape[1:]))
    if dtype and tile.dtype != dtype:
        tile = converted(tile, of(dtype))
    return next(each(tile))[0]


def cropped_box(op: str, mask: Any, *tiles: Tile) -> list[Tile]:
    """Tiles of the same shape without what a mask leaves out.

    Raises:
        MaskedInstructionError: the mask is no box, or leaves out everything.
    """
    chosen = Mask.of(mask)
    if chosen is None:
        return list(tiles)
    found = [cropped(tile, chosen, tiles[0].shape) for tile in tiles] if chosen.box(tiles[0].shape) else [None]
    if any(f is None for f in found):
        raise MaskedInstructionError(op=op, mask=chosen, shape=tiles[0].shape, line=source_line())
    return [f for f in found if f is not None]


def elementwise(
    emitter: Callable[..., Any],
    operands: list[Tile],
    dtype: Any,
    mask: Any = None,
    shape: tuple[int, ...] | None = None,
    columns: tuple[Any, ...] = (),
    column_dtype: str = "float32",
    into: Tile | None = None,
) -> Tile:
    """A new tile in SBUF, computed from tiles element by element.

    Args:
        emitter: called with the views of the result and of each operand, then the columns; once per part.
        operands: broadcast to each other, or to `shape`.
        mask: elements outside of it are not written; where it is no box, they are, and are left out of assignments.
        columns: numbers, and tiles of one element per partition, which are given in `column_dtype` ("" for any).
        into: the tile to write, instead of a new one.
    """
    chosen = Mask.of(mask)
    if shape is None:
        shape = operands[0].shape if len(operands) == 1 else broadcast_shape("tiles", *(o.shape for o in operands))
    if len(shape) < 2:
        shape = (*shape, 1)
    result = fresh(shape, dtype) if into is None else into
    parts = [result, *(on_engine(o) if o.table is not None else broadcast(o, shape) for o in operands)]
    rows = None
    if chosen is not None:
        result.mask = chosen
        box = chosen.box(shape)
        if box is not None:
            found = [cropped(p, chosen, shape) for p in parts]
            if any(f is None for f in found):
                return result
            parts = [f for f in found if f is not None]
            rows = box[0]
    parts = [parts[0], *(on_engine(p) for p in parts[1:])]
    partitions = parts[0].shape[0]
    values = [column(_rows(c, rows), partitions, column_dtype) for c in columns]
    for views in each(*parts):
        emitter(*views, *values)
    return result


def _rows(value: Any, rows: tuple[int, int] | None) -> Any:
    """The partitions of a column that a mask leaves."""
    if rows is None or not isinstance(value, (NkiTensor, BlockTensor)):
        return value
    tile = as_tile(value)
    return tile if tile.shape[0] == 1 else tile[rows[0] : min(rows[1], tile.shape[0])]


def rest_mask(box: list[tuple[int, int]], kept: list[int], shape: tuple[int, ...]) -> Mask | None:
    """The mask of a reduced tile: the box of the dimensions that were kept; None when that is everything."""
    ranges = [box[d] for d in kept]
    ranges += [(0, n) for n in shape[len(ranges) :]]
    if all(r == (0, n) for r, n in zip(ranges, shape, strict=True)):
        return None
    terms = []
    for d, (low, high) in enumerate(ranges):
        unit = tuple(int(other == d) for other in range(len(shape)))
        terms += [Index(shape, -low, unit), Index(shape, high - 1, tuple(-u for u in unit))]
    return Mask(shape, tuple(terms))
