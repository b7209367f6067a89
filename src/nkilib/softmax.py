"""Softmax over the last dimension, and its gradient."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import nki
import nki.isa as nisa
import nki.language as nl
from nki.tensor import NkiTensor

from .tiling import PARTITIONS, load, sbuf, spans, store

__all__ = ["RowSum", "softmax_backward_kernel", "softmax_kernel"]

# Longest row that is loaded once; longer ones go through SBUF twice, in pieces.
_PIECE = 8192
# The least maximum: finite, so that a piece of nothing but -inf adds exp(-inf) = 0 and not NaN.
_LOWEST = -3.4028234663852886e38


class RowSum:
    """Maximum and sum of exponentials of rows that come in pieces.

    Each piece has a maximum and a sum of its own, and they meet at the end: a running sum would let every piece wait
    for the one before it.

    Attributes:
        negated_maximum: (rows, 1) fp32, after :meth:`finish`.
        total: sum of exp(x - maximum), (rows, 1) fp32, after :meth:`finish`.
    """

    def __init__(self, rows: int, pieces: int) -> None:
        self._peaks = sbuf((rows, pieces))
        self._sums = sbuf((rows, pieces))
        self.negated_maximum = self._peaks
        self.total = self._sums

    def add(self, number: int, piece: NkiTensor) -> NkiTensor:
        """Takes piece `number` in, (rows, n); returns exp(piece - its maximum) in fp32."""
        peak, powers = self._peaks[:, number : number + 1], sbuf(piece.shape)
        nisa.tensor_reduce(peak, nl.maximum, piece, axis=1, negate=True)
        nisa.tensor_scalar(peak, peak, op0=nl.minimum, operand0=-_LOWEST)
        sums = self._sums[:, number : number + 1]
        nisa.activation_reduce(powers, nl.exp, piece, reduce_op=nl.add, reduce_res=sums, bias=peak)
        return powers

    def finish(self) -> None:
        """Makes one maximum and one sum of those of the pieces."""
        rows, pieces = self._peaks.shape
        if pieces > 1:
            self.negated_maximum, self.total, weights = sbuf((rows, 1)), sbuf((rows, 1)), sbuf((rows, pieces))
            nisa.tensor_reduce(self.negated_maximum, nl.minimum, self._peaks, axis=1)
            # exp(maximum of the piece - maximum): how much less its exponentials weigh beside the others'.
            nisa.activation(weights, nl.exp, self._peaks, bias=self.negated_maximum, scale=-1.0)
            nisa.tensor_tensor(weights, weights, self._sums, op=nl.multiply)
            nisa.tensor_reduce(self.total, nl.add, weights, axis=1)


@nki.jit
def softmax_kernel(x: NkiTensor) -> NkiTensor:
    """`exp(x - max) / sum(exp(x - max))` along dimension 1, in fp32, rounded once.

    Args:
        x: (rows, columns) of bf16, fp16 or fp32, any sizes from 1 on.

    Returns:
        As `x`.

    128 rows at a time, one per partition. Rows of up to 8192 elements are loaded once: a maximum (Vector), exponentials
    with their sum (Scalar), a product (Vector), each one instruction for the whole row; the maximum of the next rows
    comes before the product of these, which waits for the Scalar engine. Longer rows pass twice, in pieces of 8192:
    first for maximum and sum, then for the result. Modelled on trn2: Vector bound for bf16, bound by DMA for long rows
    of fp32.
    """
    rows, columns = x.shape
    y = nl.ndarray((rows, columns), dtype=x.dtype, buffer=nl.shared_hbm)
    pieces = spans(columns, _PIECE)
    before: Callable[[], None] | None = None
    for start, p in spans(rows, PARTITIONS):
        run = RowSum(p, len(pieces))
        for i, (c0, c) in enumerate(pieces):
            powers = run.add(i, load(x[start : start + p, c0 : c0 + c]))
        if before is not None:
            before()
        if len(pieces) == 1:
            before = partial(_normalise, y[start : start + p, :], powers, run)
            continue
        run.finish()
        for c0, c in pieces:
            powers, piece = sbuf((p, c)), load(x[start : start + p, c0 : c0 + c])
            nisa.activation(powers, nl.exp, piece, bias=run.negated_maximum)
            _normalise(y[start : start + p, c0 : c0 + c], powers, run)
    if before is not None:
        before()
    return y


def _normalise(target: NkiTensor, powers: NkiTensor, run: RowSum) -> None:
    """Exponentials divided by their sum, to HBM."""
    inverse, result = sbuf((powers.shape[0], 1)), sbuf(powers.shape, target.dtype)
    nisa.reciprocal(inverse, run.total)
    nisa.tensor_scalar(result, powers, op0=nl.multiply, operand0=inverse)
    store(target, result)


@nki.jit
def softmax_backward_kernel(y: NkiTensor, grad: NkiTensor) -> NkiTensor:
    """Gradient of softmax: `y * (grad - sum(y * grad))` along dimension 1, in fp32, rounded once.

    Args:
        y: what softmax_kernel gave, (rows, columns); limits as there.
        grad: gradient of `y`, as `y`.

    Returns:
        Gradient of the argument, as `y`.

    Rows of up to 8192 elements are loaded once, longer ones twice. Three engines share the work: products on GpSimd,
    their sum on Scalar, the result on Vector.
    """
    rows, columns = y.shape
    dx = nl.ndarray((rows, columns), dtype=y.dtype, buffer=nl.shared_hbm)
    pieces = spans(columns, _PIECE)
    for start, p in spans(rows, PARTITIONS):
        sums = sbuf((p, len(pieces)))
        for i, (c0, c) in enumerate(pieces):
            out, back = load(y[start : start + p, c0 : c0 + c]), load(grad[start : start + p, c0 : c0 + c])
            product = sbuf((p, c))
            nisa.tensor_tensor(product, out, back, op=nl.multiply, engine=nisa.engine.gpsimd)
            nisa.activation_reduce(product, nl.copy, product, reduce_op=nl.add, reduce_res=sums[:, i : i + 1])
        mean = sbuf((p, 1))
        nisa.tensor_reduce(mean, nl.add, sums, axis=1)
        for c0, c in pieces:
            if len(pieces) > 1:
                out, back = load(y[start : start + p, c0 : c0 + c]), load(grad[start : start + p, c0 : c0 + c])
            result = sbuf((p, c), y.dtype)
            nisa.scalar_tensor_tensor(result, back, nl.subtract, mean, nl.multiply, out)
            store(dx[start : start + p, c0 : c0 + c], result)
    return dx
