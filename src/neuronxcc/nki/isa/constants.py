"""The enumerations of nki.isa, under the name that some kernels import them by."""

from nki.isa.constants import (
    dge_mode,
    dma_engine,
    engine,
    gpsimd_engine,
    nc_version,
    oob_mode,
    reduce_cmd,
    scalar_engine,
    tensor_engine,
    unknown_engine,
    vector_engine,
)

__all__ = [
    "dge_mode", "dma_engine", "engine", "gpsimd_engine", "nc_version", "oob_mode", "reduce_cmd", "scalar_engine",
    "tensor_engine", "unknown_engine", "vector_engine"
]  # fmt: skip
