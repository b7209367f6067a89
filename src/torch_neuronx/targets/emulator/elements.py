"""Ops that kernels compute element by element: how each is written in instructions.

A rule gets a :class:`Writer`, the op's node and its arguments - values for tensors, numbers as they are - and returns
the value of the result. The semantics are those of ATen's kernels; types are promoted as PyTorch does. bf16 and fp16
are computed in fp32 and rounded where they are stored, or converted to on purpose.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Kind
from torch._prims_common import elementwise_dtypes
from torch.fx import Node

from torch_neuronx import knobs
from torch_neuronx.jit import available
from torch_neuronx.jit.stage import Dtype, Lane, lane_of

__all__ = ["DTYPES", "ELEMENTS", "SOURCES", "Value", "Writer", "is_element", "kernels_available"]

aten, prims = torch.ops.aten, torch.ops.prims

DTYPES = {
    torch.float32: Dtype.F32,
    torch.float64: Dtype.F64,
    torch.bfloat16: Dtype.BF16,
    torch.float16: Dtype.F16,
    torch.int64: Dtype.I64,
    torch.int32: Dtype.I32,
    torch.int16: Dtype.I16,
    torch.int8: Dtype.I8,
    torch.uint8: Dtype.U8,
    torch.bool: Dtype.BOOL,
}


@dataclass(frozen=True)
class Value:
    """A value of a kernel: the place of its instruction, and the type that it has in PyTorch's eyes."""

    place: int
    dtype: torch.dtype


class Writer(Protocol):
    """What rules write with."""

    def op(self, name: str, args: Sequence[Value], dtype: torch.dtype) -> Value:
        """An element-wise instruction; the arguments have one lane, the result that of `dtype`."""

    def constant(self, number: Any, dtype: torch.dtype) -> Value:
        """A number (maybe symbolic), as `dtype`."""

    def convert(self, value: Value, dtype: torch.dtype) -> Value:
        """From type to type as `Tensor.to` does, without rounding to a shorter floating-point type."""

    def rounded(self, value: Value) -> Value:
        """As if stored in its type."""

    def index(self, size_of: Node) -> Value:
        """Position along the only dimension of a tensor."""


Rule = Callable[[Writer, Node, list[Any]], Value]
ELEMENTS: dict[Any, Rule] = {}
# Ops without tensor arguments: their values are written wherever they are needed.
SOURCES: set[Any] = set()


def _option(node: Node, name: str, default: Any) -> Any:
    """A keyword argument, which is a number or a word."""
    value = node.kwargs.get(name, default)
    return value.meta["val"] if isinstance(value, Node) else value


def _dtype(node: Node) -> torch.dtype:
    return node.meta["val"].dtype


@functools.cache
def kernels_available() -> bool:
    """Whether there is a compiler for kernels, and the user wants it; else every op stays a call."""
    return knobs.JIT.value and available()


def is_element(node: Node) -> bool:
    """Whether a kernel can compute this node: there is a rule, for these types."""
    if node.target not in ELEMENTS or not kernels_available():
        return False
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dtype not in DTYPES or value.device.type != "neuron":
        return False
    for arg in node.all_input_nodes:
        operand = arg.meta.get("val")
        if isinstance(operand, torch.Tensor) and (
            operand.dtype not in DTYPES or (operand.device.type != "neuron" and operand.ndim != 0)
        ):
            return False
        if isinstance(operand, (torch.SymFloat, torch.SymBool)):
            return False
    if any(isinstance(a, Node) and isinstance(a.meta.get("val"), torch.Tensor) for a in node.kwargs.values()):
        return False  # rules look for tensors among the positional arguments
    return not any(isinstance(a, complex) for a in node.args)


# -- Types -------------------------------------------------------------------------------------------------------------


def _computation_dtype(node: Node, args: list[Any], kind: Kind) -> torch.dtype:
    """The type that ATen computes an op in, reduced floating-point types as they are."""
    operands = [
        arg.meta["val"] if isinstance(arg, Node) else arg
        for arg in node.args
        if isinstance(arg, (Node, int, float, bool))
    ]
    operands = [o for o in operands if isinstance(o, (torch.Tensor, int, float, bool, torch.SymInt, torch.SymFloat))]
    if kind == Kind.ALWAYS_BOOL:  # compares in the type that all operands have in common
        kind = Kind.DEFAULT
    computation, result = elementwise_dtypes(*operands, type_promotion_kind=kind)
    return result if result in (torch.bfloat16, torch.float16) else computation


def _promoted(w: Writer, args: list[Any], dtype: torch.dtype) -> list[Value]:
    return [w.convert(a, dtype) if isinstance(a, Value) else w.constant(a, dtype) for a in args]


def _result(w: Writer, node: Node, value: Value) -> Value:
    """In the type of the node; integers wrap."""
    return w.convert(value, _dtype(node))


def _simple(name: str, kind: Kind, arity: int) -> Rule:
    def rule(w: Writer, node: Node, args: list[Any]) -> Value:
        dtype = _computation_dtype(node, args, kind)
        values = _promoted(w, args[:arity], dtype)
        if kind != Kind.ALWAYS_BOOL:
            return _result(w, node, w.op(name, values, dtype))
        # A number is compared as the tensor's type can hold it.
        values = [v if isinstance(a, Value) else w.rounded(v) for v, a in zip(values, args[:arity], strict=True)]
        return w.op(name, values, torch.bool)

    return rule


def _register(targets: Sequence[Any], rule: Rule) -> None:
    for target in targets:
        for overload in (
            [getattr(target, name) for name in target.overloads()] if hasattr(target, "overloads") else [target]
        ):
            if not overload._schema.is_mutable:
                ELEMENTS[overload] = rule


# -- Functions of one and two arguments --------------------------------------------------------------------------------

for _name in [
    "sqrt",
    "rsqrt",
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
    "erfinv",
    "sigmoid",
    "lgamma",
    "reciprocal",
]:
    _register([getattr(aten, _name)], _simple(_name, Kind.INT_TO_FLOAT, 1))

_register([aten.neg], _simple("neg", Kind.DEFAULT, 1))
_register([aten.maximum], _simple("max", Kind.DEFAULT, 2))
_register([aten.minimum], _simple("min", Kind.DEFAULT, 2))
_register([aten.atan2], _simple("atan2", Kind.INT_TO_FLOAT, 2))
_register([aten.hypot], _simple("hypot", Kind.DEFAULT, 2))
_register([aten.copysign], _simple("copysign", Kind.INT_TO_FLOAT, 2))
for _target, _name in {"eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}.items():
    _register([getattr(aten, _target)], _simple(_name, Kind.ALWAYS_BOOL, 2))
for _target, _name in {"bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor", "bitwise_not": "not"}.items():
    _register([getattr(aten, _target)], _simple(_name, Kind.DEFAULT, 1 if _name == "not" else 2))


def _identity_on_integers(name: str) -> Rule:
    def rule(w: Writer, node: Node, args: list[Any]) -> Value:
        if not _dtype(node).is_floating_point:
            return args[0]
        return w.op(name, [args[0]], _dtype(node))

    return rule


for _target, _name in {"floor": "floor", "ceil": "ceil", "trunc": "trunc"}.items():
    _register([getattr(aten, _target)], _identity_on_integers(_name))
ELEMENTS[aten.round.default] = _identity_on_integers("nearest")


def _abs(w: Writer, node: Node, args: list[Any]) -> Value:
    return args[0] if _dtype(node) == torch.bool else _result(w, node, w.op("abs", args[:1], _dtype(node)))


def _sign(w: Writer, node: Node, args: list[Any]) -> Value:
    return args[0] if _dtype(node) == torch.bool else w.op("sign", args[:1], _dtype(node))


def _classify(name: str) -> Rule:
    def rule(w: Writer, node: Node, args: list[Any]) -> Value:
        if not args[0].dtype.is_floating_point:
            if name == "signbit" and args[0].dtype != torch.bool:
                return w.op("lt", [args[0], w.constant(0, args[0].dtype)], torch.bool)
            return w.constant(False, torch.bool)
        return w.op(name, [args[0]], torch.bool)

    return rule


_register([aten.abs], _abs)
_register([aten.sign, aten.sgn], _sign)
for _name in ("isnan", "isinf", "signbit"):
    _register([getattr(aten, _name)], _classify(_name))


def _logical(name: str) -> Rule:
    def rule(w: Writer, node: Node, args: list[Any]) -> Value:
        return w.op(name, [w.convert(a, torch.bool) for a in args], torch.bool)

    return rule


for _target, _name in {"logical_and": "and", "logical_or": "or", "logical_xor": "xor", "logical_not": "not"}.items():
    _register([getattr(aten, _target)], _logical(_name))


# -- Arithmetic --------------------------------------------------------------------------------------------------------


def _scaled(w: Writer, value: Value, factor: Any) -> Value:
    if factor == 1:
        return value
    return w.op("mul", [value, w.constant(factor, value.dtype)], value.dtype)


def _add(name: str, reverse: bool = False) -> Rule:
    def rule(w: Writer, node: Node, args: list[Any]) -> Value:
        alpha = _option(node, "alpha", args[2] if len(args) > 2 else 1)
        dtype = _computation_dtype(node, args, Kind.DEFAULT)
        a, b = _promoted(w, args[:2], dtype)
        if reverse:
            a, b = b, a
            return _result(w, node, w.op(name, [a, _scaled(w, b, alpha)], dtype))
        if dtype == torch.bool:  # `or` is what adding does to truth values
            return w.op("or", [a, b], dtype)
        return _result(w, node, w.op(name, [a, _scaled(w, b, alpha)], dtype))

    return rule


_register([aten.add], _add("add"))
_register([aten.sub], _add("sub"))
_register([aten.rsub], _add("sub", reverse=True))


def _mul(w: Writer, node: Node, args: list[Any]) -> Value:
    dtype = _computation_dtype(node, args, Kind.DEFAULT)
    values = _promoted(w, args[:2], dtype)
    return _result(w, node, w.op("and" if dtype == torch.bool else "mul", values, dtype))


_register([aten.mul], _mul)


def _div(w: Writer, node: Node, args: list[Any]) -> Value:
    mode = _option(node, "rounding_mode", args[2] if len(args) > 2 else None)
    dtype = _computation_dtype(node, args, Kind.DEFAULT if mode else Kind.INT_TO_FLOAT)
    a, b = _promoted(w, args[:2], dtype)
    if mode is None:
        return _result(w, node, w.op("div", [a, b], dtype))
    if not dtype.is_floating_point:
        return _result(w, node, w.op("floordiv" if mode == "floor" else "truncdiv", [a, b], dtype))
    if mode == "trunc":
        return _result(w, node, w.op("trunc", [w.op("div", [a, b], dtype)], dtype))
    return _result(w, node, _floor_divide(w, a, b, dtype))


def _floor_divide(w: Writer, a: Value, b: Value, dtype: torch.dtype) -> Value:
    """c10::div_floor_floating: floor of the exact quotient, where rounding a / b could reach the next integer."""
    zero = w.constant(0, dtype)
    mod = w.op("fmod", [a, b], dtype)
    quotient = w.op("div", [w.op("sub", [a, mod], dtype), b], dtype)
    signs = w.op("ne", [w.op("lt", [b, zero], torch.bool), w.op("lt", [mod, zero], torch.bool)], torch.bool)
    wrong = w.op("and", [w.op("ne", [mod, zero], torch.bool), signs], torch.bool)
    quotient = w.op("select", [wrong, w.op("sub", [quotient, w.constant(1, dtype)], dtype), quotient], dtype)
    floor = w.op("floor", [quotient], dtype)
    up = w.op("gt", [w.op("sub", [quotient, floor], dtype), w.constant(0.5, dtype)], torch.bool)
    floor = w.op("select", [up, w.op("add", [floor, w.constant(1, dtype)], dtype), floor], dtype)
    plain = w.op("div", [a, b], dtype)
    floor = w.op(
        "select", [w.op("eq", [quotient, zero], torch.bool), w.op("copysign", [zero, plain], dtype), floor], dtype
    )
    return w.op("select", [w.op("eq", [b, zero], torch.bool), plain, floor], dtype)


_register([aten.div], _div)
_register([aten.remainder], _simple("mod", Kind.DEFAULT, 2))


def _fmod(w: Writer, node: Node, args: list[Any]) -> Value:
    dtype = _computation_dtype(node, args, Kind.DEFAULT)
    values = _promoted(w, args[:2], dtype)
    return _result(w, node, w.op("fmod" if dtype.is_floating_point else "rem", values, dtype))


_register([aten.fmod], _fmod)


def _floor_divide_op(w: Writer, node: Node, args: list[Any]) -> Value:
    dtype = _computation_dtype(node, args, Kind.DEFAULT)
    a, b = _promoted(w, args[:2], dtype)
    if dtype.is_floating_point:
        return _result(w, node, _floor_divide(w, a, b, dtype))
    return _result(w, node, w.op("floordiv", [a, b], dtype))


_register([aten.floor_divide], _floor_divide_op)


def _pow(w: Writer, node: Node, args: list[Any]) -> Value:
    base, exponent = args
    dtype = _computation_dtype(node, args, Kind.BOOL_TO_LONG)
    if isinstance(exponent, (int, float)) and isinstance(base, Value):
        x = w.convert(base, dtype)
        square = lambda: w.op("mul", [x, x], dtype)  # noqa: E731
        simple: dict[float, Callable[[], Value]] = {
            1: lambda: x,
            2: square,
            3: lambda: w.op("mul", [square(), x], dtype),
        }
        if dtype.is_floating_point:
            simple |= {
                0.5: lambda: w.op("sqrt", [x], dtype),
                -0.5: lambda: w.op("rsqrt", [x], dtype),
                -1: lambda: w.op("reciprocal", [x], dtype),
                -2: lambda: w.op("reciprocal", [square()], dtype),
            }
        if exponent in simple:
            return _result(w, node, simple[exponent]())
    values = _promoted(w, [base, exponent], dtype)
    return _result(w, node, w.op("pow", values, dtype))


_register([aten.pow], _pow)


# -- Choices -----------------------------------------------------------------------------------------------------------


def _where(w: Writer, node: Node, args: list[Any]) -> Value:
    dtype = _dtype(node)
    a, b = _promoted(w, args[1:3], dtype)
    return w.op("select", [w.convert(args[0], torch.bool), a, b], dtype)


_register([aten.where], _where)


def _relu(w: Writer, node: Node, args: list[Any]) -> Value:
    return w.op("max", [args[0], w.constant(0, _dtype(node))], _dtype(node))


_register([aten.relu], _relu)


def _clamp(w: Writer, node: Node, args: list[Any]) -> Value:
    dtype = _dtype(node)
    value = w.convert(args[0], dtype)
    bounds = dict(zip(("min", "max"), args[1:3], strict=False))
    bounds |= {name: _option(node, name, None) for name in ("min", "max") if name in node.kwargs}
    for name, op in (("min", "max"), ("max", "min")):
        bound = bounds.get(name)
        if bound is not None:
            (bound,) = _promoted(w, [bound], dtype)
            value = w.op(op, [value, bound], dtype)
    return value


def _clamp_one(op: str) -> Rule:
    def rule(w: Writer, node: Node, args: list[Any]) -> Value:
        return w.op(op, _promoted(w, args[:2], _dtype(node)), _dtype(node))

    return rule


ELEMENTS[aten.clamp.default] = ELEMENTS[aten.clamp.Tensor] = _clamp
_register([aten.clamp_min], _clamp_one("max"))
_register([aten.clamp_max], _clamp_one("min"))


# -- Conversions and sources -------------------------------------------------------------------------------------------


def _copy(w: Writer, node: Node, args: list[Any]) -> Value:
    value = w.convert(args[0], _dtype(node))
    return value if value.dtype == args[0].dtype else w.rounded(value)


ELEMENTS[aten._to_copy.default] = ELEMENTS[prims.convert_element_type.default] = _copy
ELEMENTS[aten.clone.default] = _copy


def _copy_into(w: Writer, node: Node, args: list[Any]) -> Value:
    return w.rounded(w.convert(args[1], _dtype(node)))


ELEMENTS[aten.copy.default] = _copy_into
# The copies with which a graph ends: `copy_(input, new value)`.
ELEMENTS[aten.copy_.default] = _copy_into


def _filled(place: int) -> Rule:
    def rule(w: Writer, node: Node, args: list[Any]) -> Value:
        return w.constant(args[place], _dtype(node))

    return rule


def _source(target: Any, rule: Rule) -> None:
    ELEMENTS[target] = rule
    SOURCES.add(target)


_source(aten.full.default, _filled(1))
_source(aten.full_like.default, _filled(1))
_source(aten.scalar_tensor.default, _filled(0))
ELEMENTS[aten.fill.Scalar] = _filled(1)
SOURCES.add(aten.fill.Scalar)


def _number(number: float) -> Rule:
    return lambda w, node, args: w.constant(number, _dtype(node))


for _op in (aten.zeros.default, aten.zeros_like.default, aten.empty.memory_format, aten.empty_like.default):
    _source(_op, _number(0))
for _op in (aten.ones.default, aten.ones_like.default):
    _source(_op, _number(1))


def _iota(w: Writer, node: Node, args: list[Any]) -> Value:
    """start + index * step, as the type of the result."""
    dtype = _dtype(node)
    if node.target is prims.iota.default:
        start, step = _option(node, "start", 0), _option(node, "step", 1)
    elif node.target is aten.arange.start_step:
        start, step = args[0], args[2] if len(args) > 2 else 1
    else:
        start, step = (0 if node.target is aten.arange.default else args[0]), 1
    inner = torch.int64 if not dtype.is_floating_point else torch.float64 if dtype == torch.float64 else torch.float32
    value = _scaled(w, w.convert(w.index(node), inner), step)
    if start != 0:
        value = w.op("add", [value, w.constant(start, inner)], inner)
    return w.convert(value, dtype)


for _op in (prims.iota.default, aten.arange.default, aten.arange.start, aten.arange.start_step):
    _source(_op, _iota)


def lane(dtype: torch.dtype) -> Lane:
    """The lane of values of a type."""
    return lane_of(DTYPES[dtype])


def as_number(number: Any, dtype: torch.dtype) -> float | int | bool:
    """A Python number as ATen takes it for a tensor of this type."""
    if dtype == torch.bool:
        return bool(number)
    if dtype.is_floating_point:
        return float(number)
    return int(number) if math.isfinite(number) else int(torch.tensor(number).to(dtype))
