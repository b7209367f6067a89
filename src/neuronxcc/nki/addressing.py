"""From index expressions to elements of memory: what `tensor[...]` of the Beta 1 dialect chooses."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from nki.errors import IndexExpressionError, TileBoundsError
from nki.tensor import Dynamic, NkiTensor
from nki.trace import source_line

from .indices import Index, Mask
from .tile import Tile

__all__ = ["check_bounds", "cropped", "locate", "numbers_of"]


def locate(tile: Tile, key: Any) -> Tile:
    """The elements that `key` names.

    Integers, slices and `...` work as in :meth:`nki.tensor.NkiTensor.__getitem__`. Index expressions are broadcast to
    each other and give the result their shape; slices beside them take the place that they leave free.

    Raises:
        IndexExpressionError: what is no index, or too many of them.
        TileBoundsError: an integer or a slice outside of the tensor. Index expressions may leave it, and are checked
            when the tile is used, since a mask may leave those elements out.
    """
    keys = list(key) if isinstance(key, tuple) else [key]
    keys = [_number(k) for k in keys]
    if any(k is Ellipsis for k in keys):
        place = next(i for i, k in enumerate(keys) if k is Ellipsis)
        keys[place : place + 1] = [slice(None)] * (tile.ndim - len(keys) + 1)
    keys += [slice(None)] * (tile.ndim - len(keys))
    if len(keys) > tile.ndim:
        _refuse(f"{len(keys)} indices for {tile!r}, which has {tile.ndim} dimensions")
    if all(isinstance(k, (int, slice)) for k in keys):
        return _basic(tile, keys)
    if any(isinstance(k, NkiTensor) for k in keys):
        return _dynamic(tile, keys)
    return _expressions(tile, keys)


def _number(k: Any) -> Any:
    """Integers of any kind as int; other keys as they are."""
    if isinstance(k, (int, np.integer)) or (isinstance(k, Index) and not k.ndim):
        return operator.index(k)
    return k


def _refuse(reason: str) -> None:
    raise IndexExpressionError(reason=reason, line=source_line())


def _outside(tile: Tile, dim: int, low: int, high: int) -> None:
    raise TileBoundsError(
        dim=dim, tensor=tile.storage, shape=tile.shape, size=tile.shape[dim], low=low, high=high, line=source_line()
    )


def _range(tile: Tile, dim: int, k: slice) -> range:
    """The elements of a slice; one that ends behind the tensor is cut, as in Python."""
    n = tile.shape[dim]
    found = range(n)[slice(*(None if v is None else operator.index(v) for v in (k.start, k.stop, k.step)))]
    if not found:
        _outside(tile, dim, k.start or 0, k.stop or 0)
    return found


def _basic(tile: Tile, keys: list[Any]) -> Tile:
    shape: list[int] = []
    strides: list[int] = []
    offset = tile.offset
    table: tuple[Any, ...] = ()
    kept = 0  # a stride of a dimension that went
    for dim, (k, n, stride) in enumerate(zip(keys, tile.shape, tile.strides, strict=True)):
        if isinstance(k, slice):
            found = range(n) if k == slice(None) else _range(tile, dim, k)
            offset += found.start * stride
            shape.append(len(found))
            strides.append(stride * found.step)
            table = (*table, slice(found.start, found.stop, found.step))
            continue
        if not -n <= k < n:
            _outside(tile, dim, k, k)
        place = k % n
        offset += place * stride
        if tile.on_chip and dim == 0:
            shape.append(1)
            strides.append(stride)
            table = (*table, slice(place, place + 1))
        else:
            kept = stride
            table = (*table, place)
    least = 2 if tile.on_chip else 1
    chosen = None if tile.table is None else tile.table[table]
    while len(shape) < least:
        shape.append(1)
        strides.append(kept or 1)
    if chosen is not None:
        chosen = chosen.reshape(shape)
    found_tile = Tile(tile.storage, tile.dtype, tuple(shape), tuple(strides), offset, tile.dynamic, chosen)
    if all(k == slice(None) for k in keys):
        found_tile.mask, found_tile.reduction, found_tile.bounds = tile.mask, tile.reduction, tile.bounds
    return found_tile


def _expression(k: Any) -> Index:
    found = Index.of(k)
    if found is None:
        raise IndexExpressionError(reason=f"{k!r} is no index", line=source_line())
    return found


def _placed(tile: Tile, keys: list[Any]) -> list[Index]:
    """One expression per dimension, all of the same rank."""
    wanted = [_expression(k) for k in keys if not isinstance(k, slice)]
    try:
        common = np.broadcast_shapes(*(w.shape for w in wanted))
    except ValueError:
        raise IndexExpressionError(
            reason=f"indices of shapes {[w.shape for w in wanted]} cannot be broadcast to each other",
            line=source_line(),
        ) from None
    counted = [d for d, k in enumerate(keys) if isinstance(k, slice) or _expression(k).ndim]
    slices = [d for d, k in enumerate(keys) if isinstance(k, slice)]
    if slices and len(common) != len(counted):
        # As NumPy does it: slices before the first expression come first, the others last.
        first = min(d for d in counted if d not in slices) if len(slices) < len(counted) else len(keys)
        before = [d for d in slices if d < first]
        rank = len(common) + len(slices)
        places = {d: i for i, d in enumerate(before)}
        places |= {d: rank - len(slices) + len(before) + i for i, d in enumerate(d for d in slices if d > first)}
        shift = len(before)
    else:
        rank, shift = len(common), 0
        places = {d: counted.index(d) for d in slices}
    result = []
    for dim, k in enumerate(keys):
        if isinstance(k, slice):
            found = _range(tile, dim, k)
            place = places[dim]
            shape = tuple(len(found) if d == place else 1 for d in range(rank))
            result.append(Index(shape, found.start, tuple(found.step if d == place else 0 for d in range(rank))))
            continue
        index = _expression(k)
        trailing = rank - shift - len(common)
        result.append(
            index[(None,) * (len(common) - index.ndim) + (Ellipsis,) + (None,) * trailing] if trailing else index
        )
    return result


def _expressions(tile: Tile, keys: list[Any]) -> Tile:
    indices = _placed(tile, keys)
    shape = np.broadcast_shapes(*(i.shape for i in indices))
    if tile.on_chip and len(shape) < 2:
        shape = (*shape, 1) if shape else (1, 1)
        indices = [i[..., None] if i.ndim else i for i in indices]
    elif not shape:
        shape = (1,)
    indices = [i.broadcast(shape) for i in indices]
    bounds: tuple[tuple[Index, int, int], ...] = ()
    for dim, (index, n) in enumerate(zip(indices, tile.shape, strict=True)):
        low, high = index.range()
        if low < 0 or high >= n:
            bounds = (*bounds, (index, n, dim))
    if tile.table is not None:
        if bounds:
            _outside(tile, bounds[0][2], *bounds[0][0].range())
        table = tile.table[tuple(i.dense() for i in indices)]
        return Tile(tile.storage, tile.dtype, shape, (0,) * len(shape), 0, None, table)
    if any(i.values is not None for i in indices) or (tile.on_chip and not _keeps_partitions(indices[0])):
        table = np.full(shape, tile.offset, np.int64)
        for index, stride in zip(indices, tile.strides, strict=True):
            table = table + index.dense() * stride
        return Tile(tile.storage, tile.dtype, shape, (0,) * len(shape), 0, tile.dynamic, table, bounds)
    offset = tile.offset + sum(i.const * s for i, s in zip(indices, tile.strides, strict=True))
    strides = tuple(sum(i.steps[d] * s for i, s in zip(indices, tile.strides, strict=True)) for d in range(len(shape)))
    return Tile(tile.storage, tile.dtype, shape, strides, offset, tile.dynamic, None, bounds)


def _keeps_partitions(index: Index) -> bool:
    """Whether partitions follow each other along the first dimension, and nowhere else."""
    if any(index.steps[1:]):
        return False
    return index.shape[0] == 1 or index.steps[0] == 1


def _dynamic(tile: Tile, keys: list[Any]) -> Tile:
    """A tile chooses along one dimension: a row for each partition, or the whole view by one number."""
    chosen = [d for d, k in enumerate(keys) if isinstance(k, NkiTensor)]
    if len(chosen) > 1 or tile.dynamic is not None:
        _refuse("more than one tile as an index of the same tensor")
    dim = chosen[0]
    index: NkiTensor = keys[dim]
    if not index.dtype.is_integer:
        _refuse(f"the tile {index!r} is used as an index, which has to be of an integer type")
    if getattr(index, "table", None) is not None:
        _refuse("a tile used as an index has to be strided itself")
    step, limit = tile.strides[dim], tile.shape[dim]
    plain = NkiTensor(index.storage, index.dtype, index.shape, index.strides, index.offset)
    if index.size == 1:
        rest = locate(tile, tuple(0 if d == dim else k for d, k in enumerate(keys)))
        rest.dynamic = Dynamic("scalar", plain, step, limit)
        return rest
    if tile.on_chip:
        _refuse("rows of a tile on chip are chosen by a tile; indices of that kind work on tensors in HBM")
    partitions = index.shape[0]
    others = _placed(tile, [0 if d == dim else k for d, k in enumerate(keys)])
    # The rows that the tile chooses are the first dimension, whatever its own shape.
    common = np.broadcast_shapes(*(i.shape for i in others))
    common = (1,) * (2 - len(common)) + common
    if common[0] not in (1, partitions):
        _refuse(f"{partitions} rows are chosen beside indices of shape {common}")
    shape = (partitions, *common[1:])
    others = [i.broadcast(shape) for i in others]
    if any(i.values is not None or i.steps[0] for d, i in enumerate(others) if d != dim):
        _refuse("beside a tile, the other indices must be the same for all partitions, and affine")
    offset = tile.offset + sum(i.const * s for i, s in zip(others, tile.strides, strict=True))
    strides = [sum(i.steps[d] * s for i, s in zip(others, tile.strides, strict=True)) for d in range(len(shape))]
    strides[0] = step
    bounds = tuple(
        (i, n, d)
        for d, (i, n) in enumerate(zip(others, tile.shape, strict=True))
        if d != dim and (i.range()[0] < 0 or i.range()[1] >= n)
    )
    dynamic = Dynamic("vector", plain, step, limit)
    return Tile(tile.storage, tile.dtype, shape, tuple(strides), offset, dynamic, None, bounds)


def check_bounds(tile: Tile) -> Tile:
    """The tile itself.

    Raises:
        TileBoundsError: it leaves its tensor, and no mask has left those elements out.
    """
    for index, n, dim in tile.bounds:
        low, high = index.range()
        raise TileBoundsError(
            dim=dim, tensor=tile.storage, shape=tile.storage.shape, size=n, low=low, high=high, line=source_line()
        )
    return tile


def numbers_of(tile: Tile) -> np.ndarray[Any, Any]:
    """Numbers of all elements in the storage, in an array of the tile's shape."""
    if tile.table is not None:
        return tile.table
    return Index(tile.shape, tile.offset, tile.strides).dense()


def cropped(tile: Tile, mask: Mask | None, shape: tuple[int, ...] | None = None) -> Tile | None:
    """The elements of a tile for which a mask is true; None when there are none.

    A mask that is a box makes a smaller tile. Any other leaves elements out of an element table, which only DMA
    follows.

    Args:
        shape: of the mask's positions, by default the tile's; the tile is repeated along its dimensions of size 1.
    """
    if mask is None:
        return tile
    shape = tile.shape if shape is None else shape
    box = mask.box(shape)
    if box is None:
        table = np.where(mask.dense(tile.shape), numbers_of(tile), -1)
        bounds = []
        for index, n, dim in tile.bounds:
            inside = index.dense()[table >= 0]
            if inside.size and (inside.min() < 0 or inside.max() >= n):
                bounds.append((index, n, dim))
        return Tile(tile.storage, tile.dtype, tile.shape, tile.strides, tile.offset, None, table, tuple(bounds))
    if any(low >= high for low, high in box):
        return None
    ranges = [(0, 1) if n == 1 else (low, min(high, n)) for n, (low, high) in zip(tile.shape, box, strict=True)]
    if all(r == (0, n) for r, n in zip(ranges, tile.shape, strict=True)):
        return tile
    slices = tuple(slice(low, high) for low, high in ranges)
    sizes = tuple(high - low for low, high in ranges)
    bounds = []
    for index, n, dim in tile.bounds:
        part = index[slices]
        if part.size and (part.range()[0] < 0 or part.range()[1] >= n):
            bounds.append((part, n, dim))
    offset = tile.offset + sum(low * s for (low, _), s in zip(ranges, tile.strides, strict=True))
    table_part = None if tile.table is None else tile.table[slices]
    dynamic = tile.dynamic
    if dynamic is not None and dynamic.kind == "vector" and ranges[0] != (0, tile.shape[0]):
        low, high = ranges[0]
        rows = dynamic.index
        assert isinstance(rows, NkiTensor)
        dynamic = Dynamic("vector", rows[low:high], dynamic.step, dynamic.limit)
        offset -= low * tile.strides[0]
    return Tile(tile.storage, tile.dtype, sizes, tile.strides, offset, dynamic, table_part, tuple(bounds))
