"""Choices that instructions offer: engines, modes of DMA, commands to accumulators, generations."""

from __future__ import annotations

from enum import Enum, IntEnum

__all__ = [
    "dge_mode", "dma_engine", "engine", "gpsimd_engine", "matmul_perf_mode", "nc_version", "oob_mode", "reduce_cmd",
    "scalar_engine", "tensor_engine", "unknown_engine", "vector_engine"
]  # fmt: skip


class engine(Enum):
    """An engine of a NeuronCore. `unknown` leaves the choice to the instruction."""

    tensor = 1
    vector = 5
    scalar = 2
    gpsimd = 3
    dma = 4
    sync = 6
    unknown = 0


class reduce_cmd(Enum):
    """What an instruction does to its engine's accumulators, one fp32 number per partition.

    Attributes:
        idle: nothing is accumulated.
        reset: they return to where the reduction starts.
        reduce: results are accumulated onto what is there.
        reset_reduce: reset, then reduce.
        load_reduce: values are loaded first, then results are accumulated onto them.
    """

    idle = 0
    reset = 1
    reduce = 2
    reset_reduce = 3
    load_reduce = 4


class dge_mode(Enum):
    """Who makes the descriptors of a DMA.

    Attributes:
        unknown: left to the instruction.
        swdge: the GpSimd engine, while the kernel runs: the only mode that gathers and scatters rows.
        hwdge: the descriptor generators of NeuronCore-v3 and later; they do not convert types.
        none: the host, before the kernel runs: addresses are fixed.
    """

    unknown = 0
    swdge = 1
    hwdge = 2
    none = 3


class oob_mode(Enum):
    """What happens to a run-time index that is out of bounds: an error, or the element is skipped."""

    error = 0
    skip = 1


class matmul_perf_mode(Enum):
    """`double_row` multiplies two rows of fp8 elements in a cycle (NeuronCore-v3 and later)."""

    none = "none"
    double_row = "double_row"


class nc_version(IntEnum):
    """Generation of a NeuronCore; ordered: `get_nc_version() >= nc_version.gen3`."""

    gen2 = 2
    gen3 = 3
    gen4 = 4


class dma_engine(Enum):
    """What carries a sendrecv: the DMA engines, or those of the GpSimd engine (small tiles, low latency)."""

    dma = 1
    gpsimd_dma = 2


# Names of NKI 0.2, which public kernels still use.
tensor_engine = engine.tensor
vector_engine = engine.vector
scalar_engine = engine.scalar
gpsimd_engine = engine.gpsimd
unknown_engine = engine.unknown
