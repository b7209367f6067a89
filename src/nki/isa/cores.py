"""What concerns the core itself: its generation, and the other core of a logical NeuronCore."""

from __future__ import annotations

from typing import Any

from .. import errors
from ..limits import limits
from ..tensor import NkiTensor
from ..trace import Trace, current
from .enums import dma_engine as DmaEngine
from .enums import engine as Engine
from .enums import nc_version
from .instruction_handle import NkiInstruction
from .validation import (
    choose,
    emit,
    extent,
    fail,
    integer,
    require_generation,
    require_member,
    require_region,
    require_same_dtype,
    tensor,
)

__all__ = ["core_barrier", "get_nc_sub_version", "get_nc_version", "sendrecv"]

_ENGINES = ("gpsimd", "tensor", "vector", "scalar", "sync", "unknown")
# Bytes per partition that the GpSimd engine's own DMA exchanges, by the size of an element.
_GPSIMD_BYTES = {4: 1024, 2: 512, 1: 256}


def get_nc_version() -> nc_version:
    """Generation of the core that the kernel is traced for; outside of a kernel, of the default target."""
    return nc_version(limits().generation)


def get_nc_sub_version() -> int:
    """Revision of the silicon within its generation: 0, the first one, of every target here."""
    return 0


def _programs(trace: Trace) -> int:
    return trace.grid[0] if trace.grid else 1


def core_barrier(
    data: NkiTensor, cores: Any, engine: Engine = Engine.gpsimd, name: str | None = None
) -> NkiInstruction:
    """Both cores of a logical NeuronCore go on once both have come here; NeuronCore-v3 and later.

    Args:
        data: the tensor in shared HBM that they exchange.
        cores: (0, 1); (0,) where there is one core, for which there is nothing to wait.
        engine: the engine that waits.

    Raises:
        NoOtherCoreError: other cores than the grid has.
    """
    op = "core_barrier"
    trace = current()
    require_generation(trace, 3, op)
    shared = tensor(data, op, "data")
    require_region(shared, op, "data", "shared_hbm", "private_hbm")
    group = tuple(integer(core, op, "cores") for core in cores)
    if group not in ((0, 1), (0,)) or len(group) > _programs(trace):
        fail(errors.NoOtherCoreError, op=op, reason=f"cores={group}, but there are {_programs(trace)}")
    chosen = choose(engine, _ENGINES, op)
    return emit(trace, "barrier", "gpsimd" if chosen == "unknown" else chosen, (), (), (group,), name)


def sendrecv(
    src: NkiTensor,
    dst: NkiTensor,
    send_to_rank: int,
    recv_from_rank: int,
    pipe_id: int,
    dma_engine: DmaEngine = DmaEngine.dma,
    name: str | None = None,
) -> NkiInstruction:
    """Sends `src` to the other core and receives what it sends into `dst`; NeuronCore-v3 and later.

    Args:
        src, dst: in SBUF, of one type and shape.
        send_to_rank, recv_from_rank: 0 or 1.
        pipe_id: exchanges with the same number belong together.
        dma_engine: dma, or gpsimd_dma: at most 1024, 512 or 256 bytes per partition of 4-, 2- or 1-byte elements.

    Raises:
        NoOtherCoreError: the kernel has one core.
    """
    op = "sendrecv"
    trace = current()
    require_generation(trace, 3, op)
    size = extent(src, op, "src")
    like = extent(dst, op, "dst")
    require_region(src, op, "src", "sbuf")
    require_region(dst, op, "dst", "sbuf")
    require_same_dtype(src, dst, op, "src", "dst")
    if size != like or src.shape != dst.shape:
        fail(errors.OperandShapeError, op=op, operand="dst", shape=dst.shape, expected=f"the shape of src {src.shape}")
    ranks = (integer(send_to_rank, op, "send_to_rank"), integer(recv_from_rank, op, "recv_from_rank"))
    if _programs(trace) != 2 or any(rank not in (0, 1) for rank in ranks):
        fail(
            errors.NoOtherCoreError,
            op=op,
            reason=f"send_to_rank={ranks[0]}, recv_from_rank={ranks[1]} of {_programs(trace)} cores",
        )
    require_member(dma_engine, DmaEngine, op, "dma_engine")
    limit = _GPSIMD_BYTES.get(src.dtype.itemsize, 1024)
    if dma_engine is DmaEngine.gpsimd_dma and size[1] * src.dtype.itemsize > limit:
        fail(
            errors.FreeSizeError,
            op=op,
            operand="src",
            shape=src.shape,
            count=size[1],
            allowed=f"at most {limit // src.dtype.itemsize} of {src.dtype} with dma_engine.gpsimd_dma",
            cure="Use dma_engine.dma, or several exchanges.",
        )
    return emit(
        trace,
        op,
        "gpsimd" if dma_engine is DmaEngine.gpsimd_dma else "dma",
        (dst,),
        (src,),
        (*ranks, integer(pipe_id, op, "pipe_id")),
        name,
        {"dma_engine": dma_engine.name},
    )
