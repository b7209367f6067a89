"""Mathematical functions of kernels, as functions that LLVM inlines.

Those of f32 that occur often stand in :mod:`.kernel_math_f32`; the rest, and most of f64, is the C library's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

from . import kernel_math_f32
from .expressions import Term, copysign, polynomial, where
from .values import TYPES, Values

__all__ = ["FUNCTIONS", "Function", "function"]


@dataclass(frozen=True)
class Function:
    """What a module needs for calls of a function."""

    name: str
    result: str  # its type
    definition: str
    declared: frozenset[str]  # what the definition calls
    length: int  # instructions
    scalar: bool  # whether it stops LLVM from vectorising


def _integer_pow(x: Term, y: Term) -> Term:
    """By squaring; a negative power is 0 but for the bases 1 and -1."""
    code = x.code
    code.lines += [
        "  br label %loop",
        "loop:",
        "  %result = phi i64 [ 1, %entry ], [ %result.next, %loop ]",
        f"  %base = phi i64 [ {x.name}, %entry ], [ %base.next, %loop ]",
        f"  %power = phi i64 [ {y.name}, %entry ], [ %power.next, %loop ]",
        "  %bit = and i64 %power, 1",
        "  %odd = icmp ne i64 %bit, 0",
        "  %factor = select i1 %odd, i64 %base, i64 1",
        "  %result.next = mul i64 %result, %factor",
        "  %base.next = mul i64 %base, %base",
        "  %power.next = lshr i64 %power, 1",
        "  %more = icmp ne i64 %power.next, 0",
        "  br i1 %more, label %loop, label %end",
        "end:",
    ]
    result = Term(code, "%result.next", "i64")
    sign = where((y & 1).eq(0), x.like(1), x)
    inverse = where(x.eq(1), x.like(1), where(x.eq(-1), sign, x.like(0)))
    return where(y.lt(0), inverse, result)


# -- Of any precision -------------------------------------------------------------------------------------------------


def _library(op: str) -> Callable[..., Term]:
    def call(x: Term, *others: Term) -> Term:
        name = op if x.type_ == "double" else op + "f"
        return Term(x.code, x.code.intrinsic(name, x.type_, [x.name, *(other.name for other in others)]), x.type_)

    return call


def _fmod(x: Term, y: Term) -> Term:
    return Term(x.code, x.code.emit(f"frem {x.type_} {x.name}, {y.name}"), x.type_)


def _mod(x: Term, y: Term) -> Term:
    rest = _fmod(x, y)
    differ = rest.ne(0.0) & (rest.lt(0.0) ^ y.lt(0.0))
    return where(differ, rest + y, rest)


def _floordiv(x: Term, y: Term) -> Term:
    # By the remainder, as PyTorch does: the quotient may be rounded up to an integer.
    rest = _fmod(x, y)
    quotient = (x - rest) / y
    differ = rest.ne(0.0) & (rest.lt(0.0) ^ y.lt(0.0))
    quotient = where(differ, quotient - 1.0, quotient)
    floor = quotient.call("floor")
    floor = where((quotient - floor).gt(0.5), floor + 1.0, floor)
    plain = x / y
    floor = where(quotient.eq(0.0), copysign(0.0, plain), floor)
    return where(y.eq(0.0), plain, floor)


def _sign(x: Term) -> Term:
    return x.gt(0.0).to(x.type_) - x.lt(0.0).to(x.type_)


def _signbit(x: Term) -> Term:
    return x.bits().lt(0)


def _sigmoid_f64(x: Term) -> Term:
    return 1.0 / (_library("exp")(-x) + 1.0)


def _erfinv_f64(x: Term) -> Term:
    a = abs(x)
    w = -_library("log")((1.0 - a) * (a + 1.0))
    y = kernel_math_f32.erfinv_from(a, w, kernel_math_f32.ERFINV_TAIL_F64)
    for _ in range(2):  # Newton's method; near 1 by the complement, which has all its digits there
        slope = _library("exp")(-(y * y)) * (2 / math.sqrt(math.pi))
        rest = where(a.lt(0.5), _library("erf")(y) - a, (1.0 - a) - _library("erfc")(y))
        y = y - rest / slope
    return copysign(where(a.eq(1.0), a.like(math.inf), y), x)


# B(2k) / 2k, of Bernoulli's numbers, with alternating signs.
_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)


def _digamma(x: Term) -> Term:
    wide = x.to("double")
    left = wide.lt(0.0)
    # Reflected to the right, moved beyond 10 by the recurrence, and there the asymptotic series.
    y = where(left, 1.0 - wide, wide)
    steps = y.like(0.0)
    for k in range(10):
        steps = steps + 1.0 / (y + float(k))
    z = y + 10.0
    inverse = 1.0 / (z * z)
    series = _library("log")(z) - 0.5 / z - inverse * polynomial(inverse, _DIGAMMA) - steps
    part = wide - wide.call("trunc")
    reflected = series - math.pi / _library("tan")(part * math.pi)
    result = where(left, reflected, series)
    result = where(left & part.eq(0.0), result.like(math.nan), result)
    return where(wide.eq(0.0), copysign(math.inf, -wide), result).to(x.type_)


_ANY: dict[str, Callable[..., Term]] = {
    "rsqrt": lambda x: 1.0 / x.call("sqrt"),
    "reciprocal": lambda x: 1.0 / x,
    "fmod": _fmod,
    "mod": _mod,
    "floordiv": _floordiv,
    "truncdiv": lambda x, y: (x / y).call("trunc"),
    "sign": _sign,
    "signbit": _signbit,
    "isnan": Term.is_nan,
    "isinf": lambda x: abs(x).eq(math.inf),
    "digamma": _digamma,
    **{
        name: _library(name)
        for name in [
            "exp",
            "exp2",
            "expm1",
            "log",
            "log2",
            "log10",
            "log1p",
            "sin",
            "cos",
            "tan",
            "asin",
            "acos",
            "atan",
            "sinh",
            "cosh",
            "tanh",
            "asinh",
            "acosh",
            "atanh",
            "erf",
            "erfc",
            "lgamma",
            "pow",
            "atan2",
            "hypot",
        ]
    },
}
_F64: dict[str, Callable[..., Term]] = {"sigmoid": _sigmoid_f64, "erfinv": _erfinv_f64}
_I64: dict[str, Callable[..., Term]] = {"pow": _integer_pow}
_OF_TYPE = {"float": {**_ANY, **kernel_math_f32.FUNCTIONS}, "double": {**_ANY, **_F64}, "i64": _I64}

FUNCTIONS = frozenset({*_ANY, *kernel_math_f32.FUNCTIONS, *_F64})
_ARGUMENTS = ("%x", "%y")
_TWO = frozenset({"fmod", "mod", "floordiv", "truncdiv", "pow", "atan2", "hypot"})
_SUFFIXES = {type_: lane.value for lane, type_ in TYPES.items()}


@functools.cache
def function(op: str, type_: str) -> Function:
    """The function of the op in :data:`FUNCTIONS` on values of `type_`."""
    code = Values()
    arguments = [Term(code, name, type_) for name in _ARGUMENTS[: 2 if op in _TWO else 1]]
    result = _OF_TYPE[type_][op](*arguments)
    name = f"{op}.{_SUFFIXES[type_]}"
    parameters = ", ".join(f"{type_} {argument.name}" for argument in arguments)
    head = f"define internal {result.type_} @{name}({parameters}) alwaysinline nounwind willreturn memory(none) {{"
    lines = [head, "entry:", *code.lines, f"  ret {result.type_} {result.name}", "}"]
    scalar = any("@llvm." not in declaration for declaration in code.declared)
    scalar = scalar or any(" frem " in line or " phi " in line for line in code.lines)
    return Function(name, result.type_, "\n".join(lines), frozenset(code.declared), len(code.lines), scalar)
