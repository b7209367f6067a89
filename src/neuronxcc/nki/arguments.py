"""Tensors on their way into a kernel of the Beta 1 dialect and out of it."""

from __future__ import annotations

from typing import Any

from nki import arrays
from nki.memory import allocate
from nki.regions import MemoryRegion
from nki.tensor import NkiTensor

from .emission import as_tile, transfer
from .tile import BlockTensor, Tile

__all__ = ["is_array", "results", "tiles"]

is_array = arrays.is_array


def _mapped(value: Any, function: Any) -> Any:
    if isinstance(value, (NkiTensor, BlockTensor)):
        return function(value)
    if isinstance(value, dict):
        return {k: _mapped(v, function) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        inner = [_mapped(v, function) for v in value]
        return type(value)(*inner) if hasattr(value, "_fields") else type(value)(inner)
    return value


def tiles(value: Any) -> Any:
    """A nest of arguments with tensors as tiles of this dialect."""
    return _mapped(value, Tile.of)


def results(value: Any) -> Any:
    """A nest of results with tensors that callers can have: what lies elsewhere is copied to shared HBM."""
    return _mapped(value, _output)


def _output(tensor: Any) -> Tile:
    tile = as_tile(tensor)
    storage = tile.storage
    if storage.role == "argument":
        return tile
    whole = tile.table is None and tile.offset == 0 and tile.size == storage.free and tile.dtype == storage.dtype
    if not storage.on_chip and whole:
        # In this dialect a result may lie in any HBM.
        storage.region = "shared_hbm"
        return tile
    result = Tile.of(allocate(MemoryRegion.shared_hbm, tile.shape, tile.dtype, storage.name))
    transfer(result, tile)
    return result
