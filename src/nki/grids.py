"""Tensors by their tiles: `nl.tiles(x, tile_shape=(128, 512))[i, j].data` is tile (i, j), shorter at the edges.

A grid describes a region of a tensor: for each dimension where it begins and ends, how large a cell is, and which cells
are selected. Making and indexing one allocates nothing and moves nothing.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from .element_types import DType, of
from .memory import allocate, region_of
from .regions import MemoryRegion, is_on_chip
from .tensor import NkiTensor
from .tensor_errors import GridDataError, IndexOutOfBoundsError, TileShapeError, TileShapeKindError, TooManyIndicesError
from .trace import source_line

__all__ = [
    "NkiBlockGrid", "NkiGrid", "NkiTileGrid", "alloc_blocks", "alloc_tiles", "blocks", "empty_grid_like", "tiles",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Axis:
    """Cells along one dimension: those that begin at begin, begin + step * cell, ... before end, where the last is cut.

    `open` says whether the dimension can still be indexed.
    """

    begin: int
    end: int
    cell: int
    step: int = 1
    open: bool = True

    @property
    def count(self) -> int:
        return -((self.begin - self.end) // (self.step * self.cell))

    @property
    def last(self) -> int:
        """Elements of the last cell."""
        return min(self.cell, self.end - self.begin - (self.count - 1) * self.step * self.cell)

    @property
    def elements(self) -> int:
        return (self.count - 1) * self.cell + self.last

    @property
    def in_one_piece(self) -> bool:
        return self.step == 1 or self.count == 1 or self.cell == 1

    def pick(self, first: int, count: int, step: int, still_open: bool) -> _Axis:
        begin = self.begin + first * self.step * self.cell
        final = begin + (count - 1) * step * self.step * self.cell
        return _Axis(
            begin, min(final + self.cell, self.end), self.cell, step * self.step if count > 1 else 1, still_open
        )


class NkiGrid:
    """A region of a tensor in tiles or blocks of tiles; see :func:`tiles` and :func:`blocks`, which make them.

    Index it with integers and slices, one per dimension of `shape`. The result is a grid again; `data` is its tensor.
    """

    __slots__ = ("_axes", "_folded", "_source", "_tile")

    def __init__(
        self, source: NkiTensor, tile: tuple[int, ...], axes: tuple[_Axis, ...], folded: tuple[int, ...] | None
    ) -> None:
        self._source = source
        self._tile = tile
        self._axes = axes
        # Numbers of tiles of the whole tensor where they lie behind each other in the free dimension, as on chip.
        self._folded = folded

    def _like(self, axes: tuple[_Axis, ...]) -> Any:
        return type(self)(self._source, self._tile, axes, self._folded)

    @property
    def shape(self) -> tuple[int, ...]:
        """Cells along each dimension that can be indexed; of dimensions without tiles, elements."""
        return tuple(axis.count for axis in self._axes if axis.open)

    @property
    def tile_shape(self) -> tuple[int, ...]:
        """Elements of a whole tile, for the last dimensions."""
        return self._tile

    @property
    def _kept(self) -> tuple[_Axis, ...]:
        """Dimensions of the selection: all but those without tiles that an integer has taken."""
        first = len(self._axes) - len(self._tile)
        return tuple(axis for dim, axis in enumerate(self._axes) if dim >= first or axis.open)

    @property
    def element_shape(self) -> tuple[int, ...]:
        """Selected elements along each dimension."""
        return tuple(axis.elements for axis in self._kept)

    @property
    def index_step_elements(self) -> tuple[int, ...]:
        """Elements from one cell to the next, for each dimension of `shape`."""
        return tuple(axis.step * axis.cell for axis in self._axes if axis.open)

    @property
    def dtype(self) -> DType:
        return self._source.dtype

    @property
    def buffer(self) -> MemoryRegion:
        return self._source.buffer

    @property
    def is_remainder(self) -> bool:
        """Whether a selected cell is cut by the edge of the tensor."""
        return any(axis.last < axis.cell for axis in self._axes)

    @property
    def is_data_representable(self) -> bool:
        """Whether :attr:`data` exists."""
        return self._obstacle() is None

    @property
    def data(self) -> NkiTensor:
        """The selection as one tensor of shape `element_shape`.

        Raises:
            GridDataError: its elements are no single access pattern.
        """
        obstacle = self._obstacle()
        if obstacle is not None:
            raise GridDataError(grid=self, why=obstacle, line=source_line())
        if self._folded is not None:
            return self._folded_data()
        keys: list[Any] = []
        first = len(self._axes) - len(self._tile)
        for dim, axis in enumerate(self._axes):
            if dim < first and not axis.open:
                keys.append(axis.begin)
            else:
                keys.append(slice(axis.begin, axis.end, axis.step if axis.step > 1 else None))
        return self._source[tuple(keys)]

    def _obstacle(self) -> str | None:
        if not all(axis.in_one_piece for axis in self._axes):
            return "there are gaps between the selected cells"
        if self._folded is None:
            return None
        several = [dim for dim, axis in enumerate(self._axes) if axis.elements > self._unit(dim)]
        if several and (several != [len(self._axes) - 1] or len(self._tile) != 2):
            return "its tiles lie behind each other in the free dimension"
        return None

    def _unit(self, dim: int) -> int:
        """Elements of a tile in dimension `dim`; 1 where there are none."""
        first = len(self._axes) - len(self._tile)
        return 1 if dim < first else self._tile[dim - first]

    def _folded_data(self) -> NkiTensor:
        assert self._folded is not None
        number = 0
        for dim, (axis, count) in enumerate(zip(self._axes, self._folded, strict=True)):
            number = number * count + axis.begin // self._unit(dim)
        width = prod(self._tile[1:])
        tiled = self._axes[len(self._axes) - len(self._tile) :]
        rows = tiled[0].elements
        if len(self._tile) == 2:
            return self._source[0:rows, number * width : number * width + tiled[1].elements]
        whole = self._source[0:rows, number * width : (number + 1) * width].reshape((rows, *self._tile[1:]))
        return whole[(slice(None), *(slice(0, axis.elements) for axis in tiled[1:]))]

    def __getitem__(self, key: Any) -> Any:
        """Some of the cells. An integer takes its dimension out of `shape`; the tile itself keeps all dimensions."""
        given = key if isinstance(key, tuple) else (key,)
        places = [dim for dim, axis in enumerate(self._axes) if axis.open]
        if Ellipsis in given:
            at = given.index(Ellipsis)
            rest = (slice(None),) * (len(places) - len(given) + 1)
            given = (*given[:at], *rest, *given[at + 1 :])
        if len(given) > len(places):
            raise TooManyIndicesError(tensor=self, given=len(given), count=len(places), line=source_line())
        axes = list(self._axes)
        for number, (k, dim) in enumerate(zip(given, places, strict=False)):
            axis = axes[dim]
            n = axis.count
            if isinstance(k, slice):
                first, stop, step = k.indices(n)
                if step < 1 or first >= stop:
                    raise IndexOutOfBoundsError(tensor=self, dim=number, size=n, index=k, line=source_line())
                axes[dim] = axis.pick(first, -((first - stop) // step), step, True)
                continue
            position = operator.index(k)
            if not -n <= position < n:
                raise IndexOutOfBoundsError(tensor=self, dim=number, size=n, index=k, line=source_line())
            axes[dim] = axis.pick(position % n, 1, 1, False)
        return self._like(tuple(axes))

    def __repr__(self) -> str:
        cells = "x".join(map(str, self.shape)) or "1"
        return f"<{type(self).__name__} of {cells} cells, tiles {list(self._tile)}, of {self._source}>"


class NkiTileGrid(NkiGrid):
    """A grid whose cells are tiles."""

    __slots__ = ()


class NkiBlockGrid(NkiGrid):
    """A grid whose cells are blocks of tiles.

    Attributes:
        block_shape: tiles in a whole block, along each of the last dimensions.
    """

    __slots__ = ("_block",)

    def __init__(
        self,
        source: NkiTensor,
        tile: tuple[int, ...],
        axes: tuple[_Axis, ...],
        folded: tuple[int, ...] | None,
        block: tuple[int, ...],
    ) -> None:
        super().__init__(source, tile, axes, folded)
        self._block = block

    def _like(self, axes: tuple[_Axis, ...]) -> NkiBlockGrid:
        return NkiBlockGrid(self._source, self._tile, axes, self._folded, self._block)

    @property
    def block_shape(self) -> tuple[int, ...]:
        return self._block


def _sizes(function: str, name: str, value: Any, at_least: int = 1) -> tuple[int, ...]:
    if not isinstance(value, tuple) or not all(type(n) is int for n in value):
        raise TileShapeKindError(function=function, name=name, value=value, line=source_line())
    if len(value) < at_least or min(value) < 1:
        what = f"{name}={value} has to have positive sizes, at least {at_least} of them"
        raise TileShapeError(function=function, what=what, line=source_line())
    return value


def _region(function: str, source: Any, tile_shape: Any) -> tuple[Any, ...]:
    """Tensor, tile shape, dimensions as one cell each, and folding of what a grid is made from."""
    if isinstance(source, NkiGrid):
        tile = source.tile_shape if tile_shape is None else _sizes(function, "tile_shape", tile_shape, 2)
        if not all(axis.in_one_piece for axis in source._axes):
            what = f"{source} has gaps between its cells; take a range of them without a step"
            raise TileShapeError(function=function, what=what, line=source_line())
        if len(tile) != len(source._tile) or (source._folded is not None and tile != source._tile):
            what = f"tile_shape={tile} does not fit the tiles {source._tile} in memory"
            raise TileShapeError(function=function, what=what, line=source_line())
        return source._source, tile, source._axes, source._folded
    if not isinstance(source, NkiTensor):
        raise TileShapeKindError(function=function, name="source", value=source, line=source_line())
    tile = _sizes(function, "tile_shape", tile_shape, 2)
    if len(tile) > len(source.shape) or (is_on_chip(source.buffer) and len(tile) != len(source.shape)):
        what = f"tile_shape={tile} does not fit the dimensions of {source}"
        raise TileShapeError(function=function, what=what, line=source_line())
    return source, tile, tuple(_Axis(0, n, 1) for n in source.shape), None


def _divided(axes: tuple[_Axis, ...], cells: tuple[int, ...]) -> tuple[_Axis, ...]:
    """The last dimensions in cells of other sizes, to be indexed again."""
    first = len(axes) - len(cells)
    tiled = (replace(axis, cell=cell, step=1, open=True) for axis, cell in zip(axes[first:], cells, strict=True))
    return (*axes[:first], *tiled)


def tiles(source: Any, *, tile_shape: tuple[int, ...] | None = None) -> NkiTileGrid:
    """A tensor, or what a grid has selected, as a grid of tiles.

    Args:
        source: a tensor or a grid.
        tile_shape: elements of a tile, for the last dimensions; at least 2 of them. A grid's own by default. Dimensions
            of a tensor in HBM before them are indexed element by element.

    Returns:
        The grid. Tiles at the edges are cut.

    Raises:
        TileShapeKindError: no tuple of integers, or neither tensor nor grid.
        TileShapeError: a shape that does not fit.
    """
    tensor, tile, axes, folded = _region("nl.tiles", source, tile_shape)
    return NkiTileGrid(tensor, tile, _divided(axes, tile), folded)


def blocks(source: Any, *, tile_shape: tuple[int, ...] | None = None, block_shape: tuple[int, ...]) -> NkiBlockGrid:
    """A tensor, or what a grid has selected, as a grid of blocks, each of `block_shape` tiles.

    Args:
        source, tile_shape: as of :func:`tiles`.
        block_shape: tiles in a block, along each dimension of a tile.

    Returns:
        The grid. Blocks and tiles at the edges are cut; nl.tiles of a block has its tiles.

    Raises:
        TileShapeKindError, TileShapeError: as of :func:`tiles`.
    """
    tensor, tile, axes, folded = _region("nl.blocks", source, tile_shape)
    block = _block("nl.blocks", block_shape, tile)
    cells = tuple(t * b for t, b in zip(tile, block, strict=True))
    return NkiBlockGrid(tensor, tile, _divided(axes, cells), folded, block)


def _block(function: str, block_shape: Any, tile: tuple[int, ...]) -> tuple[int, ...]:
    block = _sizes(function, "block_shape", block_shape)
    if len(block) != len(tile):
        what = f"block_shape={block} does not have the {len(tile)} dimensions of tile_shape={tile}"
        raise TileShapeError(function=function, what=what, line=source_line())
    return block


def alloc_tiles(
    *,
    tile_shape: tuple[int, ...],
    element_shape: tuple[int, ...],
    buffer: Any,
    dtype: Any,
    address: tuple[int, int] | None = None,
    name: str = "",
) -> NkiTileGrid:
    """A new tensor as a grid of tiles. On chip whole tiles lie behind each other in the free dimension.

    Args:
        tile_shape: elements of a tile, for the last dimensions; at least 2 of them.
        element_shape: elements in all.
        buffer, dtype, address, name: as of nl.ndarray.

    Raises:
        TileShapeKindError, TileShapeError: as of :func:`tiles`.
        Those of nl.ndarray.
    """
    tile = _sizes("nl.alloc_tiles", "tile_shape", tile_shape, 2)
    extent = _sizes("nl.alloc_tiles", "element_shape", element_shape)
    region = region_of(buffer)
    first = len(extent) - len(tile)
    if first < 0:
        what = f"tile_shape={tile} has more dimensions than element_shape={extent}"
        raise TileShapeError(function="nl.alloc_tiles", what=what, line=source_line())
    axes = tuple(_Axis(0, n, 1) for n in extent)
    if not is_on_chip(region):
        return NkiTileGrid(allocate(region, extent, of(dtype), name, address), tile, _divided(axes, tile), None)
    folded = (*extent[:first], *(-(-n // t) for n, t in zip(extent[first:], tile, strict=True)))
    shape = (tile[0], prod(folded) * prod(tile[1:]))
    return NkiTileGrid(allocate(region, shape, of(dtype), name, address), tile, _divided(axes, tile), folded)


def alloc_blocks(
    *,
    tile_shape: tuple[int, ...],
    block_shape: tuple[int, ...],
    element_shape: tuple[int, ...],
    buffer: Any,
    dtype: Any,
    address: tuple[int, int] | None = None,
    name: str = "",
) -> NkiBlockGrid:
    """A new tensor as a grid of blocks of tiles, which lie as :func:`alloc_tiles` lays them; arguments as there."""
    _block("nl.alloc_blocks", block_shape, tile_shape)
    grid = alloc_tiles(
        tile_shape=tile_shape, element_shape=element_shape, buffer=buffer, dtype=dtype, address=address, name=name
    )
    return blocks(grid, block_shape=block_shape)


def empty_grid_like(
    grid: NkiGrid, dtype: DType, region: MemoryRegion, name: str, address: tuple[int, int] | None
) -> NkiGrid:
    """A new tensor as a grid with the cells that `grid` has selected, and nothing particular in it."""
    made: NkiGrid = alloc_tiles(
        tile_shape=grid.tile_shape,
        element_shape=grid.element_shape,
        buffer=region,
        dtype=dtype,
        address=address,
        name=name,
    )
    if isinstance(grid, NkiBlockGrid):
        made = blocks(made, block_shape=grid.block_shape)
    return made[tuple(slice(None) if axis.open else 0 for axis in grid._kept)]
