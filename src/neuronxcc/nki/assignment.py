"""`tile[...] = value` and `tile += value`."""

from __future__ import annotations

from typing import Any

import numpy as np

import nki.isa as hardware
from nki.errors import TileAssignmentError
from nki.isa.validation import emit
from nki.tensor import NkiTensor
from nki.trace import current as current_trace
from nki.trace import source_line

from . import context
from .addressing import cropped
from .emission import as_tile, broadcast, copy, each, fresh, on_engine, plain, startable, transfer
from .tile import BlockTensor, Tile

__all__ = ["accumulate", "assign", "filled", "is_empty"]


def filled(dst: Tile, value: Any) -> None:
    """Writes a number to all elements."""
    number = float(value) if dst.dtype.is_float else int(value)
    if dst.on_chip and dst.table is None and startable(dst):
        for (view,) in each(dst):
            hardware.memset(view, number)
        return
    constant = fresh(dst.shape, dst.dtype)
    for (view,) in each(constant):
        hardware.memset(view, number)
    transfer(dst, constant)


def _same(a: Tile, b: Tile) -> bool:
    return (
        a.storage is b.storage
        and (a.shape, a.strides, a.offset, a.dtype) == (b.shape, b.strides, b.offset, b.dtype)
        and (a.table is b.table or (a.table is not None and b.table is not None and np.array_equal(a.table, b.table)))
    )


def _fitting(dst: Tile, value: Tile) -> Tile:
    """The value in the shape of what it is assigned to.

    Raises:
        TileAssignmentError: it has other elements.
    """
    if value.shape == dst.shape:
        return value
    sizes = [tuple(n for n in t.shape[1:] if n != 1) for t in (dst, value)]
    if dst.shape[0] == value.shape[0] and sizes[0] == sizes[1]:
        steps = iter([s for n, s in zip(value.shape[1:], value.strides[1:], strict=True) if n != 1])
        strides = (value.strides[0], *(next(steps) if n != 1 else 1 for n in dst.shape[1:]))
        table = None if value.table is None else value.table.reshape(dst.shape)
        return Tile(value.storage, value.dtype, dst.shape, strides, value.offset, value.dynamic, table, value.bounds)
    if dst.shape[0] == value.shape[0] and dst.size == value.size:
        return value
    try:
        fits = np.broadcast_shapes(value.shape, dst.shape) == dst.shape
    except ValueError:
        fits = False
    if not fits:
        raise TileAssignmentError(value=value.shape, tensor=dst.storage, shape=dst.shape, line=source_line())
    return broadcast(value, dst.shape)


def assign(dst: Tile, value: Any) -> None:
    """Copies `value`, a tile or a number, into `dst`; only what the value's own mask has written.

    Raises:
        TileAssignmentError: the value has other elements.
    """
    if not isinstance(value, (NkiTensor, BlockTensor)):
        filled(dst, value)
        return
    tile = as_tile(value)
    if _same(dst, tile):
        return
    if tile.reduction is not None:
        if tile.reduction.first:
            assign(dst, tile.again())
        else:
            _add_to(dst, _fitting(dst, tile), tile.reduction.op)
        return
    mask = tile.mask
    source = _fitting(dst, tile)
    target = dst
    if mask is not None and mask.box(tile.shape) is None:
        to, where = on_engine(dst) if dst.table is None else dst, on_engine(source)
        emit(current_trace(), "masked_copy", "vector", (plain(to),), (plain(where),), (mask.dense(dst.shape),), None)
        return
    if mask is not None:
        found, part = cropped(dst, mask, dst.shape), cropped(source, mask, dst.shape)
        if found is None or part is None:
            return
        target, source = found, part
    context.current().assignments += copy(target, source)


def _add_to(dst: Tile, value: Tile, op: Any) -> None:
    """dst = dst <op> value, as a reduction whose order does not matter."""
    from .language import elementwise

    notes = context.current()
    first = len(current_trace().instructions)
    elementwise.into(dst, op, dst, value)
    notes.reductions.update(current_trace().instructions[first:])


def accumulate(dst: Tile, value: Any, op: str) -> None:
    """`dst <op>= value`. A matmul that is added to PSUM is done there, which is what PSUM is for."""
    notes = context.current()
    trace = current_trace()
    if isinstance(value, BlockTensor):
        value = as_tile(value)
    matmul = _matmul_of(value) if op == "add" and dst.storage.region == "psum" else None
    if matmul is None:
        if isinstance(value, NkiTensor):
            value = _fitting(dst, as_tile(value))
        _add_to(dst, value, op)
        return
    notes.repeated.add(matmul)
    stationary, moving = matmul.args
    adds = not is_empty(dst)
    target = plain(dst) if dst.ndim <= 2 else next(each(dst))[0]
    repeated = emit(trace, "matmul", "tensor", (target,), (stationary, moving), (adds, *matmul.attrs[1:]), matmul.name,
                    matmul.hints)  # fmt: skip
    notes.reductions.add(repeated)


def _matmul_of(value: Any) -> Any:
    """The matmul that made a tile and was the last instruction, if it was one and overwrote all of the tile."""
    instructions = current_trace().instructions
    if not isinstance(value, Tile) or not instructions:
        return None
    last = instructions[-1]
    made = last.op == "matmul" and last.out[0].storage is value.storage and value.storage.address is None
    return last if made and last.out[0].size == value.size == value.storage.partitions * value.storage.free else None


def is_empty(tile: Tile) -> bool:
    """Whether a tile in PSUM holds nothing yet that a matmul could add to."""
    first, last = _span(plain(tile))
    return not any(
        _span(view)[0] <= last and first <= _span(view)[1]
        for instruction in context.current().writes_of(tile.storage)
        for view in instruction.out
        if isinstance(view, NkiTensor) and view.storage is tile.storage
    )


def _span(view: NkiTensor) -> tuple[int, int]:
    """First and last element within partitions that a view may touch."""
    start = view.offset % view.strides[0]
    return start, start + sum((n - 1) * s for n, s in zip(view.shape[1:], view.strides[1:], strict=True))
