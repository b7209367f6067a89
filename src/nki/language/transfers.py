"""Tiles between memories and in other layouts: loads, stores, copies, transposes, matrix products."""

from __future__ import annotations

from typing import Any

from .. import isa
from ..element_types import TYPES, of
from ..instruction import Instruction
from ..memory import allocate
from ..regions import PSUM, SBUF, is_hbm
from ..tensor import NkiTensor
from ..tensor_errors import LanguageArgumentError, ShapeMismatchError
from ..trace import current, source_line

__all__ = [
    "broadcast_to", "copy", "device_print", "expand_dims", "gather_flattened", "load", "load_transpose2d", "matmul",
    "store", "transpose",
]  # fmt: skip


def _require(condition: bool, function: str, what: str) -> None:
    if not condition:
        raise LanguageArgumentError(function=function, what=what, line=source_line())


def load(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A tile from HBM.

    Args:
        src: a tensor in HBM of at least 2 dimensions, the first, at most 128, for the partition.
        dtype: of the tile, by default that of `src`.

    Returns:
        A tile of the same shape in SBUF.

    Raises:
        LanguageArgumentError: `src` is on chip.
    """
    _require(is_hbm(src.buffer), "load", f"{src} is on chip already; nl.copy copies tiles")
    tile = allocate(SBUF, src.shape, src.dtype if dtype is None else dtype)
    isa.dma_copy(dst=tile, src=src)
    return tile


def store(dst: NkiTensor, value: NkiTensor) -> None:
    """Puts a tile into HBM.

    Args:
        dst: a tensor in HBM with as many elements.
        value: a tile in SBUF. What is in PSUM is copied to SBUF first (nl.copy).

    Raises:
        LanguageArgumentError: other memories.
    """
    _require(isinstance(value, NkiTensor), "store", f"the value is a {type(value).__name__}, not a tile")
    _require(is_hbm(dst.buffer), "store", f"{dst} is not in HBM")
    _require(
        value.buffer is SBUF, "store", f"{value} is not in SBUF, where DMA reads tiles from; nl.copy brings it there"
    )
    isa.dma_copy(dst=dst, src=value)


def load_transpose2d(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A transposed tile from HBM, by a transposing DMA.

    Args:
        src: a tensor (f, p) in HBM; p at most 128.
        dtype: of the tile, by default that of `src`.

    Returns:
        A tile (p, f) in SBUF.

    Raises:
        LanguageArgumentError: not 2 dimensions.
    """
    _require(len(src.shape) == 2, "load_transpose2d", f"{src} has {len(src.shape)} dimensions, not 2")
    tile = allocate(SBUF, (src.shape[1], src.shape[0]), src.dtype)
    isa.dma_transpose(dst=tile, src=src)
    return tile if dtype is None or of(dtype) == src.dtype else copy(tile, dtype)


def copy(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A copy of a tile in SBUF, by the Vector engine.

    Args:
        x: a tile in SBUF or PSUM.
        dtype: of the copy, by default that of `x`; the bits are the same where the type is.

    Returns:
        The copy.
    """
    tile = allocate(SBUF, x.shape, x.dtype if dtype is None else dtype)
    isa.tensor_copy(dst=tile, src=x)
    return tile


def transpose(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """The partition and the free dimension of a tile exchanged, by the Tensor engine.

    Args:
        x: a tile (p, f) in SBUF, each at most 128.
        dtype: of the result, by default that of `x`.

    Returns:
        A tile (f, p) in PSUM; in SBUF where its type is another one.

    Raises:
        LanguageArgumentError: not 2 dimensions.
    """
    _require(len(x.shape) == 2, "transpose", f"{x} has {len(x.shape)} dimensions, not 2")
    tile = allocate(PSUM, (x.shape[1], x.shape[0]), x.dtype)
    isa.nc_transpose(dst=tile, data=x)
    return tile if dtype is None or of(dtype) == x.dtype else copy(tile, dtype)


def matmul(x: NkiTensor, y: NkiTensor, transpose_x: bool = False) -> NkiTensor:
    """The matrix product of tiles, by the Tensor engine, with sums in fp32.

    Args:
        x: a tile (m, k) in SBUF, or (k, m) with `transpose_x`, which is how the engine wants it: without, the tile is
            transposed and copied first. m and k at most 128.
        y: a tile (k, n) in SBUF; n at most 512.
        transpose_x: `x` is transposed already.

    Returns:
        A tile (m, n) of fp32 in PSUM.

    Raises:
        ShapeMismatchError: different k.
        LanguageArgumentError: not 2 dimensions.
    """
    _require(len(x.shape) == 2 == len(y.shape), "matmul", f"{x} and {y} do not both have 2 dimensions")
    if x.shape[0 if transpose_x else 1] != y.shape[0]:
        raise ShapeMismatchError(function="matmul", first=x.shape, second=y.shape, line=source_line())
    stationary = x if transpose_x else copy(transpose(x))
    tile = allocate(PSUM, (stationary.shape[1], y.shape[1]), TYPES["float32"])
    isa.nc_matmul(dst=tile, stationary=stationary, moving=y)
    return tile


def gather_flattened(data: NkiTensor, indices: NkiTensor, axis: int = 0, dtype: Any = None) -> NkiTensor:
    """Elements of each partition by their numbers: `result[p, i] = data[p].flatten()[indices[p, i]]`.

    Args:
        data: a tile in SBUF.
        indices: a tile of uint32 in SBUF with the same partitions.
        axis: 0; elements are counted through all free dimensions.
        dtype: of the result, by default that of `data`.

    Returns:
        A tile of the shape of `indices` in SBUF.

    Raises:
        LanguageArgumentError: another axis.
    """
    _require(axis == 0, "gather_flattened", f"axis={axis!r}; elements are counted through all free dimensions, axis=0")
    tile = allocate(SBUF, indices.shape, data.dtype if dtype is None else dtype)
    isa.nc_n_gather(dst=tile, data=data, indices=indices)
    return tile


def expand_dims(x: NkiTensor, axis: int) -> NkiTensor:
    """A view of a tile with a new dimension of size 1 at place `axis`, which is not the partition's."""
    return x.expand_dim(axis)


def broadcast_to(x: NkiTensor, shape: Any, dtype: Any = None) -> NkiTensor:
    """A tile repeated along dimensions of size 1.

    Args:
        x: a tile in SBUF or PSUM.
        shape: of the result: as many dimensions, each the same as that of `x`, or anything where that is 1.
        dtype: of the result, by default that of `x`.

    Returns:
        `x` itself where nothing changes, else a new tile in SBUF. Partitions are repeated by DMAs, each of which
        doubles what is there.

    Raises:
        ShapeMismatchError: another shape.
    """
    sizes = tuple(shape)
    kind = x.dtype if dtype is None else of(dtype)
    if len(sizes) != len(x.shape) or any(old not in (1, new) for old, new in zip(x.shape, sizes, strict=True)):
        raise ShapeMismatchError(function="broadcast_to", first=x.shape, second=sizes, line=source_line())
    if sizes == x.shape and kind == x.dtype:
        return x
    view = x
    for dim in range(1, len(sizes)):
        if view.shape[dim] != sizes[dim]:
            view = view.broadcast(dim, sizes[dim])
    tile = allocate(SBUF, sizes, kind)
    isa.tensor_copy(dst=tile.slice(0, 0, x.shape[0]), src=view)
    done = x.shape[0]
    while done < sizes[0]:
        count = min(done, sizes[0] - done)
        isa.dma_copy(dst=tile.slice(0, done, done + count), src=tile.slice(0, 0, count))
        done += count
    return tile


def device_print(print_prefix: str, tensor: NkiTensor) -> None:
    """Prints a tensor when the kernel runs: to the standard output, in a simulation.

    Args:
        print_prefix: text before it.
        tensor: a tensor in SBUF, PSUM or HBM.

    Raises:
        LanguageArgumentError: the prefix is no string, or there is no tensor.
    """
    _require(isinstance(print_prefix, str), "device_print", f"the prefix is {print_prefix!r}, not a string")
    _require(isinstance(tensor, NkiTensor), "device_print", f"{tensor!r} is no tensor")
    current().add(Instruction("print", "sync", (), (tensor,), (print_prefix,), source_line()))
