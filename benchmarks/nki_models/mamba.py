"""The selective scan of Mamba with the three loop structures of the guide "Fused Mamba".

delta, u: [channels, sequence]; a: [channels, states]; b, c: [states, sequence], all fp32. The guide broadcasts rows of
b and c over the partitions on the tensor engine, into PSUM.

The second and third version there load delta and u once for all states. Their measured time on the vector engine is
that of four tensor instructions per state, not of the five in the text: the product of delta and u, which is the same
for all states, was taken out of the loop by the compiler. Here kernels do so themselves. From 1024 columns on, the
second version takes the time of all five: `hoist=False`.
"""

from __future__ import annotations

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

P, TILE = 128, 512


def _load(source: Any, rows: slice, columns: slice) -> Any:
    view = source[rows, columns]
    tile = nl.ndarray(view.shape, dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=view)
    return tile


def _tile(width: int) -> Any:
    return nl.ndarray((P, width), dtype=nl.float32, buffer=nl.sbuf)


def _ones() -> Any:
    ones = nl.ndarray((1, P), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    return ones


def _times_row(ones: Any, data: Any, row: Any) -> Any:
    """data * row, with the row in all partitions of PSUM, a bank at a time."""
    product = _tile(data.shape[1])
    for start in range(0, data.shape[1], TILE):
        columns = slice(start, start + TILE)
        bank = nl.ndarray((P, TILE), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=bank, stationary=ones, moving=row[:, columns])
        nisa.tensor_tensor(dst=product[:, columns], data1=data[:, columns], data2=bank, op=nl.multiply)
    return product


def _state(ones: Any, delta: Any, delta_u: Any, a: Any, b: Any, c: Any, total: Any, start: Any) -> Any:
    """One state's part of the output is added to `total`; returns the scan."""
    width = delta.shape[1]
    decay, scan = _tile(width), _tile(width)
    nisa.activation(dst=decay, op=nl.exp, data=delta, scale=a)
    nisa.tensor_tensor_scan(
        dst=scan, data0=decay, data1=_times_row(ones, delta_u, b), initial=start, op0=nl.multiply, op1=nl.add
    )
    nisa.tensor_tensor(dst=total, data1=total, data2=_times_row(ones, scan, c), op=nl.add)
    return scan


def _product(x: Any, y: Any) -> Any:
    product = _tile(x.shape[1])
    nisa.tensor_tensor(dst=product, data1=x, data2=y, op=nl.multiply)
    return product


def _zeros(width: int) -> Any:
    tile = _tile(width)
    nisa.memset(dst=tile, value=0.0)
    return tile


@nki.jit
def first(delta: Any, u: Any, a: Any, b: Any, c: Any) -> Any:
    """States outside, channels inside: delta and u are loaded again for each state."""
    channels, length = delta.shape
    result = nl.ndarray(delta.shape, dtype=delta.dtype, buffer=nl.shared_hbm)
    everything = slice(0, length)
    ones = _ones()
    totals = [_zeros(length) for _ in range(channels // P)]
    for state in range(a.shape[1]):
        for i, total in enumerate(totals):
            rows, row = slice(i * P, (i + 1) * P), slice(state, state + 1)
            d, x = _load(delta, rows, everything), _load(u, rows, everything)
            scales, bs, cs = _load(a, rows, row), _load(b, row, everything), _load(c, row, everything)
            _state(ones, d, _product(d, x), scales, bs, cs, total, 0.0)
    for i, total in enumerate(totals):
        nisa.dma_copy(dst=result[i * P : (i + 1) * P, :], src=total)
    return result


@nki.jit
def reordered(delta: Any, u: Any, a: Any, b: Any, c: Any, hoist: bool = True) -> Any:
    """Channels outside, states inside: delta and u are loaded once.

    Args:
        hoist: their product is computed once, rather than for each state.
    """
    channels, length = delta.shape
    result = nl.ndarray(delta.shape, dtype=delta.dtype, buffer=nl.shared_hbm)
    everything = slice(0, length)
    ones = _ones()
    for i in range(channels // P):
        rows = slice(i * P, (i + 1) * P)
        total = _zeros(length)
        d, x = _load(delta, rows, everything), _load(u, rows, everything)
        delta_u = _product(d, x) if hoist else None
        for state in range(a.shape[1]):
            if not hoist:
                delta_u = _product(d, x)
            row = slice(state, state + 1)
            scales, bs, cs = _load(a, rows, row), _load(b, row, everything), _load(c, row, everything)
            _state(ones, d, delta_u, scales, bs, cs, total, 0.0)
        nisa.dma_copy(dst=result[rows, :], src=total)
    return result


@nki.jit
def tiled(delta: Any, u: Any, a: Any, b: Any, c: Any) -> Any:
    """As `reordered`, with the sequence in tiles of 512, the innermost loop; the scan goes on from tile to tile."""
    channels, length = delta.shape
    result = nl.ndarray(delta.shape, dtype=delta.dtype, buffer=nl.shared_hbm)
    everything = slice(0, length)
    ones = _ones()
    for i in range(channels // P):
        rows = slice(i * P, (i + 1) * P)
        total = _zeros(length)
        d, x = _load(delta, rows, everything), _load(u, rows, everything)
        delta_u = _product(d, x)
        for state in range(a.shape[1]):
            row = slice(state, state + 1)
            scales = _load(a, rows, row)
            start = _zeros(1)
            for first_column in range(0, length, TILE):
                columns = slice(first_column, first_column + TILE)
                bs, cs = _load(b, row, columns), _load(c, row, columns)
                scan = _state(
                    ones, d[:, columns], delta_u[:, columns], scales, bs, cs, total[:, columns], start
                )  # fmt: skip
                nisa.tensor_copy(dst=start, src=scan[:, TILE - 1 : TILE])
        nisa.dma_copy(dst=result[rows, :], src=total)
    return result
