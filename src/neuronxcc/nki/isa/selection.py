"""Instructions that search, gather and select (Beta 1)."""

from __future__ import annotations

from typing import Any

import nki.isa as hardware
from nki.element_types import of
from nki.isa.enums import reduce_cmd as ReduceCommand

from ..addressing import cropped
from ..emission import as_tile, column, cropped_box, each, elementwise, fresh, in_sbuf, on_engine, plain, rest_mask
from ..indices import Mask
from ..tile import Tile
from .compute import _target, predicate_of

__all__ = [
    "local_gather", "max8", "nc_find_index8", "nc_match_replace8", "nc_stream_shuffle", "range_select",
    "select_reduce", "sequence_bounds"
]  # fmt: skip

IDLE = ReduceCommand.idle
_FP32_MIN = -3.4028234663852886e38


def _searched(op: str, data: Any, mask: Any, width: int, dtype: Any) -> tuple[Tile, Tile, Tile, tuple[int, int]]:
    """What of `data` is searched, the result (P, width), the partitions of it that are written, and which these are."""
    whole = as_tile(data, op)
    chosen = Mask.of(mask)
    (tile,) = cropped_box(op, chosen, whole)
    box = chosen.box(whole.shape) if chosen is not None else None
    rows = box[0] if box else (0, whole.shape[0])
    result = fresh((whole.shape[0], width), dtype or whole.dtype)
    result.mask = rest_mask([rows], [0], result.shape)
    return on_engine(tile), result, result[rows[0] : rows[1]], rows


def _rows(value: Any, rows: tuple[int, int]) -> Any:
    tile = as_tile(value)
    return next(each(on_engine(tile[rows[0] : rows[1]])))[0]


def max8(*, src: Any, mask: Any = None, dtype: Any = None, name: str | None = None, **_options: Any) -> Tile:
    """The 8 largest elements of each partition, largest first."""
    tile, result, part, _ = _searched("max8", src, mask, 8, dtype)
    hardware.max8(plain(part), next(each(tile))[0], name=name)
    return result


def nc_find_index8(
    *, data: Any, vals: Any, mask: Any = None, dtype: Any = None, name: str | None = None, **_: Any
) -> Tile:
    """Where in each partition the 8 values stand first; all bits set where one does not."""
    tile, result, part, rows = _searched("nc_find_index8", data, mask, 8, dtype or "uint32")
    hardware.nc_find_index8(plain(part), next(each(tile))[0], _rows(vals, rows), name=name)
    return result


def nc_match_replace8(
    *,
    data: Any,
    vals: Any,
    imm: Any,
    dst_idx: Any = None,
    mask: Any = None,
    dtype: Any = None,
    name: str | None = None,
    **_: Any,
) -> Tile:
    """`data` with the first match of each of 8 values replaced by `imm`; their places go to `dst_idx`."""
    whole = as_tile(data, "nc_match_replace8")
    chosen = Mask.of(mask)
    result = fresh(whole.shape, dtype or whole.dtype)
    result.mask = chosen
    tile, part = cropped_box("nc_match_replace8", chosen, whole, result)
    box = chosen.box(whole.shape) if chosen is not None else None
    rows = box[0] if box else (0, whole.shape[0])
    places = None if dst_idx is None else next(each(as_tile(dst_idx)[rows[0] : rows[1]]))[0]
    hardware.nc_match_replace8(
        next(each(part))[0], next(each(on_engine(tile)))[0], _rows(vals, rows), float(imm), dst_idx=places, name=name
    )
    return result


def nc_stream_shuffle(
    src: Any, dst: Any, shuffle_mask: Any, *, mask: Any = None, name: str | None = None, **_: Any
) -> None:
    """`dst[i] = src[shuffle_mask[i]]` for the partitions of each group of 32; 255 leaves `dst[i]` as it is."""
    source, target = as_tile(src, "nc_stream_shuffle"), as_tile(dst, "nc_stream_shuffle")
    if Mask.of(mask) is not None:
        source, target = cropped_box("nc_stream_shuffle", mask, source, target)
    hardware.nc_stream_shuffle(next(each(target))[0], next(each(source))[0], list(shuffle_mask), name=name)


def range_select(
    *,
    on_true_tile: Any,
    comp_op0: Any,
    comp_op1: Any,
    bound0: Any,
    bound1: Any,
    reduce_cmd: ReduceCommand = IDLE,
    reduce_res: Any = None,
    reduce_op: Any = "maximum",
    range_start: int = 0,
    on_false_value: Any = _FP32_MIN,
    mask: Any = None,
    dtype: Any = None,
    name: str | None = None,
    **_: Any,
) -> Tile:
    """Elements whose number, from `range_start` on, compares with both bounds; the others become the lowest fp32."""
    tile = as_tile(on_true_tile, "range_select")
    result = _target(reduce_res)
    # Idle accumulators are the same as fresh ones that nobody reads.
    command = ReduceCommand.reset_reduce if reduce_cmd is IDLE else reduce_cmd

    def emitter(dst: Any, src: Any, low: Any, high: Any) -> None:
        hardware.range_select(
            dst, src, comp_op0, comp_op1, low, high, reduce_cmd=command, reduce_res=result, reduce_op=reduce_op,
            range_start=range_start, on_false_value=on_false_value, name=name,
        )  # fmt: skip

    return elementwise(emitter, [tile], dtype or tile.dtype, mask, columns=(bound0, bound1))


def select_reduce(
    *,
    dst: Any,
    predicate: Any,
    on_true: Any,
    on_false: Any,
    reduce_res: Any = None,
    reduce_cmd: ReduceCommand = IDLE,
    reduce_op: Any = "maximum",
    reverse_pred: bool = False,
    mask: Any = None,
    name: str | None = None,
    **_: Any,
) -> None:
    """`on_true` where `predicate` is not 0, else `on_false`, with the largest of each partition on request."""
    tiles = cropped_box("select_reduce", mask, as_tile(dst), predicate_of(predicate), as_tile(on_true))
    views = [next(each(t if place == 0 else on_engine(t)))[0] for place, t in enumerate(tiles)]
    hardware.select_reduce(
        views[0], views[1], views[2], column(on_false, tiles[0].shape[0]), reduce_res=_target(reduce_res),
        reduce_cmd=reduce_cmd, reduce_op=reduce_op, reverse_pred=reverse_pred, name=name,
    )  # fmt: skip


def sequence_bounds(*, segment_ids: Any, dtype: Any = None, name: str | None = None, **_: Any) -> Tile:
    """Begin and end of the segment that each element belongs to: (1, 2, n) for (1, n) numbers of segments."""
    tile = on_engine(in_sbuf(as_tile(segment_ids, "sequence_bounds")))
    result = fresh((1, 2, tile.size), dtype or tile.dtype)
    hardware.sequence_bounds(plain(result), next(each(tile))[0], name=name)
    return result


def local_gather(
    src_buffer: Any,
    index: Any,
    num_elem_per_idx: int = 1,
    num_valid_indices: int | None = None,
    *,
    mask: Any = None,
    name: str | None = None,
    **_: Any,
) -> Tile:
    """Elements that indices name, for each core of the GpSimd Engine and its 16 partitions.

    Returns:
        (P, number of indices of a core, elements per index).
    """
    source, places = (on_engine(in_sbuf(as_tile(t, "local_gather"))) for t in (src_buffer, index))
    if Mask.of(mask) is not None:
        source, places = cropped_box("local_gather", mask, source)[0], cropped(places, Mask.of(mask)) or places
    count = num_valid_indices or 16 * places.size // places.shape[0]
    result = fresh((source.shape[0], count, num_elem_per_idx), source.dtype)
    hardware.local_gather(
        next(each(result))[0], next(each(source))[0], next(each(places))[0], num_elem_per_idx, num_valid_indices,
        name=name,
    )  # fmt: skip
    return result


def gathered(data: Any, indices: Any, dtype: Any = None) -> Tile:
    """For each index the element of the same partition that it names."""
    source, places = (on_engine(in_sbuf(as_tile(t, "gather_flattened"))) for t in (data, indices))
    result = fresh(places.shape, of(dtype) if dtype is not None else source.dtype)
    hardware.nc_n_gather(next(each(result))[0], next(each(source))[0], next(each(places))[0])
    return result
