"""Ops that kernels compute over whole dimensions: how each is written in instructions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.fx import Node

from torch_neuronx.targets import graph as g

from .elements import DTYPES, Value, Writer, kernels_available
from .space import is_one
from .split import LEAST_ELEMENTS, MOST_UNITS

__all__ = ["PLACES", "REDUCTIONS", "Reduction", "along_columns", "is_long", "is_reduction", "reduced_dims"]

aten = torch.ops.aten


class RowWriter(Writer, Protocol):
    """A writer inside a region that reduces."""

    def reduce(self, name: str, value: Value, dtype: torch.dtype) -> Value:
        """Over all reduced dimensions."""

    def count(self, dtype: torch.dtype) -> Value:
        """How many elements are reduced to one."""


@dataclass(frozen=True)
class Reduction:
    """`write` gives one value per result. `twice` goes over the elements again once the first results are known."""

    write: Callable[[RowWriter, Node, Value], Sequence[Value]]
    twice: bool = False


REDUCTIONS: dict[Any, Reduction] = {}
# Their results count elements in the order of the operand's dimensions.
PLACES = frozenset({aten.argmax.default, aten.argmin.default})


def _result_dtype(node: Node) -> torch.dtype:
    value = g.value(node)
    return (value[0] if isinstance(value, (tuple, list)) else value).dtype


def _operand(node: Node) -> torch.Tensor:
    (operand, *_) = node.args
    return g.value(operand)  # type: ignore[arg-type]


def reduced_dims(node: Node) -> tuple[int, ...]:
    """The dimensions that the op goes over, in order; all for ops that name none."""
    ndim = _operand(node).ndim
    argument = next((a.name for a in node.target._schema.arguments if a.name in ("dim", "dims")), None)  # type: ignore[union-attr]
    names = [a.name for a in node.target._schema.arguments]  # type: ignore[union-attr]
    dims: Any = None
    if argument is not None:
        place = names.index(argument)
        dims = node.args[place] if place < len(node.args) else node.kwargs.get(argument)
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        return tuple(range(ndim))
    return tuple(sorted({d % max(ndim, 1) for d in (dims if isinstance(dims, (list, tuple)) else [dims])}))


def along_columns(node: Node) -> bool:
    """Whether neighbours in memory belong to different results."""
    operand, dims = node.args[0], reduced_dims(node)
    assert isinstance(operand, Node)
    sizes, strides = g.sizes(operand), g.strides(operand)
    inner = [d for d, size in enumerate(sizes) if not is_one(size) and strides[d] == 1]
    return bool(inner) and inner[0] not in dims


def is_long(node: Node) -> bool:
    """Whether much becomes so little that it is done in two steps (split.py), whose results come too late for more."""
    operand = node.args[0]
    assert isinstance(operand, Node)
    sizes, dims = g.sizes(operand), reduced_dims(node)
    if not all(isinstance(size, int) for size in sizes):
        return False
    kept = math.prod(size for d, size in enumerate(sizes) if d not in dims)
    return kept <= MOST_UNITS and math.prod(sizes) >= LEAST_ELEMENTS


def is_reduction(node: Node) -> bool:
    """Whether a kernel can compute this node."""
    reduction = REDUCTIONS.get(node.target)
    if reduction is None or not kernels_available():
        return False
    operand = _operand(node)
    results = g.value(node)
    for result in results if isinstance(results, (tuple, list)) else [results]:
        if result.dtype not in DTYPES:
            return False
    if operand.dtype not in DTYPES or operand.device.type != "neuron":
        return False
    sizes = g.sizes(node.args[0])  # type: ignore[arg-type]
    if not sizes or any(size == 0 for size in sizes) or all(is_one(sizes[d]) for d in reduced_dims(node)):
        return False
    if any(not isinstance(size, int) for size in sizes) and any(
        not isinstance(sizes[d], int) and not sizes[d].is_positive for d in reduced_dims(node)
    ):
        return False  # may be empty
    return not (reduction.twice and (along_columns(node) or is_long(node)))


def _plain(name: str, inner: Callable[[Node], torch.dtype] | None = None) -> Reduction:
    def write(w: RowWriter, node: Node, value: Value) -> list[Value]:
        dtype = inner(node) if inner else value.dtype
        return [w.convert(w.reduce(name, w.convert(value, dtype), dtype), _result_dtype(node))]

    return Reduction(write)


def _mean(w: RowWriter, node: Node, value: Value) -> list[Value]:
    dtype = _result_dtype(node)
    return [w.op("div", [w.reduce("sum", w.convert(value, dtype), dtype), w.count(dtype)], dtype)]


def _arg(name: str) -> Reduction:
    def write(w: RowWriter, node: Node, value: Value) -> list[Value]:
        return [w.reduce(name, value, torch.int64)]

    return Reduction(write)


def _moments(w: RowWriter, node: Node, value: Value) -> tuple[Value, Value]:
    dtype = _result_dtype(node)
    correction = node.kwargs.get("correction", 1)
    count = w.count(dtype)
    mean = w.op("div", [w.reduce("sum", value, dtype), count], dtype)
    difference = w.op("sub", [value, mean], dtype)
    squares = w.reduce("sum", w.op("mul", [difference, difference], dtype), dtype)
    freedom = count
    if correction is None or correction:
        freedom = w.op("sub", [count, w.constant(1 if correction is None else correction, dtype)], dtype)
        freedom = w.op("max", [freedom, w.constant(0, dtype)], dtype)
    return w.op("div", [squares, freedom], dtype), mean


def _var(w: RowWriter, node: Node, value: Value) -> list[Value]:
    return [_moments(w, node, value)[0]]


def _var_mean(w: RowWriter, node: Node, value: Value) -> list[Value]:
    return list(_moments(w, node, value))


def _boolean(node: Node) -> torch.dtype:
    return torch.bool


for _target in (aten.sum.default, aten.sum.dim_IntList):
    REDUCTIONS[_target] = _plain("sum", _result_dtype)
for _target in (aten.prod.default, aten.prod.dim_int):
    REDUCTIONS[_target] = _plain("prod", _result_dtype)
for _target in (aten.mean.default, aten.mean.dim):
    REDUCTIONS[_target] = Reduction(_mean)
for _target in (aten.amax.default, aten.max.default):
    REDUCTIONS[_target] = _plain("max")
for _target in (aten.amin.default, aten.min.default):
    REDUCTIONS[_target] = _plain("min")
for _target in (aten.any.default, aten.any.dim, aten.any.dims):
    REDUCTIONS[_target] = _plain("any", _boolean)
for _target in (aten.all.default, aten.all.dim, aten.all.dims):
    REDUCTIONS[_target] = _plain("all", _boolean)
REDUCTIONS[aten.argmax.default] = _arg("argmax")
REDUCTIONS[aten.argmin.default] = _arg("argmin")
REDUCTIONS[aten.var.correction] = Reduction(_var, twice=True)
REDUCTIONS[aten.var_mean.correction] = Reduction(_var_mean, twice=True)
