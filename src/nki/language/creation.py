"""New tensors: empty, filled, constant, random."""

from __future__ import annotations

import os
from math import prod
from typing import Any

import numpy as np

from .. import isa
from ..element_types import TYPES, DType, of
from ..grids import NkiGrid, empty_grid_like
from ..memory import allocate, is_hbm, is_on_chip, region_of
from ..regions import SBUF, MemoryRegion
from ..storage import Storage
from ..tensor import NkiTensor
from ..tensor_errors import ConstantError, LanguageArgumentError
from ..trace import current, source_line
from . import elementwise as el

__all__ = [
    "empty_like", "full", "ndarray", "ones", "rand", "random_seed", "shared_constant", "shared_identity_matrix",
    "zeros", "zeros_like",
]  # fmt: skip

_UINT32 = TYPES["uint32"]
# Elements per partition of the tile that a tensor in HBM is filled from.
_FILL = 2048


def ndarray(
    shape: Any, dtype: Any, buffer: Any = SBUF, name: str = "", address: tuple[int, int] | None = None
) -> NkiTensor:
    """A new tensor with nothing particular in it (NaN, in a simulation).

    Args:
        shape: sizes. On chip the first is the partition, at most 128, and there are at least 2.
        dtype: element type.
        buffer: memory: nl.sbuf, nl.psum, nl.hbm, nl.private_hbm or nl.shared_hbm.
        name: for messages and schedules.
        address: on chip (first partition, byte within the partition), for tensors whose place matters. In PSUM the byte
            is a multiple of 2048. Tensors at overlapping addresses share memory.

    Returns:
        The tensor.

    Raises:
        BufferKindError, TensorShapeError, PartitionDimensionError, PsumTileError, AddressError: no such tensor exists.
        OutsideKernelError: no kernel is being traced.
    """
    return allocate(region_of(buffer), shape, dtype, name, address)


def full(shape: Any, fill_value: Any, dtype: Any, buffer: Any = SBUF, name: str = "") -> NkiTensor:
    """A new tensor with `fill_value` everywhere; arguments as of :func:`ndarray`."""
    region = region_of(buffer)
    tensor = allocate(region, shape, dtype, name)
    if is_on_chip(region):
        isa.memset(dst=tensor, value=_number(fill_value, tensor.dtype))
        return tensor
    tile = None
    for part in _parts(tensor):
        if tile is None:
            tile = allocate(SBUF, part.shape, tensor.dtype)
            isa.memset(dst=tile, value=_number(fill_value, tensor.dtype))
        isa.dma_copy(dst=part, src=tile[0 : part.shape[0], 0 : part.shape[1]])
    return tensor


def _number(value: Any, dtype: DType) -> Any:
    """`value` as the kind of number that `dtype` has."""
    return float(value) if dtype.is_float else int(value) if isinstance(value, (bool, np.generic)) else value


def _parts(tensor: NkiTensor) -> list[NkiTensor]:
    """A fresh tensor in HBM in pieces that have the shape of tiles, the largest first."""
    total = tensor.size
    width = min(total, _FILL)
    rows = total // width
    parts = []
    for first in range(0, rows, 128):
        count = min(128, rows - first)
        parts.append(tensor.ap([[width, count], [1, width]], offset=first * width))
    if total % width:
        parts.append(tensor.ap([[width, 1], [1, total % width]], offset=rows * width))
    return parts


def zeros(shape: Any, dtype: Any, buffer: Any = SBUF, name: str = "") -> NkiTensor:
    """A new tensor of zeros; arguments as of :func:`ndarray`."""
    return full(shape, 0, dtype, buffer, name)


def ones(shape: Any, dtype: Any, buffer: Any = SBUF, name: str = "") -> NkiTensor:
    """A new tensor of ones; arguments as of :func:`ndarray`."""
    return full(shape, 1, dtype, buffer, name)


def zeros_like(x: NkiTensor, dtype: Any = None, buffer: Any = None, name: str = "") -> NkiTensor:
    """A new tensor of zeros with the shape of `x`, and its type and memory unless given."""
    return full(x.shape, 0, x.dtype if dtype is None else dtype, x.buffer if buffer is None else buffer, name)


def empty_like(
    x: Any,
    dtype: Any = None,
    buffer: Any = None,
    name: str = "",
    *,
    transpose_axes: tuple[int, ...] | None = None,
    address: tuple[int, int] | None = None,
) -> Any:
    """A new tensor, or grid of tiles, with the geometry of `x`, and nothing particular in it.

    Args:
        x: a tensor or a grid; a grid gives one of the same kind with the same tiles.
        dtype, buffer: by default those of `x`.
        name, address: as of :func:`ndarray`.
        transpose_axes: order of the dimensions in the result, for a later nisa.dma_transpose into SBUF: (1, 0),
            (2, 1, 0) or (3, 1, 2, 0). Tensors only.

    Raises:
        LanguageArgumentError: another order, or of a grid.
    """
    kind = x.dtype if dtype is None else of(dtype)
    region = region_of(x.buffer if buffer is None else buffer)
    if isinstance(x, NkiGrid):
        if transpose_axes is not None:
            raise LanguageArgumentError(
                function="empty_like", what="transpose_axes goes with tensors, not with grids", line=source_line()
            )
        return empty_grid_like(x, kind, region, name, address)
    shape = x.shape
    if transpose_axes is not None:
        if tuple(transpose_axes) not in ((1, 0), (2, 1, 0), (3, 1, 2, 0)) or len(transpose_axes) != len(shape):
            raise LanguageArgumentError(
                function="empty_like",
                what=f"transpose_axes={transpose_axes!r} of a tensor of {len(shape)} dimensions; dma_transpose has "
                "(1, 0), (2, 1, 0) and (3, 1, 2, 0)",
                line=source_line(),
            )
        shape = tuple(shape[axis] for axis in transpose_axes)
    return allocate(region, shape, kind, name, address)


def shared_constant(constant: Any, dtype: Any = None) -> NkiTensor:
    """A tensor in shared HBM whose data is part of the kernel.

    Args:
        constant: a NumPy array (ml_dtypes included), or the path of a .npy file.
        dtype: how its elements are meant where NumPy has no such type (the packed MX types, tfloat32).

    Returns:
        A tensor that kernels read only.

    Raises:
        ConstantError: neither.
        UnknownDtypeError: elements of a type that no engine has.
    """
    if isinstance(constant, (str, os.PathLike)):
        constant = np.load(constant)
    if not isinstance(constant, np.ndarray):
        raise ConstantError(value=f"a {type(constant).__name__}", line=source_line())
    data = np.ascontiguousarray(constant).reshape(constant.shape or (1,))
    return _constant(data, of(data.dtype) if dtype is None else of(dtype), "")


def _constant(data: np.ndarray[Any, Any], dtype: DType, name: str) -> NkiTensor:
    return allocate(MemoryRegion.shared_hbm, data.shape, dtype, name, role="constant", data=data)


def shared_identity_matrix(n: int, dtype: Any = TYPES["uint8"], dst: NkiTensor | None = None) -> NkiTensor:
    """The identity matrix in SBUF; all of one size and type in a kernel come from one constant in HBM.

    Args:
        n: rows and columns, at most 128.
        dtype: element type.
        dst: a tile (n, n) in SBUF to put it in, instead of a new one.

    Returns:
        The tile.
    """
    kind = of(dtype) if dst is None else dst.dtype
    name = f"identity_{n}_{kind}"
    found: Storage | None = next((s for s in current().storages if s.role == "constant" and s.name == name), None)
    source = (
        _constant(np.eye(n, dtype=np.float32).astype(kind.numpy), kind, name)
        if found is None
        else NkiTensor(found, kind, found.shape, (n, 1))
    )
    tile = allocate(SBUF, (n, n), kind) if dst is None else dst
    isa.dma_copy(dst=tile, src=source)
    return tile


def random_seed(seed: NkiTensor) -> None:
    """Begins the sequence of random numbers that `seed` stands for.

    Args:
        seed: a tile (1, 1) of 32 bits in SBUF or PSUM.
    """
    isa.set_rng_seed(seed)


def rand(shape: Any, dtype: Any, buffer: Any = SBUF, name: str = "") -> NkiTensor:
    """A new tensor of random numbers, uniform in [0, 1): the upper 24 of 32 random bits, as a fraction.

    Arguments as of :func:`ndarray`. Rounding to a type of fewer bits may give 1.
    """
    region = region_of(buffer)
    tensor = allocate(region, shape, dtype, name)
    for part in _parts(tensor) if is_hbm(region) else [tensor]:
        free = prod(part.shape[1:])
        bits = allocate(SBUF, (part.shape[0], free), _UINT32)
        isa.rng(dst=bits)
        isa.tensor_scalar(dst=bits, data=bits, op0=el.right_shift, operand0=8)
        if is_hbm(region):
            tile = allocate(SBUF, bits.shape, tensor.dtype)
            isa.tensor_scalar(dst=tile, data=bits, op0=el.multiply, operand0=2.0**-24)
            isa.dma_copy(dst=part, src=tile)
        else:
            isa.tensor_scalar(dst=part, data=bits.reshape(part.shape), op0=el.multiply, operand0=2.0**-24)
    return tensor
