"""The enumerations of nki.isa under the name that kernels import them by: `from nki.isa.constants import oob_mode`."""

from .enums import (
    dge_mode,
    dma_engine,
    engine,
    gpsimd_engine,
    matmul_perf_mode,
    nc_version,
    oob_mode,
    reduce_cmd,
    scalar_engine,
    tensor_engine,
    unknown_engine,
    vector_engine,
)

__all__ = [
    "dge_mode", "dma_engine", "engine", "gpsimd_engine", "matmul_perf_mode", "nc_version", "oob_mode", "reduce_cmd",
    "scalar_engine", "tensor_engine", "unknown_engine", "vector_engine"
]  # fmt: skip
