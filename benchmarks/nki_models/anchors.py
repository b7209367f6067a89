"""Small kernels whose parts were measured: single transfers, and instructions that wait for each other."""

from __future__ import annotations

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def exponential(x: Any) -> Any:
    """Load, exp on the scalar engine, store: the example of "Introduction to DMA"."""
    result = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    output = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.activation(dst=output, op=nl.exp, data=tile)
    nisa.dma_copy(dst=result, src=output)
    return result


@nki.jit
def dependent_activations(x: Any, count: int = 256) -> Any:
    """`count` instructions on one element per partition, each reading what the one before wrote."""
    result = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    for _ in range(count):
        nisa.activation(dst=tile, op=nl.copy, data=tile, scale=1.0)
    nisa.dma_copy(dst=result, src=tile)
    return result


@nki.jit
def loads(x: Any) -> Any:
    """Loads of 128 rows each, one after the other: throughput by bytes per partition."""
    result = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm)
    tile = None
    for first in range(0, x.shape[0], 128):
        tile = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[first : first + 128, :])
    nisa.dma_copy(dst=result, src=tile)
    return result
