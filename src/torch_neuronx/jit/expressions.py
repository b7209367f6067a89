"""Expressions of LLVM IR with the operators of Python, for code that is mathematics.

A `Term` is a value in a function under construction; operators on terms, and on terms with numbers, add instructions
to it. Comparisons are methods (`a.lt(b)`), because `==` stays identity.
"""

from __future__ import annotations

from collections.abc import Sequence

from .values import FLOATS, Values, float_constant

__all__ = ["Term", "copysign", "fma", "polynomial", "where"]

_INT_OPS = {"+": "add", "-": "sub", "*": "mul", "&": "and", "|": "or", "^": "xor", "<<": "shl", ">>": "ashr"}
_FLOAT_OPS = {"+": "fadd", "-": "fsub", "*": "fmul", "/": "fdiv"}

Number = int | float


class Term:
    """A value: its name, its type, and the function it belongs to."""

    __slots__ = ("code", "name", "type_")

    def __init__(self, code: Values, name: str, type_: str) -> None:
        self.code, self.name, self.type_ = code, name, type_

    def like(self, number: Number) -> Term:
        """A constant of the same type."""
        if self.type_ in FLOATS:
            return Term(self.code, float_constant(float(number), self.type_), self.type_)
        return Term(self.code, str(int(number)), self.type_)

    def call(self, op: str, *others: Term | Number, type_: str | None = None) -> Term:
        """`op` of :class:`.values.Values` on this and other terms of its type."""
        args = [self.name, *(self._same(other).name for other in others)]
        return Term(self.code, self.code.operation(op, self.type_, args), type_ or self.type_)

    def _same(self, other: Term | Number) -> Term:
        return other if isinstance(other, Term) else self.like(other)

    def _binary(self, op: str, a: Term | Number, b: Term | Number) -> Term:
        name = (_FLOAT_OPS if self.type_ in FLOATS else _INT_OPS)[op]
        a, b = self._same(a), self._same(b)
        return Term(self.code, self.code.emit(f"{name} {self.type_} {a.name}, {b.name}"), self.type_)

    def __add__(self, other: Term | Number) -> Term:
        return self._binary("+", self, other)

    def __radd__(self, other: Number) -> Term:
        return self._binary("+", other, self)

    def __sub__(self, other: Term | Number) -> Term:
        return self._binary("-", self, other)

    def __rsub__(self, other: Number) -> Term:
        return self._binary("-", other, self)

    def __mul__(self, other: Term | Number) -> Term:
        return self._binary("*", self, other)

    def __rmul__(self, other: Number) -> Term:
        return self._binary("*", other, self)

    def __truediv__(self, other: Term | Number) -> Term:
        return self._binary("/", self, other)

    def __rtruediv__(self, other: Number) -> Term:
        return self._binary("/", other, self)

    def __and__(self, other: Term | Number) -> Term:
        return self._binary("&", self, other)

    def __or__(self, other: Term | Number) -> Term:
        return self._binary("|", self, other)

    def __xor__(self, other: Term | Number) -> Term:
        return self._binary("^", self, other)

    def __lshift__(self, other: Term | Number) -> Term:
        return self._binary("<<", self, other)

    def __rshift__(self, other: Term | Number) -> Term:
        """Keeps the sign."""
        return self._binary(">>", self, other)

    def __neg__(self) -> Term:
        return self.call("neg")

    def __abs__(self) -> Term:
        return self.call("abs")

    def shifted_down(self, by: int) -> Term:
        """Without the sign."""
        return Term(self.code, self.code.emit(f"lshr {self.type_} {self.name}, {by}"), self.type_)

    # -- Comparisons; false with a NaN, but for `ne` -------------------------------------------------------------------

    def eq(self, other: Term | Number) -> Term:
        return self.call("eq", other, type_="i1")

    def ne(self, other: Term | Number) -> Term:
        return self.call("ne", other, type_="i1")

    def lt(self, other: Term | Number) -> Term:
        return self.call("lt", other, type_="i1")

    def gt(self, other: Term | Number) -> Term:
        return self.call("gt", other, type_="i1")

    def is_nan(self) -> Term:
        return Term(self.code, self.code.emit(f"fcmp uno {self.type_} {self.name}, 0.0"), "i1")

    # -- Other representations ----------------------------------------------------------------------------------------

    def to(self, type_: str) -> Term:
        return Term(self.code, self.code.cast(self.type_, type_, self.name), type_)

    def bits(self) -> Term:
        """Of a floating-point number, as an integer."""
        type_ = "i32" if self.type_ == "float" else "i64"
        return Term(self.code, self.code.emit(f"bitcast {self.type_} {self.name} to {type_}"), type_)

    def as_float(self) -> Term:
        """The floating-point number with these bits."""
        type_ = "float" if self.type_ == "i32" else "double"
        return Term(self.code, self.code.emit(f"bitcast {self.type_} {self.name} to {type_}"), type_)

    def clamped(self, low: float, high: float) -> Term:
        """Within [low, high]; a NaN stays one."""
        x = where(self.gt(high), self.like(high), self)
        return where(x.lt(low), x.like(low), x)


def where(condition: Term, a: Term | Number, b: Term | Number) -> Term:
    like = a if isinstance(a, Term) else b
    assert isinstance(like, Term)
    a, b = (x if isinstance(x, Term) else like.like(x) for x in (a, b))
    return Term(
        like.code,
        like.code.emit(f"select i1 {condition.name}, {a.type_} {a.name}, {b.type_} {b.name}"),
        like.type_,
    )


def fma(a: Term, b: Term | Number, c: Term | Number) -> Term:
    """a * b + c, rounded once."""
    return a.call("fma", b, c)


def copysign(magnitude: Term | Number, sign: Term) -> Term:
    return (magnitude if isinstance(magnitude, Term) else sign.like(magnitude)).call("copysign", sign)


def polynomial(x: Term, coefficients: Sequence[float]) -> Term:
    """The sum of `coefficients[k]` * x**k, by Horner's rule."""
    result = x.like(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = fma(result, x, coefficient)
    return result
