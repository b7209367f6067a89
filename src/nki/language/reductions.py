"""Functions over the last free dimensions of tiles: sums, extremes, and what is made of them."""

from __future__ import annotations

import operator
from math import prod as product
from typing import Any

from .. import isa
from ..element_types import TYPES, of
from ..memory import allocate
from ..regions import SBUF
from ..tensor import NkiTensor
from ..tensor_errors import ReductionAxisError, ShapeMismatchError
from ..trace import source_line
from . import elementwise as el

_FLOAT32 = TYPES["float32"]


def _axes(function: str, x: NkiTensor, axis: Any) -> tuple[int, ...]:
    """The dimensions that are reduced: the last ones, without a gap, never the partition."""
    given = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    count = len(x.shape)
    axes = sorted({a % count if -count <= (a := operator.index(number)) < count else -1 for number in given})
    if not axes or axes[0] < 1 or axes != list(range(axes[0], count)) or len(axes) != len(given):
        raise ReductionAxisError(function=function, axis=axis, shape=x.shape, line=source_line())
    return tuple(axes)


def _kept(x: NkiTensor, axes: tuple[int, ...]) -> tuple[int, ...]:
    return (*x.shape[: axes[0]], *(1 for _ in axes))


def _result(x: NkiTensor, axes: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    if keepdims:
        return _kept(x, axes)
    shape = x.shape[: axes[0]]
    return shape if len(shape) > 1 else (*shape, 1)


def _reduce(function: str, op: Any, x: NkiTensor, axis: Any, dtype: Any, keepdims: bool) -> NkiTensor:
    axes = _axes(function, x, axis)
    dst = allocate(SBUF, _kept(x, axes), x.dtype if dtype is None else dtype)
    isa.tensor_reduce(dst=dst, op=op, data=x, axis=axes, keepdims=True)
    return dst.reshape(_result(x, axes, keepdims))


def sum(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """The sum over the last free dimensions, in fp32.

    Args:
        x: a tile in SBUF or PSUM.
        axis: dimensions: an integer or a tuple of them; the last ones, not the partition.
        dtype: of the result, by default that of `x`.
        keepdims: reduced dimensions stay with size 1. One always does where else fewer than two would be left.

    Returns:
        A tile in SBUF.

    Raises:
        ReductionAxisError: other dimensions.
    """
    return _reduce("sum", el.add, x, axis, dtype, keepdims)


def max(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """The largest element over the last free dimensions; arguments and errors as of :func:`sum`."""
    return _reduce("max", el.maximum, x, axis, dtype, keepdims)


def min(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """The smallest element over the last free dimensions; arguments and errors as of :func:`sum`."""
    return _reduce("min", el.minimum, x, axis, dtype, keepdims)


def prod(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """The product over the last free dimensions, in fp32; arguments and errors as of :func:`sum`."""
    return _reduce("prod", el.multiply, x, axis, dtype, keepdims)


def all(x: NkiTensor, axis: Any, dtype: Any = None) -> NkiTensor:
    """1 where all elements over the last free dimensions are not 0, else 0; as :func:`sum` otherwise."""
    return _reduce("all", el.logical_and, x, axis, dtype, False)


def mean(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """The mean over the last free dimensions, in fp32; arguments and errors as of :func:`sum`."""
    axes = _axes("mean", x, axis)
    total = _reduce("mean", el.add, x, axes, _FLOAT32, True)
    dst = allocate(SBUF, total.shape, x.dtype if dtype is None else dtype)
    isa.tensor_scalar(dst=dst, data=total, op0=el.multiply, operand0=1.0 / product(x.shape[axes[0] :]))
    return dst.reshape(_result(x, axes, keepdims))


def _repeated(tile: NkiTensor, x: NkiTensor, axes: tuple[int, ...]) -> NkiTensor:
    """A reduced tile as often as it takes to look like `x` again."""
    for axis in axes:
        tile = tile.broadcast(axis, x.shape[axis])
    return tile


def var(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """The variance over the last free dimensions, which stay with size 1 whatever `keepdims` says (NKI has it so).

    Squares of the distances from the mean, in fp32, divided by their number. Arguments and errors as of :func:`sum`.
    """
    axes = _axes("var", x, axis)
    middle = mean(x, axes, _FLOAT32, True)
    distance = allocate(SBUF, x.shape, _FLOAT32)
    isa.tensor_tensor(dst=distance, data1=x, data2=_repeated(middle, x, axes), op=el.subtract)
    squares = allocate(SBUF, x.shape, _FLOAT32)
    isa.tensor_tensor(dst=squares, data1=distance, data2=distance, op=el.multiply)
    return mean(squares, axes, x.dtype if dtype is None else dtype, True)


def softmax(x: NkiTensor, axis: Any = -1, dtype: Any = None) -> NkiTensor:
    """exp(x - max) over its sum, along the last free dimensions, in fp32.

    Args:
        x: a tile in SBUF or PSUM.
        axis: dimensions: an integer or a tuple of them; the last ones, not the partition.
        dtype: of the result, by default that of `x`.

    Returns:
        A tile of the shape of `x` in SBUF.

    Raises:
        ReductionAxisError: other dimensions.
    """
    axes = _axes("softmax", x, axis)
    exponentials = allocate(SBUF, x.shape, _FLOAT32)
    dst = allocate(SBUF, x.shape, x.dtype if dtype is None else dtype)
    sums = allocate(SBUF, _kept(x, axes), _FLOAT32)
    largest = allocate(SBUF, _kept(x, axes), _FLOAT32)
    if axes[0] == 1:  # one row per partition: what the Scalar engine does in one pass
        isa.tensor_reduce(dst=largest, op=el.maximum, data=x, axis=axes, negate=True, keepdims=True)
        flat = (x.shape[0], 1)
        isa.activation(
            dst=exponentials,
            op=el.exp,
            data=x,
            bias=largest.reshape(flat),
            reduce_op=el.add,
            reduce_res=sums.reshape(flat),
            reduce_cmd=isa.reduce_cmd.reset_reduce,
        )
        isa.reciprocal(dst=sums, data=sums)
        isa.tensor_scalar(dst=dst, data=exponentials, op0=el.multiply, operand0=sums.reshape(flat))
        return dst
    isa.tensor_reduce(dst=largest, op=el.maximum, data=x, axis=axes, keepdims=True)
    isa.tensor_tensor(dst=exponentials, data1=x, data2=_repeated(largest, x, axes), op=el.subtract)
    isa.activation(dst=exponentials, op=el.exp, data=exponentials)
    isa.tensor_reduce(dst=sums, op=el.add, data=exponentials, axis=axes, keepdims=True)
    isa.reciprocal(dst=sums, data=sums)
    isa.tensor_tensor(dst=dst, data1=exponentials, data2=_repeated(sums, x, axes), op=el.multiply)
    return dst


def rms_norm(
    x: NkiTensor,
    w: NkiTensor,
    axis: Any,
    n: int,
    epsilon: float = 1e-06,
    dtype: Any = None,
    compute_dtype: Any = None,
) -> NkiTensor:
    """x / sqrt(sum(x * x) / n + epsilon) * w, along the last free dimensions.

    Args:
        x: a tile in SBUF or PSUM.
        w: weights of the same shape, or with size 1 where they repeat along free dimensions.
        axis: dimensions: an integer or a tuple of them; the last ones, not the partition.
        n: how many values the sum is divided by.
        epsilon: keeps the root away from 0.
        dtype: of the result, by default that of `x`.
        compute_dtype: of what is computed on the way, by default fp32.

    Returns:
        A tile of the shape of `x` in SBUF.

    Raises:
        ReductionAxisError: other dimensions.
        ShapeMismatchError: weights of another shape.
    """
    axes = _axes("rms_norm", x, axis)
    kind = _FLOAT32 if compute_dtype is None else of(compute_dtype)
    if len(w.shape) != len(x.shape) or w.shape[0] != x.shape[0]:
        raise ShapeMismatchError(function="rms_norm", first=x.shape, second=w.shape, line=source_line())
    for dim in range(1, len(x.shape)):
        if w.shape[dim] == 1 != x.shape[dim]:
            w = w.broadcast(dim, x.shape[dim])
        elif w.shape[dim] != x.shape[dim]:
            raise ShapeMismatchError(function="rms_norm", first=x.shape, second=w.shape, line=source_line())
    squares = allocate(SBUF, x.shape, kind)
    isa.activation(dst=squares, op=el.square, data=x)
    sums = allocate(SBUF, _kept(x, axes), _FLOAT32)
    isa.tensor_reduce(dst=sums, op=el.add, data=squares, axis=axes, keepdims=True)
    isa.tensor_scalar(dst=sums, data=sums, op0=el.multiply, operand0=1.0 / n, op1=el.add, operand1=epsilon)
    isa.activation(dst=sums, op=el.rsqrt, data=sums)
    scaled = allocate(SBUF, x.shape, kind)
    isa.tensor_tensor(dst=scaled, data1=x, data2=_repeated(sums, x, axes), op=el.multiply)
    dst = allocate(SBUF, x.shape, x.dtype if dtype is None else dtype)
    isa.tensor_tensor(dst=dst, data1=scaled, data2=w, op=el.multiply)
    return dst


def dropout(x: NkiTensor, rate: Any, dtype: Any = None) -> NkiTensor:
    """Elements of `x`, each 0 with a probability.

    Args:
        x: a tile in SBUF or PSUM.
        rate: the probability: a number, or a tile (P, 1) of one per partition.
        dtype: of the result, by default that of `x`.

    Returns:
        A tile of the shape of `x` in SBUF; elements that stay are not scaled.
    """
    dst = allocate(SBUF, x.shape, x.dtype if dtype is None else dtype)
    isa.dropout(dst=dst, data=x, prob=rate)
    return dst
