"""Allocation of a kernel's tensors, and the sizes of the memories that they lie in."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable
from typing import Any

from neuron_hw import chip

from .element_types import DType, of
from .limits import PARTITIONS, PSUM_BANK_BYTES, PSUM_BANKS
from .regions import PSUM, SBUF, MemoryRegion, is_hbm, is_on_chip, is_psum, is_sbuf
from .storage import Storage
from .targets import target_of
from .tensor import NkiTensor
from .tensor_errors import AddressError, BufferKindError, PartitionDimensionError, PsumTileError, TensorShapeError
from .trace import active, current, source_line

__all__ = [
    "MemoryRegion", "TileSize", "allocate", "is_hbm", "is_on_chip", "is_psum", "is_sbuf", "region_of", "shape_of",
    "tile_size",
]  # fmt: skip

_PSUM = PSUM_BANKS * PSUM_BANK_BYTES  # of a partition


class TileSize:
    """Sizes of tiles on the chip that the kernel is traced for (or on the default target, outside of a kernel).

    Sources: "Memory Hierarchy" and architecture guides of the NKI documentation; nki.language.tile_size. Alignments
    have no published values: 2 and 4 bytes are what elements of 16 and 32 bits ask for.
    """

    pmax: int = PARTITIONS
    """Partitions of a tile."""
    psum_bank_fmax: int = PSUM_BANK_BYTES // 4
    """fp32 elements per partition in a bank of PSUM."""
    psum_fmax: int = PSUM_BANK_BYTES // 4
    """The same, under its older name."""
    psum_bank_fmax_bytes: int = PSUM_BANK_BYTES
    """Bytes per partition in a bank of PSUM."""
    gemm_stationary_fmax: int = 128
    """Columns of a matmul's stationary operand."""
    gemm_moving_fmax: int = 512
    """Columns of a matmul's moving operand."""
    bn_stats_fmax: int = 512
    """Elements per partition that bn_stats takes."""
    psum_min_align: int = 4
    """Bytes to which tensors in PSUM are aligned."""
    sbuf_min_align: int = 2
    """Bytes to which tensors in SBUF are aligned."""

    @property
    def psum_num_banks(self) -> int:
        """Banks of PSUM that kernels may use: 7 where DMA transposes go through the Tensor engine, else 8."""
        through_tensor_engine = os.environ.get("NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE", "").lower() in ("1", "true")
        return 7 if through_tensor_engine and _target() != "trn1" else 8

    @property
    def sbuf_size_bytes(self) -> int:
        """Bytes of SBUF in all partitions together."""
        return int(chip(_target()).sbuf_bytes_per_partition) * PARTITIONS

    @property
    def sbuf_fmax_bytes(self) -> int:
        """Bytes of SBUF per partition that kernels may use."""
        return int(chip(_target()).sbuf_usable_bytes_per_partition)

    @property
    def sbuf_fmax(self) -> int:
        """The same in fp32 elements."""
        return self.sbuf_fmax_bytes // 4

    @property
    def total_available_sbuf_size(self) -> int:
        """:attr:`sbuf_fmax_bytes` under its older name."""
        return self.sbuf_fmax_bytes

    def __repr__(self) -> str:
        return f"nl.tile_size (of {_target()})"


tile_size = TileSize()


def _target() -> str:
    trace = active()
    return target_of() if trace is None else trace.target


def region_of(buffer: Any) -> MemoryRegion:
    """The memory that a kernel means.

    Raises:
        BufferKindError: it is none; strings were accepted until NKI 0.2.
    """
    if isinstance(buffer, MemoryRegion):
        return buffer
    hint = f"; nl.{buffer} is what you mean" if buffer in [r.value for r in MemoryRegion] else ""
    raise BufferKindError(buffer=buffer, hint=hint, line=source_line())


def shape_of(shape: Any, region: MemoryRegion) -> tuple[int, ...]:
    """`shape` as integers that a tensor in `region` can have.

    Raises:
        TensorShapeError: not positive integers, or too few or too many.
        PartitionDimensionError: more partitions than there are.
    """
    why = None
    sizes: tuple[int, ...] = ()
    try:
        sizes = tuple([operator.index(n) for n in shape]) if isinstance(shape, Iterable) else (operator.index(shape),)
    except TypeError:
        why = "sizes are integers that are known while the kernel is traced"
    least, most = (2, 5) if is_on_chip(region) else (1, 6)
    if why is None and sizes and min(sizes) < 1:
        why = "every size is at least 1"
    elif why is None and len(sizes) < least:
        why = f"it has at least {least} dimensions" + (", the first of them the partition" if least == 2 else "")
    elif why is None and len(sizes) > most:
        why = f"it has at most {most} dimensions"
    if why is not None:
        raise TensorShapeError(shape=shape, region=region.value, why=why, line=source_line())
    if least == 2 and sizes[0] > PARTITIONS:
        raise PartitionDimensionError(
            shape=sizes, region=region.value, size=sizes[0], limit=PARTITIONS, line=source_line()
        )
    return sizes


def allocate(
    region: MemoryRegion,
    shape: Any,
    dtype: Any,
    name: str = "",
    address: tuple[int, int] | None = None,
    role: str = "",
    data: Any = None,
) -> NkiTensor:
    """A new tensor of the kernel that is being traced, with nothing particular in it.

    Args:
        region: memory. On chip dimension 0 is the partition.
        shape: at most 128 partitions on chip; at least 2 dimensions there, 1 in HBM.
        dtype: element type.
        name: for messages and schedules.
        address: (first partition, byte within the partition) on chip; None where the place does not matter. Tensors
            at overlapping addresses share memory.
        role, data: of constants, see :class:`~nki.storage.Storage`.

    Raises:
        OutsideKernelError: no kernel is being traced.
        TensorShapeError, PartitionDimensionError, PsumTileError: no such tensor fits the memory.
        AddressError: a tensor cannot begin there.
    """
    trace = current()
    sizes = shape_of(shape, region)
    kind = dtype if type(dtype) is DType else of(dtype)
    storage = Storage(
        len(trace.storages),
        region.value,
        sizes,
        kind,
        name=name or "",
        line=source_line(),
        address=None if address is None else _address(address, region, sizes, kind),
        role=role,
        data=data,
        loops=trace.loops,
    )
    if region is PSUM and storage.bytes_per_partition > _PSUM:
        raise PsumTileError(dtype=kind, shape=sizes, used=storage.bytes_per_partition, limit=_PSUM, line=storage.line)
    trace.storages.append(storage)
    strides = [1] * len(sizes)
    for i in range(len(sizes) - 2, -1, -1):
        strides[i] = strides[i + 1] * sizes[i + 1]
    return NkiTensor(storage, kind, sizes, tuple(strides))


def _address(address: Any, region: MemoryRegion, shape: tuple[int, ...], dtype: DType) -> tuple[int, int]:
    why = None
    try:
        partition, byte = (operator.index(number) for number in address)
    except (TypeError, ValueError):
        partition = byte = 0
        why = "it is no pair of integers"
    if why is None and not is_on_chip(region):
        why = "tensors in HBM have no address that kernels choose"
    elif why is None and (partition < 0 or byte < 0 or partition + shape[0] > PARTITIONS):
        why = f"partitions {partition} to {partition + shape[0] - 1} are asked of {PARTITIONS}"
    elif why is None and region is PSUM and byte % PSUM_BANK_BYTES:
        why = f"tensors in PSUM begin where a bank does, at a multiple of {PSUM_BANK_BYTES} bytes"
    elif why is None and region is SBUF and byte % min(dtype.itemsize, 4):
        why = f"{dtype} elements begin at a multiple of {dtype.itemsize} bytes"
    if why is not None:
        raise AddressError(address=address, shape=shape, region=region.value, why=why, line=source_line())
    return partition, byte
