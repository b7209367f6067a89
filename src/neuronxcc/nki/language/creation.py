"""Tensors made by a kernel of the Beta 1 dialect."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from nki.element_types import of
from nki.memory import allocate
from nki.regions import MemoryRegion

from .. import context
from ..assignment import filled
from ..compiler import OnChip
from ..emission import as_tile, converted, fresh, in_sbuf
from ..tile import BlockTensor, Tile
from .types import par_dim, sbuf

__all__ = [
    "empty_like", "full", "ndarray", "ones", "rand", "shared_constant", "shared_identity_matrix", "static_cast",
    "zeros", "zeros_like"
]  # fmt: skip


def ndarray(shape: Sequence[int] | int, dtype: Any, *, buffer: Any = None, name: str = "", **_: Any) -> Any:
    """A tensor with nothing particular in it.

    Args:
        shape: on chip, the first dimension is the partition, unless another one is marked with nl.par_dim: then those
            before it count tiles, each with memory of its own.
        dtype: element type.
        buffer: nl.sbuf (the default), nl.psum, memory placed with nki.compiler, nl.hbm or nl.shared_hbm.

    Returns:
        A tile, or a tensor of tiles that takes integers for the dimensions before its partition.
    """
    sizes = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    element = of(dtype)
    where = sbuf if buffer is None else buffer
    if isinstance(where, MemoryRegion) and where.value.endswith("hbm"):
        return Tile.of(allocate(where, tuple(map(int, sizes)), element, name))
    if isinstance(where, MemoryRegion):
        where = OnChip(where.value)
    blocks = next((d for d, n in enumerate(sizes) if isinstance(n, par_dim)), 0)
    whole = tuple(map(int, sizes))
    tile_shape = whole[blocks:] if len(whole) - blocks > 1 else (*whole[blocks:], 1)

    # Tiles of one tensor that take turns at a place are one piece of memory, whose accesses keep their order.
    places: dict[tuple[int, int], Tile] = {}

    def make(place: tuple[int, ...]) -> Tile:
        address = None
        if where.place is not None:
            address = where.place(place, tile_shape[0], prod(tile_shape[1:]) * element.itemsize)
            if address in places:
                context.current().forget(places[address].storage)
                return places[address].again()
        tile = fresh(tile_shape, element, where.region, name, address)
        if address is not None:
            places[address] = tile
        return tile

    return BlockTensor(whole, blocks, element, make, name) if blocks else make(())


def full(shape: Any, fill_value: Any, dtype: Any, *, buffer: Any = None, name: str = "", **_: Any) -> Any:
    """A tensor full of one number; see :func:`ndarray`."""
    tensor = ndarray(shape, dtype, buffer=buffer, name=name)
    for tile in tensor.tiles() if isinstance(tensor, BlockTensor) else [tensor]:
        filled(tile, fill_value)
    return tensor


def zeros(shape: Any, dtype: Any, *, buffer: Any = None, name: str = "", **_: Any) -> Any:
    """A tensor full of zeros; see :func:`ndarray`."""
    return full(shape, 0, dtype, buffer=buffer, name=name)


def ones(shape: Any, dtype: Any, *, buffer: Any = None, name: str = "", **_: Any) -> Any:
    """A tensor full of ones; see :func:`ndarray`."""
    return full(shape, 1, dtype, buffer=buffer, name=name)


def _buffer_of(a: Any) -> Any:
    region = a.tiles()[0].buffer if isinstance(a, BlockTensor) else a.buffer
    return MemoryRegion.private_hbm if region.value.endswith("hbm") else OnChip(region.value)


def _shape_of(a: Any) -> tuple[int, ...]:
    if isinstance(a, BlockTensor):
        blocks = len(a.blocks)
        return (*a.shape[:blocks], par_dim(a.shape[blocks]), *a.shape[blocks + 1 :])
    return tuple(a.shape)


def empty_like(a: Any, dtype: Any = None, *, buffer: Any = None, name: str = "", **_: Any) -> Any:
    """A tensor of the shape, type and memory of another, with nothing particular in it."""
    return ndarray(_shape_of(a), dtype or a.dtype, buffer=buffer or _buffer_of(a), name=name)


def zeros_like(a: Any, dtype: Any = None, *, buffer: Any = None, name: str = "", **_: Any) -> Any:
    """A tensor of the shape, type and memory of another, full of zeros."""
    return zeros(_shape_of(a), dtype or a.dtype, buffer=buffer or _buffer_of(a), name=name)


def rand(shape: Sequence[int], dtype: Any = "float32", **_: Any) -> Tile:
    """A tile of random numbers, uniform in [0, 1)."""
    from nki.language import rand as uniform

    return Tile.of(uniform(tuple(shape), dtype=of(dtype)))


def shared_constant(constant: Any, dtype: Any = None, **_: Any) -> Tile:
    """A NumPy array as a tensor in HBM, which is there before the kernel begins."""
    values = np.asarray(constant)
    values = np.ascontiguousarray(values, None if dtype is None else of(dtype).numpy)
    element = of(values.dtype) if dtype is None else of(dtype)
    tensor = allocate(MemoryRegion.shared_hbm, values.shape or (1,), element, "", None, "constant", values)
    return Tile.of(tensor)


def shared_identity_matrix(n: int, dtype: Any = "uint8", **_: Any) -> Tile:
    """The identity matrix of n rows as a tensor in HBM."""
    return shared_constant(np.identity(n, np.float32), dtype)


def static_cast(input_data: Any, dtype: Any) -> Any:
    """A tile, or an array outside of kernels, with elements of another type."""
    if isinstance(input_data, (Tile, BlockTensor)):
        return converted(in_sbuf(as_tile(input_data)), of(dtype))
    return np.asarray(input_data).astype(of(dtype).numpy)
