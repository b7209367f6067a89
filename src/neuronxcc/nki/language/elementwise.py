"""Functions of nki.language that compute element by element (Beta 1); they also name operators (`op=nl.add`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import nki.isa as hardware
from nki.element_types import DType, of
from nki.language.promotion import promote, result_type
from nki.operators import BITWISE, name_of
from nki.tensor import NkiTensor

from ..emission import as_tile, broadcast, broadcast_shape, each, elementwise, fresh, in_sbuf, on_engine
from ..isa.compute import column_dtype, predicate_of
from ..tile import BlockTensor, Tile

__all__ = [
    "abs", "add", "arctan", "bitwise_and", "bitwise_or", "bitwise_xor", "ceil", "copy", "cos", "divide", "dropout",
    "equal", "erf", "erf_dx", "exp", "floor", "fmod", "gelu", "gelu_apprx_sigmoid", "gelu_apprx_tanh", "gelu_dx",
    "greater", "greater_equal", "into", "invert", "left_shift", "less", "less_equal", "log", "logical_and",
    "logical_not", "logical_or", "logical_xor", "maximum", "minimum", "mish", "mod", "multiply", "negative",
    "not_equal", "power", "reciprocal", "relu", "right_shift", "rsqrt", "sigmoid", "sign", "silu", "silu_dx", "sin",
    "softplus", "sqrt", "square", "subtract", "tan", "tanh", "trunc", "where"
]  # fmt: skip

_COMPARISONS = frozenset({"equal", "not_equal", "greater", "greater_equal", "less", "less_equal"})
_BOOLEAN = _COMPARISONS | {"logical_and", "logical_or", "logical_xor"}


def _is_tile(value: Any) -> bool:
    return isinstance(value, (NkiTensor, BlockTensor))


def _is_column(tile: Tile, shape: tuple[int, ...]) -> bool:
    """Whether a tile has one element per partition, and the others more."""
    return tile.shape[0] == shape[0] and tile.size == tile.shape[0] and tile.size != _product(shape)


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for n in shape:
        total *= n
    return total


def _binary(op: str, x: Any, y: Any, dtype: DType, mask: Any = None, into: Tile | None = None) -> Tile:
    """`x <op> y`, where one at least is a tile."""
    if not _is_tile(y):
        return _scalar(op, as_tile(x, op), y, False, dtype, mask, into)
    if not _is_tile(x):
        return _scalar(op, as_tile(y, op), x, True, dtype, mask, into)
    a, b = as_tile(x, op), as_tile(y, op)
    rank = max(a.ndim, b.ndim)
    shape = broadcast_shape(op, *(_ranked(t, rank) for t in (a, b)))
    # One instruction takes a column as its scalar operand; operators on bits take it as a repeated tile.
    if op not in BITWISE and op != "power":
        if _is_column(b, shape) and a.shape == shape:
            return _scalar(op, a, b, False, dtype, mask, into)
        if _is_column(a, shape) and b.shape == shape:
            return _scalar(op, b, a, True, dtype, mask, into)
    if a.storage.region == b.storage.region == "psum":
        b = in_sbuf(b)
    return elementwise(
        lambda dst, first, second: hardware.tensor_tensor(dst, first, second, op), [a, b], dtype, mask, shape, into=into
    )


def _ranked(tile: Tile, rank: int) -> tuple[int, ...]:
    """The shape with dimensions of size 1 after the partition, up to `rank`."""
    return (tile.shape[0], *(1,) * (rank - tile.ndim), *tile.shape[1:])


def _scalar(op: str, tile: Tile, operand: Any, swapped: bool, dtype: DType, mask: Any, into: Tile | None) -> Tile:
    if not _is_tile(operand):
        operand = operand.item() if hasattr(operand, "item") else operand
    return elementwise(
        lambda dst, src, value: hardware.tensor_scalar(dst, src, op, value, swapped), [tile], dtype, mask,
        columns=(operand,), column_dtype=column_dtype(op), into=into,
    )  # fmt: skip


def into(dst: Tile, op: Any, x: Any, y: Any) -> None:
    """`x <op> y` written to an existing tile."""
    _binary(name_of(op, "loop_reduce", "op"), x, y, dst.dtype, None, dst.again())


def _two(name: str, summary: str) -> Callable[..., Any]:
    def function(x: Any, y: Any, dtype: Any = None, mask: Any = None, **_: Any) -> Any:
        if dtype is not None:
            chosen = of(dtype)
        elif name in _BOOLEAN:
            chosen = of("bool")
        else:
            chosen = result_type(*(as_tile(v) if _is_tile(v) else v for v in (x, y)))
        return _binary(name, x, y, chosen, mask)

    return _named(function, name, summary)


def _named(function: Callable[..., Any], name: str, summary: str) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{summary}, element by element.\n\n    `dtype` is that of the result, `mask` says where it is."
    return function


add = _two("add", "x + y")
subtract = _two("subtract", "x - y")
multiply = _two("multiply", "x * y")
divide = _two("divide", "x / y")
power = _two("power", "x to the power of y")
mod = _two("mod", "The remainder of x / y with the sign of y")
fmod = _two("fmod", "The remainder of x / y with the sign of x")
maximum = _two("maximum", "The larger of x and y")
minimum = _two("minimum", "The smaller of x and y")
bitwise_and = _two("bitwise_and", "The bits that x and y have in common")
bitwise_or = _two("bitwise_or", "The bits that x or y have")
bitwise_xor = _two("bitwise_xor", "The bits that x and y do not have in common")
left_shift = _two("left_shift", "Bits of x shifted up by y")
right_shift = _two("right_shift", "Bits of x shifted down by y")
equal = _two("equal", "1 where x = y, else 0")
not_equal = _two("not_equal", "1 where x and y differ, else 0")
greater = _two("greater", "1 where x > y, else 0")
greater_equal = _two("greater_equal", "1 where x >= y, else 0")
less = _two("less", "1 where x < y, else 0")
less_equal = _two("less_equal", "1 where x <= y, else 0")
logical_and = _two("logical_and", "1 where neither x nor y is 0, else 0")
logical_or = _two("logical_or", "1 where x or y is not 0, else 0")
logical_xor = _two("logical_xor", "1 where one of x and y is 0, else 0")


def _one(name: str, summary: str) -> Callable[..., Any]:
    def function(x: Any, dtype: Any = None, mask: Any = None, **_: Any) -> Tile:
        tile = as_tile(x, name)
        return elementwise(
            lambda dst, src: hardware.activation(dst, name, src), [tile], dtype or tile.dtype, mask
        )  # fmt: skip

    return _named(function, name, summary)


abs = _one("abs", "The absolute value")
arctan = _one("arctan", "The arcus tangent")
ceil = _one("ceil", "The smallest integer that is not smaller")
cos = _one("cos", "The cosine")
erf = _one("erf", "The error function")
erf_dx = _one("erf_dx", "The derivative of the error function")
exp = _one("exp", "e to the power of x")
floor = _one("floor", "The largest integer that is not larger")
gelu = _one("gelu", "x times the normal distribution function")
gelu_apprx_sigmoid = _one("gelu_apprx_sigmoid", "GELU, approximated by x * sigmoid(1.702 x)")
gelu_apprx_tanh = _one("gelu_apprx_tanh", "GELU, approximated by tanh")
gelu_dx = _one("gelu_dx", "The derivative of GELU")
log = _one("log", "The natural logarithm")
mish = _one("mish", "x * tanh(softplus(x))")
relu = _one("relu", "The larger of x and 0")
rsqrt = _one("rsqrt", "1 / sqrt(x)")
sigmoid = _one("sigmoid", "1 / (1 + exp(-x))")
sign = _one("sign", "-1, 0 or 1, as x is negative, 0 or positive")
silu = _one("silu", "x * sigmoid(x)")
silu_dx = _one("silu_dx", "The derivative of SiLU")
sin = _one("sin", "The sine")
softplus = _one("softplus", "log(1 + exp(x))")
sqrt = _one("sqrt", "The square root")
square = _one("square", "x * x")
tan = _one("tan", "The tangent")
tanh = _one("tanh", "The hyperbolic tangent")
trunc = _one("trunc", "The integer part")


def reciprocal(x: Any, *, dtype: Any = None, mask: Any = None, **_: Any) -> Tile:
    """1 / x, element by element."""
    from ..isa.compute import reciprocal as instruction

    return instruction(x, dtype=dtype, mask=mask)


def negative(x: Any, *, dtype: Any = None, mask: Any = None, **_: Any) -> Any:
    """-x, element by element."""
    tile = as_tile(x, "negative")
    return _scalar("multiply", tile, -1, False, of(dtype) if dtype else tile.dtype, mask, None)


def invert(x: Any, *, dtype: Any = None, mask: Any = None, **_: Any) -> Tile:
    """All bits of x inverted."""
    tile = as_tile(x, "invert")
    return elementwise(
        lambda dst, src: hardware.tensor_scalar(dst, src, "invert", None), [tile], dtype or tile.dtype, mask
    )


def logical_not(x: Any, *, dtype: Any = "bool", mask: Any = None, **_: Any) -> Any:
    """1 where x is 0, else 0."""
    return _scalar("equal", as_tile(x, "logical_not"), 0, False, of(dtype), mask, None)


def copy(src: Any, *, mask: Any = None, dtype: Any = None, **_: Any) -> Tile:
    """A copy in SBUF."""
    tile = as_tile(src, "copy")
    return elementwise(lambda dst, data: hardware.tensor_copy(dst, data), [tile], dtype or tile.dtype, mask)


def dropout(x: Any, rate: Any, *, dtype: Any = None, mask: Any = None, **_: Any) -> Tile:
    """Elements of x, each replaced by 0 with probability `rate`."""
    from ..isa.movement import dropout as instruction

    return instruction(x, rate, dtype=dtype, mask=mask)


def where(condition: Any, x: Any, y: Any, *, dtype: Any = None, mask: Any = None, **_: Any) -> Tile:
    """Elements of x where the condition is not 0, of y elsewhere; x and y are tiles or numbers."""
    predicate = predicate_of(condition)
    if predicate.dtype.is_float or predicate.dtype.kind == "int":
        predicate = _scalar("not_equal", predicate, 0, False, of("uint8"), None, None)
    tiles = [as_tile(v) for v in (x, y) if _is_tile(v)]
    element = of(dtype) if dtype else promote(tiles[0].dtype, tiles[-1].dtype) if tiles else of("float32")
    shape = broadcast_shape("where", predicate.shape, *(t.shape for t in tiles))
    result = fresh(shape, element)
    result.mask = None
    _fill(result, y)
    operands = [predicate, *([_typed(as_tile(x), element)] if _is_tile(x) else [])]

    def emitter(dst: Any, chosen: Any, *source: Any) -> None:
        hardware.tensor_copy_predicated(dst, source[0] if source else x, chosen)

    elementwise(emitter, operands, element, mask, shape, into=result)
    return result


def _typed(tile: Tile, dtype: DType) -> Tile:
    from ..emission import converted

    return tile if tile.dtype == dtype else converted(tile, dtype)


def _fill(result: Tile, value: Any) -> None:
    if not _is_tile(value):
        number = float(value) if result.dtype.is_float else int(value)
        for (view,) in each(result):
            hardware.memset(view, number)
        return
    source = on_engine(broadcast(on_engine(as_tile(value)), result.shape))
    for to, where_ in each(result, source):
        hardware.tensor_copy(to, where_)
