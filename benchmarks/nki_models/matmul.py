"""Matrix products with the tilings of the guide "Introduction to NKI Kernel Optimization".

All take `left` transposed, [K, M], and `right`, [K, N], and return [M, N] in fp32. Tiles are 128 x 128 and 128 x 512.
"""

from __future__ import annotations

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

P, F = 128, 512


def _tile(source: Any, row: int, column: int, width: int) -> Any:
    tile = nl.ndarray((P, width), dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=source[row * P : (row + 1) * P, column : column + width])
    return tile


def _store(result: Any, psum: Any, m: int, n: int) -> None:
    tile = nl.ndarray((P, F), dtype=result.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=tile, src=psum)
    nisa.dma_copy(dst=result[m * P : (m + 1) * P, n * F : (n + 1) * F], src=tile)


def _result(left: Any, right: Any) -> Any:
    return nl.ndarray((left.shape[1], right.shape[1]), dtype=nl.float32, buffer=nl.shared_hbm)


@nki.jit
def tiled(left: Any, right: Any) -> Any:
    """Second version of the guide: both tiles are loaded for each product of tiles."""
    result = _result(left, right)
    for m in range(left.shape[1] // P):
        for n in range(right.shape[1] // F):
            psum = nl.ndarray((P, F), dtype=nl.float32, buffer=nl.psum)
            for k in range(left.shape[0] // P):
                stationary, moving = _tile(left, k, m * P, P), _tile(right, k, n * F, F)
                nisa.nc_matmul(dst=psum, stationary=stationary, moving=moving)
            _store(result, psum, m, n)
    return result


@nki.jit
def hoisted(left: Any, right: Any) -> Any:
    """Third version: a column of tiles of `left` is kept for all columns of `right`."""
    result = _result(left, right)
    depth = range(left.shape[0] // P)
    for m in range(left.shape[1] // P):
        stationary = [_tile(left, k, m * P, P) for k in depth]
        for n in range(right.shape[1] // F):
            moving = [_tile(right, k, n * F, F) for k in depth]
            psum = nl.ndarray((P, F), dtype=nl.float32, buffer=nl.psum)
            for k in depth:
                nisa.nc_matmul(dst=psum, stationary=stationary[k], moving=moving[k])
            _store(result, psum, m, n)
    return result


@nki.jit
def blocked_columns(left: Any, right: Any, block_m: int = 2, block_n: int = 2) -> Any:
    """Fourth version: blocks of 2 x 2 tiles of the result, the whole depth of each side kept."""
    result = _result(left, right)
    depth = range(left.shape[0] // P)
    for m in range(0, left.shape[1] // P, block_m):
        stationary = [[_tile(left, k, (m + i) * P, P) for k in depth] for i in range(block_m)]
        for n in range(0, right.shape[1] // F, block_n):
            moving = [[_tile(right, k, (n + j) * F, F) for k in depth] for j in range(block_n)]
            for i in range(block_m):
                for j in range(block_n):
                    psum = nl.ndarray((P, F), dtype=nl.float32, buffer=nl.psum)
                    for k in depth:
                        nisa.nc_matmul(dst=psum, stationary=stationary[i][k], moving=moving[j][k])
                    _store(result, psum, m + i, n + j)
    return result


@nki.jit
def blocked(left: Any, right: Any, block_m: int = 16, block_n: int = 2, block_k: int = 8) -> Any:
    """Fifth version: blocks in all three dimensions, partial sums in SBUF."""
    result = _result(left, right)
    depth, height, width = left.shape[0], left.shape[1], right.shape[1]
    for n in range(width // (block_n * F)):
        first_column = n * block_n * F
        sums = []
        for _ in range(height // P):
            row = []
            for _ in range(block_n):
                row.append(nl.ndarray((P, F), dtype=nl.float32, buffer=nl.sbuf))
                nisa.memset(dst=row[-1], value=0.0)
            sums.append(row)
        for k in range(depth // (block_k * P)):
            moving = [_tile(right, k * block_k + i, first_column, block_n * F) for i in range(block_k)]
            for m in range(height // (block_m * P)):
                first_row = m * block_m * P
                stationary = [_tile(left, k * block_k + i, first_row, block_m * P) for i in range(block_k)]
                for j in range(block_n):
                    for i in range(block_m):
                        psum = nl.ndarray((P, F), dtype=nl.float32, buffer=nl.psum)
                        for b in range(block_k):
                            nisa.nc_matmul(
                                dst=psum,
                                stationary=stationary[b][:, i * P : (i + 1) * P],
                                moving=moving[b][:, j * F : (j + 1) * F],
                            )
                        total = sums[m * block_m + i][j]
                        nisa.tensor_tensor(dst=total, data1=total, data2=psum, op=nl.add)
        for m, row in enumerate(sums):
            packed = nl.ndarray((P, block_n * F), dtype=nl.float32, buffer=nl.sbuf)
            for j, part in enumerate(row):
                nisa.tensor_copy(dst=packed[:, j * F : (j + 1) * F], src=part)
            nisa.dma_copy(
                dst=result[m * P : (m + 1) * P, first_column : first_column + block_n * F],
                src=packed,
            )
    return result
