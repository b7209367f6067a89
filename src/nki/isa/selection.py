"""Instructions of the Vector engine that select, search and move elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import errors
from ..limits import MAX8_ELEMENTS, QUADRANT
from ..operators import name_of
from ..tensor import NkiTensor
from ..trace import current
from .enums import reduce_cmd as ReduceCommand
from .instruction_handle import NkiInstruction
from .scalar import command_of
from .validation import (
    FLOATS,
    FP32,
    column,
    emit,
    extent,
    fail,
    integer,
    number,
    psum_pair,
    require_dtype,
    require_generation,
    require_same_dtype,
    require_shape,
    require_size,
)

__all__ = [
    "max8", "nc_find_index8", "nc_match_replace8", "nc_stream_shuffle", "range_select", "select_reduce"
]  # fmt: skip

FP32_MIN = float(np.finfo(np.float32).min)
_RANGES = frozenset({"equal", "less", "less_equal", "greater", "greater_equal"})
_INDICES = frozenset({"uint16", "uint32"})
_FLAGS = frozenset({"int8", "uint8", "int16", "uint16"})
_COMMANDS = ("idle", "reset", "reset_reduce", "reduce")
_KEEP = 255


def _require_maximum(op: str, operator: Any) -> None:
    if (name := name_of(operator, op, "reduce_op")) != "maximum":
        fail(errors.OperatorError, op=op, operand="reduce_op", name=name, allowed="nl.maximum")


def range_select(
    dst: NkiTensor,
    on_true_tile: NkiTensor,
    comp_op0: Any,
    comp_op1: Any,
    bound0: NkiTensor,
    bound1: NkiTensor,
    reduce_cmd: ReduceCommand = ReduceCommand.reset_reduce,
    reduce_res: NkiTensor | None = None,
    reduce_op: Any = "maximum",
    range_start: int = 0,
    on_false_value: Any = FP32_MIN,
    name: str | None = None,
) -> NkiInstruction:
    """Keeps element i of each partition where `range_start + i` compares with both bounds; NeuronCore-v3 and later.

    Args:
        on_true_tile: floats.
        comp_op0, comp_op1: equal, less, less_equal, greater or greater_equal.
        bound0, bound1: tiles of one fp32 element per partition.
        reduce_cmd, reduce_res, reduce_op: the maximum of the result, in the accumulators of the Vector engine.
        range_start: indices stay below 2**24, since they are compared in fp32.
        on_false_value: the lowest fp32 number, the only one there is.
    """
    op = "range_select"
    trace = current()
    require_generation(trace, 3, op)
    operators = (name_of(comp_op0, op, "comp_op0"), name_of(comp_op1, op, "comp_op1"))
    for operand, operator in zip(("comp_op0", "comp_op1"), operators, strict=True):
        if operator not in _RANGES:
            fail(errors.OperatorError, op=op, operand=operand, name=operator, allowed=", ".join(sorted(_RANGES)))
    size = extent(dst, op, "dst")
    like = extent(on_true_tile, op, "on_true_tile")
    if like != size:
        require_size(on_true_tile, like, size, op, "on_true_tile", dst, "dst")
    require_dtype(on_true_tile, FLOATS, op, "on_true_tile")
    for operand, bound in (("bound0", bound0), ("bound1", bound1)):
        require_shape(bound, extent(bound, op, operand), (size[0], 1), op, operand)
        require_dtype(bound, FP32, op, operand, "Write the bounds to a float32 tile.")
    _require_maximum(op, reduce_op)
    command = command_of(op, reduce_cmd, _COMMANDS)
    if reduce_res is not None:
        require_shape(reduce_res, extent(reduce_res, op, "reduce_res"), (size[0], 1), op, "reduce_res")
    start = integer(range_start, op, "range_start")
    if start < 0 or start + size[1] > 2**24:
        fail(
            errors.OperandValueError,
            op=op,
            operand="range_start",
            value=start,
            allowed="indices from 0 to 2**24, which fp32 holds exactly",
        )
    if on_false_value is not ... and np.float32(number(on_false_value, op, "on_false_value")) != FP32_MIN:
        fail(
            errors.OperandValueError,
            op=op,
            operand="on_false_value",
            value=on_false_value,
            allowed="the lowest fp32 number, -3.4028235e+38",
        )
    return emit(
        trace,
        op,
        "vector",
        (dst, reduce_res),
        (on_true_tile, bound0, bound1),
        (*operators, command, "maximum", start, FP32_MIN),
        name,
    )


def select_reduce(
    dst: NkiTensor,
    predicate: NkiTensor,
    on_true: NkiTensor,
    on_false: Any,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: ReduceCommand = ReduceCommand.idle,
    reduce_op: Any = "maximum",
    reverse_pred: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """`on_true` where `predicate` is not 0, else `on_false`; and the maximum of it per partition.

    Args:
        predicate: integers of 8 or 16 bits; not in PSUM together with `on_true`.
        on_true: of any type but tfloat32, int32 and uint32.
        on_false: a number, or a tile of one element per partition.
        reduce_res: a float tile of one element per partition.
        reduce_cmd: idle, reset_reduce or reduce.
    """
    op = "select_reduce"
    trace = current()
    size = extent(dst, op, "dst")
    for operand, view in (("predicate", predicate), ("on_true", on_true)):
        like = extent(view, op, operand)
        if like != size:
            require_size(view, like, size, op, operand, dst, "dst")
    require_dtype(predicate, _FLAGS, op, "predicate", "Write it with such a destination, or .view() it.")
    require_dtype(on_true, (FLOATS | _FLAGS) - {"tfloat32"}, op, "on_true")
    if predicate.storage.region == "psum" and on_true.storage.region == "psum":
        psum_pair(op, "predicate", "on_true")
    on_false = column(on_false, op, "on_false", size[0])
    _require_maximum(op, reduce_op)
    command = command_of(op, reduce_cmd, ("idle", "reset_reduce", "reduce"))
    if reduce_res is not None:
        require_shape(reduce_res, extent(reduce_res, op, "reduce_res"), (size[0], 1), op, "reduce_res")
        require_dtype(reduce_res, FLOATS, op, "reduce_res")
    return emit(
        trace,
        op,
        "vector",
        (dst, reduce_res),
        (predicate, on_true, on_false),
        (command, "maximum", bool(reverse_pred)),
        name,
    )


def _require_searchable(view: NkiTensor, size: tuple[int, int], op: str, operand: str) -> None:
    low, high = MAX8_ELEMENTS
    if not low <= size[1] <= high:
        fail(
            errors.FreeSizeError,
            op=op,
            operand=operand,
            shape=view.shape,
            count=size[1],
            allowed=f"{low} to {high}",
            cure="Search tiles, then among their results.",
        )


def max8(dst: NkiTensor, src: NkiTensor, name: str | None = None) -> NkiInstruction:
    """The 8 largest elements of each partition, largest first.

    Args:
        dst: 8 elements per partition.
        src: 8 to 16384 elements per partition.
    """
    trace = current()
    size = extent(dst, "max8", "dst")
    like = extent(src, "max8", "src")
    _require_searchable(src, like, "max8", "src")
    require_shape(dst, size, (like[0], 8), "max8", "dst")
    return emit(trace, "max8", "vector", (dst,), (src,), (), name)


def nc_find_index8(dst: NkiTensor, data: NkiTensor, vals: NkiTensor, name: str | None = None) -> NkiInstruction:
    """The index of each of the 8 `vals` of a partition in `data`; all ones where there is none.

    Args:
        dst: 8 elements per partition, uint16 or uint32.
        data: 8 to 16384 elements per partition.
        vals: 8 elements per partition; equal ones take successive occurrences.
    """
    op = "nc_find_index8"
    trace = current()
    size = extent(dst, op, "dst")
    like = extent(data, op, "data")
    _require_searchable(data, like, op, "data")
    require_shape(vals, extent(vals, op, "vals"), (like[0], 8), op, "vals")
    require_shape(dst, size, (like[0], 8), op, "dst")
    require_dtype(dst, _INDICES, op, "dst")
    return emit(trace, "find_index8", "vector", (dst,), (data, vals), (), name)


def nc_match_replace8(
    dst: NkiTensor,
    data: NkiTensor,
    vals: NkiTensor,
    imm: Any,
    dst_idx: NkiTensor | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """`data` with the first occurrence of each of the 8 `vals` of a partition replaced by `imm`.

    Args:
        data: 8 to 16384 elements per partition.
        vals: 8 elements per partition, taken from the last to the first.
        dst_idx: 8 elements per partition, uint16 or uint32: where they were.
    """
    op = "nc_match_replace8"
    trace = current()
    size = extent(dst, op, "dst")
    like = extent(data, op, "data")
    if like != size:
        require_size(data, like, size, op, "data", dst, "dst")
    _require_searchable(data, like, op, "data")
    require_shape(vals, extent(vals, op, "vals"), (like[0], 8), op, "vals")
    if dst_idx is not None:
        require_shape(dst_idx, extent(dst_idx, op, "dst_idx"), (like[0], 8), op, "dst_idx")
        require_dtype(dst_idx, _INDICES, op, "dst_idx")
    return emit(trace, "match_replace8", "vector", (dst, dst_idx), (data, vals), (float(number(imm, op, "imm")),), name)


def nc_stream_shuffle(
    dst: NkiTensor, src: NkiTensor, shuffle_mask: Sequence[int], name: str | None = None
) -> NkiInstruction:
    """Partition i of each 32 of `dst` gets partition `shuffle_mask[i]` of the same 32 of `src`; 255 leaves it.

    Args:
        dst, src: of the same type and elements per partition; may be the same tile.
        shuffle_mask: 32 numbers from 0 to 31, or 255.
    """
    op = "nc_stream_shuffle"
    trace = current()
    size = extent(dst, op, "dst")
    like = extent(src, op, "src")
    if like[1] != size[1]:
        require_size(dst, (1, size[1]), (1, like[1]), op, "dst", src, "src")
    require_same_dtype(dst, src, op, "dst", "src")
    mask = tuple(integer(value, op, "shuffle_mask") for value in shuffle_mask)
    if len(mask) != QUADRANT or any(value != _KEEP and not 0 <= value < QUADRANT for value in mask):
        fail(
            errors.OperandValueError,
            op=op,
            operand="shuffle_mask",
            value=mask,
            allowed="32 numbers from 0 to 31, or 255 for a partition that stays as it is",
        )
    return emit(trace, "shuffle", "vector", (dst,), (src,), (mask,), name)
