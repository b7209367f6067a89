"""Tensors and tiles of the Beta 1 dialect: indexed by expressions, assigned to, and computed with by operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nki.element_types import DType, of
from nki.errors import BlockIndexError
from nki.storage import Storage
from nki.tensor import Dynamic, NkiTensor
from nki.trace import source_line

if TYPE_CHECKING:
    from .indices import Index, Mask

__all__ = ["BlockTensor", "Reduction", "Tile"]


class Reduction:
    """What makes `tile[...] = value` add to the tile: the value comes from loop_reduce.

    Attributes:
        op: operator.
        first: whether this is the first iteration, in which the tile is overwritten.
    """

    def __init__(self, op: Any, first: bool) -> None:
        self.op = op
        self.first = first


def _operator(name: str, swapped: bool = False) -> Callable[[Any, Any], Any]:
    def operator(self: Tile, other: Any) -> Any:
        from .language import elementwise

        function = getattr(elementwise, name)
        return function(other, self) if swapped else function(self, other)

    return operator


def _in_place(name: str) -> Callable[[Any, Any], Any]:
    def operator(self: Tile, other: Any) -> Any:
        from .assignment import accumulate

        accumulate(self, other, name)
        return self

    return operator


def _unary(name: str) -> Callable[[Any], Any]:
    def operator(self: Tile) -> Any:
        from .language import elementwise

        return getattr(elementwise, name)(self)

    return operator


class Tile(NkiTensor):
    """A view of a storage, as in :class:`nki.tensor.NkiTensor`, that may be irregular.

    Attributes:
        table: numbers of its elements in the storage where strides cannot say them (then strides mean nothing; -1 is
            left out), else None.
        bounds: (index expression, size, dimension) of each dimension that the view may leave unless it is masked.
        mask: elements that were written, where the tile is the result of a masked instruction.
        reduction: set by loop_reduce.
    """

    __slots__ = ("bounds", "mask", "reduction", "table")
    __array_ufunc__ = None  # NumPy's numbers leave operators to this class

    def __init__(
        self,
        storage: Storage,
        dtype: DType,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        offset: int = 0,
        dynamic: Dynamic | None = None,
        table: np.ndarray[Any, Any] | None = None,
        bounds: tuple[tuple[Index, int, int], ...] = (),
    ) -> None:
        super().__init__(storage, dtype, shape, strides, offset, dynamic)
        self.table = table
        self.bounds = bounds
        self.mask: Mask | None = None
        self.reduction: Reduction | None = None

    @classmethod
    def of(cls, tensor: NkiTensor) -> Tile:
        """The same view as a tile of this dialect."""
        if isinstance(tensor, cls):
            return tensor
        return cls(tensor.storage, tensor.dtype, tensor.shape, tensor.strides, tensor.offset, tensor.dynamic)

    def again(self) -> Tile:
        """The same view as another object, without notes."""
        return Tile(
            self.storage, self.dtype, self.shape, self.strides, self.offset, self.dynamic, self.table, self.bounds
        )

    @property
    def on_chip(self) -> bool:
        return self.storage.on_chip

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    def __getitem__(self, key: Any) -> Tile:
        from .addressing import locate

        return locate(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        from .assignment import assign

        assign(self[key], value)

    def astype(self, dtype: Any) -> Tile:
        """A copy with elements of another type."""
        from .emission import converted

        return converted(self, of(dtype))

    def broadcast_to(self, shape: Sequence[int]) -> Tile:
        """The tile repeated along dimensions of size 1; repeating partitions copies."""
        from .emission import broadcast

        return broadcast(self, tuple(shape))

    def expand_dims(self, axis: int) -> Tile:
        """A view with one more dimension, of size 1, at `axis`."""
        place = axis % (self.ndim + 1)
        shape = (*self.shape[:place], 1, *self.shape[place:])
        strides = (*self.strides[:place], 1, *self.strides[place:])
        return Tile(self.storage, self.dtype, shape, strides, self.offset, self.dynamic)

    def assert_shape(self, shape: Sequence[int]) -> Tile:
        """The tile itself, when it has this shape."""
        assert self.shape == tuple(shape), f"shape {self.shape} is not {tuple(shape)}"
        return self

    __hash__ = object.__hash__

    __add__, __radd__, __iadd__ = _operator("add"), _operator("add", True), _in_place("add")
    __sub__, __rsub__, __isub__ = _operator("subtract"), _operator("subtract", True), _in_place("subtract")
    __mul__, __rmul__, __imul__ = _operator("multiply"), _operator("multiply", True), _in_place("multiply")
    __truediv__, __rtruediv__, __itruediv__ = _operator("divide"), _operator("divide", True), _in_place("divide")
    __pow__, __rpow__ = _operator("power"), _operator("power", True)
    __mod__, __rmod__ = _operator("mod"), _operator("mod", True)
    __and__, __rand__, __iand__ = _operator("bitwise_and"), _operator("bitwise_and", True), _in_place("bitwise_and")
    __or__, __ror__, __ior__ = _operator("bitwise_or"), _operator("bitwise_or", True), _in_place("bitwise_or")
    __xor__, __rxor__, __ixor__ = _operator("bitwise_xor"), _operator("bitwise_xor", True), _in_place("bitwise_xor")
    __lshift__, __rshift__ = _operator("left_shift"), _operator("right_shift")
    __lt__, __le__ = _operator("less"), _operator("less_equal")
    __gt__, __ge__ = _operator("greater"), _operator("greater_equal")
    __eq__ = _operator("equal")
    __ne__ = _operator("not_equal")
    __neg__ = _unary("negative")
    __invert__ = _unary("invert")
    __abs__ = _unary("abs")


class BlockTensor:
    """A tensor on chip with dimensions before its partition: as many tiles, each with memory of its own.

    Attributes:
        shape: of the whole, blocks first.
        dtype: of the elements.
        blocks: sizes of the dimensions before the partition that have no index yet.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        blocks: int,
        dtype: DType,
        make: Callable[[tuple[int, ...]], Tile],
        name: str = "",
        place: tuple[int, ...] = (),
        tiles: dict[tuple[int, ...], Tile] | None = None,
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.blocks = shape[:blocks]
        self.name = name
        self._make = make
        self._place = place
        self._tiles = {} if tiles is None else tiles

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def tile(self, place: tuple[int, ...]) -> Tile:
        """The tile at `place`, which gets memory when it is first asked for."""
        found = self._tiles.get(place)
        if found is None:
            found = self._tiles[place] = self._make(place)
        return found

    def tiles(self) -> list[Tile]:
        """All of them, in order."""
        return [self.tile(self._place + place) for place in np.ndindex(*self.blocks)]

    def _split(self, key: Any) -> tuple[BlockTensor | Tile, tuple[Any, ...]]:
        """The tile (or the block tensor of fewer dimensions) that a key means, and the rest of the key."""
        keys = key if isinstance(key, tuple) else (key,)
        if keys and keys[0] is Ellipsis and all(n == 1 for n in self.blocks):
            keys = (0,) * len(self.blocks) + keys
        place = []
        for k, n in zip(keys, self.blocks, strict=False):
            try:
                place.append(range(n)[k.__index__()])
            except (AttributeError, IndexError, TypeError):
                self._refuse()
        if len(place) < len(self.blocks):
            rest = len(self.blocks) - len(place)
            return (
                BlockTensor(
                    self.shape[len(place) :], rest, self.dtype, self._make, self.name, (*self._place, *place),
                    self._tiles,
                ),
                (),
            )  # fmt: skip
        return self.tile((*self._place, *place)), keys[len(place) :]

    def _refuse(self) -> None:
        raise BlockIndexError(
            tensor=self.name or "The tensor", shape=self.shape, blocks=len(self.blocks), line=source_line()
        ) from None

    def __getitem__(self, key: Any) -> Any:
        found, rest = self._split(key)
        return found[rest] if isinstance(found, Tile) and rest else found

    def __setitem__(self, key: Any, value: Any) -> None:
        found, rest = self._split(key)
        if isinstance(found, Tile):
            found[rest or ...] = value
            return
        for tile in found.tiles():
            tile[...] = value

    def __repr__(self) -> str:
        return (
            f"<tensor {self.name!r} {self.dtype}{list(self.shape)}, {len(self.blocks)} dimensions before the partition>"
        )
