"""Functions of nki.language that reduce free dimensions (Beta 1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import nki.isa as hardware
from nki.element_types import of

from ..emission import as_tile, broadcast, elementwise
from ..isa.compute import tensor_reduce
from ..loops import LoopIndex
from ..tile import Reduction, Tile
from . import elementwise as el

__all__ = ["all", "loop_reduce", "max", "mean", "min", "prod", "rms_norm", "softmax", "sum", "var"]


def _axes(axis: Any) -> list[int]:
    return list(axis) if isinstance(axis, Sequence) else [axis]


def _reduction(name: str, op: str, summary: str) -> Callable[..., Any]:
    def function(x: Any, axis: Any, *, dtype: Any = None, mask: Any = None, keepdims: bool = False, **_: Any) -> Tile:
        return tensor_reduce(op, x, _axes(axis), dtype=dtype, mask=mask, keepdims=keepdims)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{summary} along free dimensions, which go unless `keepdims`; one of them stays."
    return function


max = _reduction("max", "maximum", "The largest element")
min = _reduction("min", "minimum", "The smallest element")
sum = _reduction("sum", "add", "The sum")
prod = _reduction("prod", "multiply", "The product")


def all(x: Any, axis: Any, *, dtype: Any = "bool", mask: Any = None, **_: Any) -> Tile:
    """1 where no element along free dimensions is 0, else 0."""
    return tensor_reduce("logical_and", x, _axes(axis), dtype=dtype, mask=mask)


def _count(x: Any, axis: Any) -> int:
    tile = as_tile(x)
    total = 1
    for a in _axes(axis):
        total *= tile.shape[a]
    return total


def mean(x: Any, axis: Any, *, dtype: Any = None, mask: Any = None, keepdims: bool = False, **_: Any) -> Any:
    """The mean along free dimensions."""
    total = tensor_reduce("add", x, _axes(axis), dtype="float32", mask=mask, keepdims=keepdims)
    return el.multiply(total, 1.0 / _count(x, axis), dtype=dtype or as_tile(x).dtype)


def var(x: Any, axis: Any, *, dtype: Any = None, mask: Any = None, **_: Any) -> Any:
    """The variance along free dimensions: the mean of the squared distances from the mean."""
    tile = as_tile(x)
    center = mean(tile, axis, dtype="float32", mask=mask, keepdims=True)
    distance = el.subtract(tile, broadcast(center, tile.shape), dtype="float32", mask=mask)
    return mean(el.square(distance, mask=mask), axis, dtype=dtype or tile.dtype, mask=mask)


def softmax(x: Any, axis: Any, *, dtype: Any = None, compute_dtype: Any = None, mask: Any = None, **_: Any) -> Any:
    """exp(x - max) / sum(exp(x - max)) along free dimensions."""
    tile = as_tile(x)
    inner = compute_dtype or "float32"
    largest = tensor_reduce("maximum", tile, _axes(axis), mask=mask, keepdims=True, dtype="float32")
    shifted = el.subtract(tile, broadcast(largest, tile.shape), dtype=inner, mask=mask)
    powers = el.exp(shifted, dtype=inner, mask=mask)
    total = tensor_reduce("add", powers, _axes(axis), mask=mask, keepdims=True, dtype="float32")
    inverse = el.reciprocal(total)
    return el.multiply(powers, broadcast(inverse, tile.shape), dtype=dtype or tile.dtype, mask=mask)


def rms_norm(
    x: Any, w: Any, axis: Any, n: int, epsilon: float = 1e-06, *, dtype: Any = None, compute_dtype: Any = None,
    mask: Any = None, **_: Any
) -> Any:  # fmt: skip
    """x / sqrt(sum(x * x) / n + epsilon) * w along free dimensions."""
    tile = as_tile(x)
    squares = el.square(tile, dtype=compute_dtype or "float32", mask=mask)
    total = tensor_reduce("add", squares, _axes(axis), mask=mask, keepdims=True, dtype="float32")
    mean_square = elementwise(
        lambda dst, src: hardware.tensor_scalar(dst, src, "multiply", 1.0 / n, False, "add", epsilon),
        [total],
        "float32",
    )
    factor = el.rsqrt(mean_square)
    scaled = el.multiply(tile, broadcast(factor, tile.shape), dtype=compute_dtype or "float32", mask=mask)
    return el.multiply(scaled, as_tile(w), dtype=dtype or tile.dtype, mask=mask)


def loop_reduce(x: Any, op: Any, loop_indices: Sequence[Any], *, dtype: Any = None, mask: Any = None, **_: Any) -> Tile:
    """A value that `tile[...] = loop_reduce(...)` combines with those of the loops' earlier iterations.

    Args:
        op: np.add and the like.
        loop_indices: numbers of the iterations that are reduced over.
    """
    tile = as_tile(x, "loop_reduce")
    if dtype is not None and of(dtype) != tile.dtype:
        tile = el.copy(tile, dtype=dtype, mask=mask)
    result = tile.again()
    first = [i.first for i in loop_indices if isinstance(i, LoopIndex)]
    result.reduction = Reduction(op, first=False not in first)
    return result
