"""Elementwise functions of tiles: each makes a new tile in SBUF with one instruction or a few.

The function objects are also what instructions of nki.isa take as operators: `op=nl.add`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi
from typing import Any

from .. import isa
from ..element_types import TYPES, of
from ..memory import allocate
from ..regions import SBUF
from ..tensor import NkiTensor
from ..tensor_errors import NoTileOperandError, ShapeMismatchError
from ..trace import source_line
from .promotion import result_type

Elementwise = Callable[..., NkiTensor]


def _tile_like(x: NkiTensor, dtype: Any) -> NkiTensor:
    return allocate(SBUF, x.shape, x.dtype if dtype is None else dtype)


def _need_tile(function: str, *operands: Any) -> None:
    if not any(isinstance(operand, NkiTensor) for operand in operands):
        kinds = " and ".join(type(operand).__name__ for operand in operands)
        raise NoTileOperandError(function=function, operands=kinds, line=source_line())


def _combine(operator: Elementwise, x: Any, y: Any, dtype: Any) -> NkiTensor:
    name = operator.__name__
    _need_tile(name, x, y)
    kind = result_type(x, y) if dtype is None else of(dtype)
    if not isinstance(y, NkiTensor):
        dst = allocate(SBUF, x.shape, kind)
        isa.tensor_scalar(dst=dst, data=x, op0=operator, operand0=y)
    elif not isinstance(x, NkiTensor):
        dst = allocate(SBUF, y.shape, kind)
        isa.tensor_scalar(dst=dst, data=y, op0=operator, operand0=x, reverse0=True)
    else:
        if x.shape != y.shape:
            raise ShapeMismatchError(function=name, first=x.shape, second=y.shape, line=source_line())
        dst = allocate(SBUF, x.shape, kind)
        isa.tensor_tensor(dst=dst, data1=x, data2=y, op=operator)
    return dst


def _named(function: Elementwise, name: str, text: str) -> Elementwise:
    function.__name__ = function.__qualname__ = name
    function.__module__ = "nki.language"
    function.__doc__ = text
    return function


def _binary(name: str, meaning: str, more: str = "") -> Elementwise:
    def function(x: Any, y: Any, dtype: Any = None) -> NkiTensor:
        return _combine(function, x, y, dtype)

    return _named(
        function,
        name,
        f"""{meaning}, element by element{"" if not more else "; " + more}.

        Args:
            x, y: tiles of the same shape in SBUF or PSUM; one of them may be a number.
            dtype: of the result; by default what the types of the operands promote to.

        Returns:
            A tile in SBUF.

        Raises:
            NoTileOperandError: two numbers.
            ShapeMismatchError: tiles of different shapes.
        """,
    )


def _unary(name: str, meaning: str, more: str = "") -> Elementwise:
    def function(x: NkiTensor, dtype: Any = None) -> NkiTensor:
        _need_tile(name, x)
        dst = _tile_like(x, dtype)
        isa.activation(dst=dst, op=function, data=x)
        return dst

    return _named(function, name, _unary_text(meaning, more))


def _unary_text(meaning: str, more: str = "") -> str:
    return f"""{meaning}, element by element{"" if not more else "; " + more}.

        Args:
            x: a tile in SBUF or PSUM.
            dtype: of the result, by default that of `x`.

        Returns:
            A tile in SBUF.
        """


_SIMULATED = "no engine has this operator: kernels with it run here and do not compile for the hardware"
_GEN4 = "NeuronCore-v4 (trn3) only"
_INTEGERS = "of integers"
_FLAG = "1 where so, else 0"
_BOOLEAN = "of numbers as truth values, 1 or 0"

add = _binary("add", "x + y")
subtract = _binary("subtract", "x - y")
multiply = _binary("multiply", "x * y")
divide = _binary("divide", "x / y", _SIMULATED)
mod = _binary("mod", "The remainder of x / y with the sign of y", _SIMULATED)
fmod = _binary("fmod", "The remainder of x / y with the sign of x", _SIMULATED)
maximum = _binary("maximum", "The larger of x and y")
minimum = _binary("minimum", "The smaller of x and y")
abs_max = _binary("abs_max", "x or y, whichever is larger without its sign, y where both are", _GEN4)
abs_min = _binary("abs_min", "x or y, whichever is smaller without its sign, y where both are", _GEN4)
power = _binary("power", "x to the power of y")
equal = _binary("equal", "x == y", _FLAG)
not_equal = _binary("not_equal", "x != y", _FLAG)
less = _binary("less", "x < y", _FLAG)
less_equal = _binary("less_equal", "x <= y", _FLAG)
greater = _binary("greater", "x > y", _FLAG)
greater_equal = _binary("greater_equal", "x >= y", _FLAG)
bitwise_and = _binary("bitwise_and", "x & y", _INTEGERS)
bitwise_or = _binary("bitwise_or", "x | y", _INTEGERS)
bitwise_xor = _binary("bitwise_xor", "x ^ y", _INTEGERS)
left_shift = _binary("left_shift", "x << y", _INTEGERS)
right_shift = _binary("right_shift", "x >> y, filling with zeros", _INTEGERS)
logical_and = _binary("logical_and", "x and y", _BOOLEAN)
logical_or = _binary("logical_or", "x or y", _BOOLEAN)
logical_xor = _binary("logical_xor", "x or y but not both", _BOOLEAN)

exp = _unary("exp", "e to the power of x")
log = _unary("log", "The natural logarithm", "the Scalar engine takes 2^-64 to 2^64")
sqrt = _unary("sqrt", "The square root", "the Scalar engine takes 2^-116 to 2^118")
tanh = _unary("tanh", "The hyperbolic tangent")
sigmoid = _unary("sigmoid", "1 / (1 + exp(-x))")
relu = _unary("relu", "max(x, 0)")
gelu = _unary("gelu", "x * Phi(x), with the normal distribution Phi")
gelu_dx = _unary("gelu_dx", "The derivative of gelu")
gelu_apprx_tanh = _unary("gelu_apprx_tanh", "gelu by its approximation with tanh")
gelu_apprx_tanh_dx = _unary("gelu_apprx_tanh_dx", "The derivative of gelu_apprx_tanh")
gelu_apprx_sigmoid = _unary("gelu_apprx_sigmoid", "x * sigmoid(1.702 x)")
gelu_apprx_sigmoid_dx = _unary("gelu_apprx_sigmoid_dx", "The derivative of gelu_apprx_sigmoid")
silu = _unary("silu", "x * sigmoid(x)")
silu_dx = _unary("silu_dx", "The derivative of silu")
softplus = _unary("softplus", "log(1 + exp(x))")
mish = _unary("mish", "x * tanh(softplus(x))")
erf = _unary("erf", "The error function")
erf_dx = _unary("erf_dx", "The derivative of erf")
arctan = _unary("arctan", "The inverse tangent")
sign = _unary("sign", "-1, 0 or 1")
square = _unary("square", "x * x")
abs = _unary("abs", "x without its sign")
floor = _unary("floor", "The largest integer that is not above x")
ceil = _unary("ceil", "The smallest integer that is not below x")
trunc = _unary("trunc", "x without its fraction")


# 2 pi as the sum of a number of 11 significant bits, whose products with whole numbers of turns are exact in fp32 up to
# 2^13 of them, and the rest.
_TURN_HIGH = 6.28125
_TURN_LOW = 2 * pi - _TURN_HIGH


def _within_one_turn(x: NkiTensor) -> NkiTensor:
    """x less whole turns, so that it lies in [-pi, pi], where the Scalar engine's sine is exact."""
    fp32 = TYPES["float32"]
    turns = allocate(SBUF, x.shape, TYPES["int32"])  # the conversion rounds to the nearest
    isa.tensor_scalar(dst=turns, data=x, op0=multiply, operand0=1 / (2 * pi))
    rough = allocate(SBUF, x.shape, fp32)
    isa.scalar_tensor_tensor(dst=rough, data=turns, op0=multiply, operand0=-_TURN_HIGH, op1=add, operand1=x)
    rest = allocate(SBUF, x.shape, fp32)
    isa.scalar_tensor_tensor(dst=rest, data=turns, op0=multiply, operand0=-_TURN_LOW, op1=add, operand1=rough)
    isa.tensor_scalar(dst=rest, data=rest, op0=minimum, operand0=pi, op1=maximum, operand1=-pi)
    return rest


def sin(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """The sine, element by element, of any angle in radians; whole turns are taken off first.

    Args:
        x: a tile in SBUF or PSUM. Beyond about 50,000 the reduction loses digits, as fp32 itself does.
        dtype: of the result, by default that of `x`.

    Returns:
        A tile in SBUF.
    """
    _need_tile("sin", x)
    dst = _tile_like(x, dtype)
    isa.activation(dst=dst, op=sin, data=_within_one_turn(x))
    return dst


def cos(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """The cosine, element by element, of any angle in radians: of an angle within [-pi, pi], the sine of pi/2 - |x|.

    Args:
        x: a tile in SBUF or PSUM.
        dtype: of the result, by default that of `x`.

    Returns:
        A tile in SBUF.
    """
    _need_tile("cos", x)
    dst = _tile_like(x, dtype)
    angle = _within_one_turn(x)
    isa.activation(dst=angle, op=abs, data=angle)
    isa.tensor_scalar(dst=angle, data=angle, op0=multiply, operand0=-1.0, op1=add, operand1=pi / 2)
    isa.activation(dst=dst, op=sin, data=angle)
    return dst


def tan(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """The tangent, element by element: sine times the reciprocal of the cosine.

    Args:
        x: a tile in SBUF or PSUM.
        dtype: of the result, by default that of `x`.

    Returns:
        A tile in SBUF.
    """
    _need_tile("tan", x)
    inverse = reciprocal(cos(x, dtype=TYPES["float32"]))
    dst = _tile_like(x, dtype)
    isa.tensor_tensor(dst=dst, data1=sin(x, dtype=TYPES["float32"]), data2=inverse, op=multiply)
    return dst


def rsqrt(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """1 / sqrt(x), element by element, on the GpSimd engine, which does not reach PSUM.

    Args:
        x: a tile in SBUF.
        dtype: of the result, by default that of `x`.

    Returns:
        A tile in SBUF.
    """
    _need_tile("rsqrt", x)
    dst = _tile_like(x, dtype)
    isa.tensor_scalar(dst=dst, data=x, op0=rsqrt, operand0=0.0, engine=isa.engine.gpsimd)
    return dst


def reciprocal(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """1 / x, element by element.

    Args:
        x: a tile in SBUF or PSUM.
        dtype: of the result, by default that of `x`.

    Returns:
        A tile in SBUF.
    """
    _need_tile("reciprocal", x)
    dst = _tile_like(x, dtype)
    isa.reciprocal(dst=dst, data=x)
    return dst


def negative(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """-x, element by element.

    Args:
        x: a tile in SBUF or PSUM.
        dtype: of the result, by default that of `x`.

    Returns:
        A tile in SBUF.
    """
    _need_tile("negative", x)
    dst = _tile_like(x, dtype)
    isa.tensor_scalar(dst=dst, data=x, op0=multiply, operand0=-1.0)
    return dst


def invert(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """All bits of integers turned over, element by element: xor with ones.

    Args:
        x: a tile of integers in SBUF or PSUM.
        dtype: of the result, by default that of `x`.

    Returns:
        A tile in SBUF.
    """
    _need_tile("invert", x)
    dst = _tile_like(x, dtype)
    ones = -1 if x.dtype.kind == "int" else (1 << (8 * x.dtype.itemsize)) - 1
    isa.tensor_scalar(dst=dst, data=x, op0=bitwise_xor, operand0=ones)
    return dst


def logical_not(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """1 - x of truth values, element by element: xor with 1. For other numbers use nl.equal(x, 0).

    Args:
        x: a tile of ones and zeros in SBUF or PSUM.
        dtype: of the result, by default that of `x`.

    Returns:
        A tile in SBUF.
    """
    _need_tile("logical_not", x)
    dst = _tile_like(x, dtype)
    isa.tensor_scalar(dst=dst, data=x, op0=logical_xor, operand0=1.0)
    return dst


def where(condition: NkiTensor, x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """Elements of `x` where `condition` is 1, of `y` where it is 0.

    Args:
        condition: a tile of ones and zeros in SBUF or PSUM.
        x, y: tiles of the same shape, or numbers.
        dtype: of the result, by default what `x` and `y` promote to.

    Returns:
        A tile in SBUF.

    Raises:
        ShapeMismatchError: tiles of different shapes.
    """
    _need_tile("where", condition)
    for tile in (x, y):
        if isinstance(tile, NkiTensor) and tile.shape != condition.shape:
            raise ShapeMismatchError(function="where", first=condition.shape, second=tile.shape, line=source_line())
    numbers = not isinstance(x, NkiTensor) and not isinstance(y, NkiTensor)
    kind = of(dtype) if dtype is not None else condition.dtype if numbers else result_type(x, y)
    dst = _filled(condition, y, kind)
    chosen = x if isinstance(x, NkiTensor) and x.dtype == kind else _filled(condition, x, kind)
    flags = allocate(SBUF, condition.shape, TYPES["uint8"])
    isa.tensor_copy(dst=flags, src=condition)
    isa.tensor_copy_predicated(dst=dst, src=chosen, predicate=flags)
    return dst


def _filled(like: NkiTensor, value: Any, dtype: Any) -> NkiTensor:
    """A new tile with the elements of a tile, or a number everywhere."""
    dst = allocate(SBUF, like.shape, dtype)
    if isinstance(value, NkiTensor):
        isa.tensor_copy(dst=dst, src=value)
    else:
        isa.memset(dst=dst, value=float(value) if dst.dtype.is_float else value)
    return dst
