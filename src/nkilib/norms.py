"""RMSNorm and LayerNorm over the last dimension, and their gradients."""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl
from nki.tensor import NkiTensor

from .tiling import PARTITIONS, flat, load, load_row, sbuf, spans, store, sum_over_partitions

__all__ = [
    "MAX_ROW_BYTES", "layer_norm_backward_kernel", "layer_norm_kernel", "rms_norm_backward_kernel", "rms_norm_kernel"
]  # fmt: skip

# Longest row: that of a LayerNorm's gradient, for which SBUF holds the row, its gradient, the weight and two sums.
MAX_ROW_BYTES = 24 * 1024
_STATISTICS = 512  # elements that one bn_stats takes
# Elements of a row that gradients are computed for at a time, to keep what lies between small.
_PIECE = 2048


def _deviation(variance: NkiTensor, scale: float, eps: float) -> NkiTensor:
    """`1 / sqrt(variance * scale + eps)`, (rows, 1) fp32."""
    rows = variance.shape[0]
    epsilon, result = sbuf((rows, 1)), sbuf((rows, 1))
    nisa.memset(epsilon, eps)
    nisa.activation(result, nl.rsqrt, variance, bias=epsilon, scale=scale)
    return result


@nki.jit
def rms_norm_kernel(x: NkiTensor, weight: NkiTensor | None = None, eps: float = 1e-6) -> tuple[NkiTensor, NkiTensor]:
    """`x / sqrt(mean(x**2) + eps) * weight` along dimension 1, in fp32, rounded once.

    Args:
        x: (rows, d) of bf16, fp16 or fp32; a row takes up to MAX_ROW_BYTES.
        weight: (d,), or None for ones.

    Returns:
        The result, as `x`, and `1 / sqrt(mean(x**2) + eps)`, (rows,) of fp32, which the gradient needs.

    128 rows at a time, one per partition: the Scalar engine squares and sums in one instruction, the Vector engine
    multiplies with both factors in another. Modelled on trn2: bound by DMA for bf16.
    """
    rows, d = x.shape
    y = nl.ndarray((rows, d), dtype=x.dtype, buffer=nl.shared_hbm)
    rstd = nl.ndarray((rows,), dtype=nl.float32, buffer=nl.shared_hbm)
    scale = None if weight is None else load_row(weight, min(rows, PARTITIONS))
    for start, p in spans(rows, PARTITIONS):
        tile = load(x[start : start + p, :])
        squares, total = sbuf((p, d)), sbuf((p, 1))
        nisa.activation_reduce(squares, nl.square, tile, reduce_op=nl.add, reduce_res=total)
        factor = _deviation(total, 1.0 / d, eps)
        result = sbuf((p, d), x.dtype)
        if scale is None:
            nisa.tensor_scalar(result, tile, op0=nl.multiply, operand0=factor)
        else:
            nisa.scalar_tensor_tensor(result, tile, nl.multiply, factor, nl.multiply, scale[0:p, :])
        store(y[start : start + p, :], result)
        store(flat(rstd, start, p), factor)
    return y, rstd


@nki.jit
def rms_norm_backward_kernel(
    x: NkiTensor, weight: NkiTensor | None, rstd: NkiTensor, grad: NkiTensor
) -> tuple[NkiTensor, NkiTensor]:
    """Gradients of RMSNorm.

    With `n = x * rstd` and `g = grad * weight`, that of `x` is `rstd * (g - n * mean(g * n))` and that of the weight
    the sum of `grad * n` over the rows.

    Args:
        x, weight: as of rms_norm_kernel.
        rstd: what that returned.
        grad: gradient of its result, as `x`.

    Returns:
        Gradients of `x` (as `x`) and of the weight, (d,) of fp32; without a weight, of a weight of ones.

    The weight's gradient is summed up over row tiles in SBUF by the GpSimd engine, and over partitions once, by a
    product with ones. Modelled on trn2: Vector bound, four passes over a row with two operands each.
    """
    rows, d = x.shape
    dx = nl.ndarray((rows, d), dtype=x.dtype, buffer=nl.shared_hbm)
    dweight = nl.ndarray((d,), dtype=nl.float32, buffer=nl.shared_hbm)
    scale = None if weight is None else load_row(weight, min(rows, PARTITIONS))
    sums = sbuf((min(rows, PARTITIONS), d))
    nisa.memset(sums, 0.0)
    pieces = spans(d, _PIECE)
    for start, p in spans(rows, PARTITIONS):
        tile, back = load(x[start : start + p, :]), load(grad[start : start + p, :])
        factor = load(flat(rstd, start, p))
        partial = sbuf((p, len(pieces)))
        for i, (c0, c) in enumerate(pieces):
            part = sums[0:p, c0 : c0 + c]
            product = sbuf((p, c))
            # grad * n, the weight's share; times the weight it is g * n.
            nisa.scalar_tensor_tensor(
                product, tile[:, c0 : c0 + c], nl.multiply, factor, nl.multiply, back[:, c0 : c0 + c]
            )  # fmt: skip
            nisa.tensor_tensor(part, part, product, op=nl.add, engine=nisa.engine.gpsimd)
            if scale is not None:
                nisa.tensor_tensor(product, product, scale[0:p, c0 : c0 + c], op=nl.multiply)
            nisa.activation_reduce(product, nl.copy, product, reduce_op=nl.add, reduce_res=partial[:, i : i + 1])
        # mean(g * n) * rstd, by which x is multiplied to become n * mean(g * n).
        slope = sbuf((p, 1))
        nisa.tensor_reduce(slope, nl.add, partial, axis=1)
        nisa.tensor_scalar(slope, slope, op0=nl.multiply, operand0=factor, op1=nl.multiply, operand1=1.0 / d)
        for c0, c in pieces:
            result = sbuf((p, c), x.dtype)
            inner = back[:, c0 : c0 + c]
            if scale is not None:
                weighted = sbuf((p, c))
                nisa.tensor_tensor(weighted, inner, scale[0:p, c0 : c0 + c], op=nl.multiply)
                inner = weighted
            centred = sbuf((p, c))
            # g minus x times the slope.
            nisa.scalar_tensor_tensor(
                centred, tile[:, c0 : c0 + c], nl.multiply, slope, nl.subtract, inner, reverse1=True
            )  # fmt: skip
            nisa.activation(result, nl.copy, centred, scale=factor)
            store(dx[start : start + p, c0 : c0 + c], result)
    sum_over_partitions(dweight, sums)
    return dx, dweight


@nki.jit
def layer_norm_kernel(
    x: NkiTensor, weight: NkiTensor | None = None, bias: NkiTensor | None = None, eps: float = 1e-5
) -> tuple[NkiTensor, NkiTensor, NkiTensor]:
    """`(x - mean) / sqrt(variance + eps) * weight + bias` along dimension 1, in fp32, rounded once.

    Args:
        x: (rows, d) of bf16, fp16 or fp32; a row takes up to MAX_ROW_BYTES.
        weight, bias: (d,), or None for ones and zeros.

    Returns:
        The result, as `x`; the mean and `1 / sqrt(variance + eps)`, each (rows,) of fp32.

    Mean and variance come from the Vector engine's statistics instructions, 512 elements at a time, which do not lose
    digits to a large mean. Modelled on trn2: Vector bound, three passes over a row (statistics, weight, bias); the
    Scalar engine subtracts the mean meanwhile.
    """
    rows, d = x.shape
    y = nl.ndarray((rows, d), dtype=x.dtype, buffer=nl.shared_hbm)
    mean = nl.ndarray((rows,), dtype=nl.float32, buffer=nl.shared_hbm)
    rstd = nl.ndarray((rows,), dtype=nl.float32, buffer=nl.shared_hbm)
    scale = None if weight is None else load_row(weight, min(rows, PARTITIONS))
    shift = None if bias is None else load_row(bias, min(rows, PARTITIONS))
    pieces = spans(d, _STATISTICS)
    for start, p in spans(rows, PARTITIONS):
        tile = load(x[start : start + p, :])
        statistics, moments = sbuf((p, 6 * len(pieces))), sbuf((p, 2))
        for i, (c0, c) in enumerate(pieces):
            nisa.bn_stats(statistics[:, 6 * i : 6 * i + 6], tile[:, c0 : c0 + c])
        nisa.bn_aggr(moments, statistics)
        factor = _deviation(moments[:, 1:2], 1.0, eps)
        # The Scalar engine could divide too, with a scale, but its offset would then be a rounded mean * factor.
        offset, centred = sbuf((p, 1)), sbuf((p, d))
        nisa.tensor_scalar(offset, moments[:, 0:1], op0=nl.multiply, operand0=-1.0)
        nisa.activation(centred, nl.copy, tile, bias=offset)
        result = sbuf((p, d), x.dtype if shift is None else nl.float32)
        if scale is None:
            nisa.tensor_scalar(result, centred, op0=nl.multiply, operand0=factor)
        else:
            nisa.scalar_tensor_tensor(result, centred, nl.multiply, factor, nl.multiply, scale[0:p, :])
        if shift is not None:
            shifted = sbuf((p, d), x.dtype)
            nisa.tensor_tensor(shifted, result, shift[0:p, :], op=nl.add)
            result = shifted
        store(y[start : start + p, :], result)
        store(flat(mean, start, p), moments[:, 0:1])
        store(flat(rstd, start, p), factor)
    return y, mean, rstd


@nki.jit
def layer_norm_backward_kernel(
    x: NkiTensor, weight: NkiTensor | None, mean: NkiTensor, rstd: NkiTensor, grad: NkiTensor
) -> tuple[NkiTensor, NkiTensor, NkiTensor]:
    """Gradients of LayerNorm.

    With `n = (x - mean) * rstd` and `g = grad * weight`, that of `x` is `rstd * (g - mean(g) - n * mean(g * n))`, that
    of the weight the sum of `grad * n` over the rows, that of the bias the sum of `grad`.

    Args:
        x, weight: as of layer_norm_kernel.
        mean, rstd: what that returned.
        grad: gradient of its result, as `x`.

    Returns:
        Gradients of `x` (as `x`), of the weight and of the bias, (d,) of fp32.
    """
    rows, d = x.shape
    dx = nl.ndarray((rows, d), dtype=x.dtype, buffer=nl.shared_hbm)
    dweight = nl.ndarray((d,), dtype=nl.float32, buffer=nl.shared_hbm)
    dbias = nl.ndarray((d,), dtype=nl.float32, buffer=nl.shared_hbm)
    scale = None if weight is None else load_row(weight, min(rows, PARTITIONS))
    weights, offsets = sbuf((min(rows, PARTITIONS), d)), sbuf((min(rows, PARTITIONS), d))
    nisa.memset(weights, 0.0)
    nisa.memset(offsets, 0.0)
    pieces = spans(d, _PIECE)
    for start, p in spans(rows, PARTITIONS):
        tile, back = load(x[start : start + p, :]), load(grad[start : start + p, :])
        centre, factor = load(flat(mean, start, p)), load(flat(rstd, start, p))
        partial = sbuf((p, 2, len(pieces)))
        for i, (c0, c) in enumerate(pieces):
            normal, weighted = _normal(tile, c0, c, centre, factor), _weighted(back, c0, c, scale)
            product = sbuf((p, c))
            part = offsets[0:p, c0 : c0 + c]
            nisa.tensor_tensor(part, part, back[:, c0 : c0 + c], op=nl.add, engine=nisa.engine.gpsimd)
            part = weights[0:p, c0 : c0 + c]
            nisa.tensor_tensor(product, normal, back[:, c0 : c0 + c], op=nl.multiply)
            nisa.tensor_tensor(part, part, product, op=nl.add, engine=nisa.engine.gpsimd)
            nisa.activation_reduce(product, nl.copy, weighted, reduce_op=nl.add, reduce_res=partial[:, 0, i : i + 1])
            nisa.tensor_tensor(product, normal, weighted, op=nl.multiply)
            nisa.activation_reduce(product, nl.copy, product, reduce_op=nl.add, reduce_res=partial[:, 1, i : i + 1])
        means = sbuf((p, 2))
        nisa.tensor_reduce(means, nl.add, partial, axis=2)
        nisa.tensor_scalar(means, means, op0=nl.multiply, operand0=1.0 / d)
        for c0, c in pieces:
            normal, weighted = _normal(tile, c0, c, centre, factor), _weighted(back, c0, c, scale)
            slope, result = sbuf((p, c)), sbuf((p, c), x.dtype)
            # g minus n * mean(g * n).
            nisa.scalar_tensor_tensor(
                slope, normal, nl.multiply, means[:, 1:2], nl.subtract, weighted, reverse1=True
            )  # fmt: skip
            nisa.tensor_scalar(
                result, slope, op0=nl.subtract, operand0=means[:, 0:1], op1=nl.multiply, operand1=factor
            )  # fmt: skip
            store(dx[start : start + p, c0 : c0 + c], result)
    sum_over_partitions(dweight, weights)
    sum_over_partitions(dbias, offsets)
    return dx, dweight, dbias


def _normal(tile: NkiTensor, start: int, count: int, centre: NkiTensor, factor: NkiTensor) -> NkiTensor:
    """`(x - mean) * rstd` of a piece of a row."""
    normal = sbuf((tile.shape[0], count))
    nisa.tensor_scalar(
        normal, tile[:, start : start + count], op0=nl.subtract, operand0=centre, op1=nl.multiply, operand1=factor
    )  # fmt: skip
    return normal


def _weighted(back: NkiTensor, start: int, count: int, scale: NkiTensor | None) -> NkiTensor:
    """`grad * weight` of a piece of a row."""
    piece = back[:, start : start + count]
    if scale is None:
        return piece
    weighted = sbuf(piece.shape)
    nisa.tensor_tensor(weighted, piece, scale[0 : piece.shape[0], start : start + count], op=nl.multiply)
    return weighted
