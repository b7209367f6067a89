"""Instructions that reduce: along free dimensions, along partitions, running sums, statistics."""

from __future__ import annotations

from typing import Any

from .. import errors
from ..limits import BN_STATS_ELEMENTS
from ..operators import ARITHMETIC, BINARY, BITWISE, REDUCTIONS, UNARY, name_of
from ..tensor import NkiTensor
from ..trace import current
from .enums import reduce_cmd as ReduceCommand
from .instruction_handle import NkiInstruction
from .scalar import command_of
from .validation import (
    FLOATS,
    FP32,
    SMALL,
    column,
    emit,
    extent,
    fail,
    psum_pair,
    refuse,
    require_dtype,
    require_generation,
    require_integers,
    require_region,
    require_shape,
    require_size,
)

__all__ = [
    "bn_aggr", "bn_stats", "exponential", "tensor_partition_reduce", "tensor_reduce", "tensor_scalar_cumulative",
    "tensor_scalar_reduce", "tensor_tensor_scan"
]  # fmt: skip

_CONVERT = "Convert it with nisa.tensor_copy."
_SUMS = frozenset({"add", "multiply", "maximum", "minimum"})
_CUMULATIVE = _SUMS | {"subtract"}
_ACROSS = frozenset({"add", "average", "maximum", "bitwise_or", "bitwise_and"})
_ACCUMULATE = ("reset_reduce", "reduce", "load_reduce")


def tensor_reduce(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    axis: Any,
    negate: bool = False,
    keepdims: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """Reduces the last free dimensions of `data` on the Vector engine, in fp32 or on bits.

    Args:
        op: a reduction, as nl.add or nl.maximum.
        axis: the dimensions, by number: the last one, or the last ones together; never 0.
        negate: the result times -1; arithmetic operators only.
        keepdims: says how `dst` is shaped; only its number of elements matters.

    Raises:
        ReduceAxisError: other dimensions.
        ElementCountError: `dst` has another number of elements than are left.
    """
    instruction = "tensor_reduce"
    trace = current()
    operator = name_of(op, instruction, "op")
    if operator not in REDUCTIONS:
        fail(errors.OperatorError, op=instruction, operand="op", name=operator, allowed=", ".join(sorted(REDUCTIONS)))
    partitions, elements = extent(dst, instruction, "dst")
    like = extent(data, instruction, "data")
    shape = data.shape
    rank = len(shape)
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    count = len(axes)
    if sorted(a + rank if a < 0 else a for a in axes) != list(range(rank - count, rank)) or not 0 < count < rank:
        last = tuple(range(1, rank))
        refuse(
            errors.ReduceAxisError,
            op=instruction,
            operand="data",
            axis=axis,
            shape=shape,
            example=f"{last[-1:]} or {last}" if rank > 2 else f"{last}",
        )
    left = 1
    for length in shape[1 : rank - count]:
        left *= length
    if partitions != like[0]:
        require_size(dst, (partitions, 1), (like[0], 1), instruction, "dst", data, "data")
    elif elements != left:
        fail(
            errors.ElementCountError,
            op=instruction,
            operand="dst",
            shape=dst.shape,
            count=elements,
            per="per partition",
            expected=left,
            reason=f"what is left of data {shape} without axis {axis}",
        )
    if operator in BITWISE:
        require_integers(data, instruction, "data", operator)
        require_integers(dst, instruction, "dst", operator)
        if negate:
            fail(errors.MissingOperandError, op=instruction, operand="negate", problem="needs an arithmetic operator")
    return emit(trace, instruction, "vector", (dst,), (data,), (operator, count, bool(negate)), name)


def tensor_partition_reduce(dst: NkiTensor, op: Any, data: NkiTensor, name: str | None = None) -> NkiInstruction:
    """Reduces over the partitions of `data` (SBUF) into the one partition of `dst` (SBUF), on the GpSimd engine.

    Args:
        op: add, nl.average, maximum, bitwise_or or bitwise_and.
    """
    instruction = "tensor_partition_reduce"
    trace = current()
    operator = name_of(op, instruction, "op")
    if operator not in _ACROSS:
        fail(errors.OperatorError, op=instruction, operand="op", name=operator, allowed=", ".join(sorted(_ACROSS)))
    size = extent(dst, instruction, "dst")
    like = extent(data, instruction, "data")
    require_region(dst, instruction, "dst", "sbuf")
    require_region(data, instruction, "data", "sbuf")
    require_shape(dst, size, (1, like[1]), instruction, "dst")
    if operator in BITWISE:
        require_integers(data, instruction, "data", operator)
    return emit(trace, "partition_reduce", "gpsimd", (dst,), (data,), (operator,), name)


def tensor_scalar_reduce(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any,
    reduce_op: Any,
    reduce_res: NkiTensor | None = None,
    reverse0: bool = False,
    reduce_cmd: ReduceCommand = ReduceCommand.reset_reduce,
    reduce_init: Any = None,
    reduce_res_negate: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """`data <op0> operand0` on the Vector engine, and its reduction along all free dimensions into its accumulators.

    Args:
        op0: an arithmetic operator.
        operand0: a number, or a tile of one fp32 element per partition.
        reduce_op: add, multiply, maximum or minimum.
        reduce_res: a tile of one element per partition that gets the accumulators, negated with `reduce_res_negate`.
        reduce_cmd: reset_reduce, reduce, or load_reduce, which begins with `reduce_init`.
    """
    instruction = "tensor_scalar_reduce"
    trace = current()
    operator = name_of(op0, instruction, "op0")
    if operator not in ARITHMETIC:
        fail(errors.OperatorError, op=instruction, operand="op0", name=operator, allowed="arithmetic operators")
    reduction = name_of(reduce_op, instruction, "reduce_op")
    if reduction not in _SUMS:
        fail(
            errors.OperatorError,
            op=instruction,
            operand="reduce_op",
            name=reduction,
            allowed="add, multiply, maximum, minimum",
        )
    size = extent(dst, instruction, "dst")
    like = extent(data, instruction, "data")
    if like != size:
        require_size(data, like, size, instruction, "data", dst, "dst")
    if operand0 is None and operator in UNARY:
        operand0 = 0
    operand0 = column(operand0, instruction, "operand0", size[0], FP32, _CONVERT)
    command = command_of(instruction, reduce_cmd, _ACCUMULATE)
    initial = _initial(instruction, "reduce_init", reduce_init, command, size[0])
    if reduce_res is not None:
        require_shape(
            reduce_res, extent(reduce_res, instruction, "reduce_res"), (size[0], 1), instruction, "reduce_res"
        )
    return emit(
        trace,
        instruction,
        "vector",
        (dst, reduce_res),
        (data, operand0, initial),
        (operator, bool(reverse0), reduction, command, bool(reduce_res_negate)),
        name,
    )


def _initial(op: str, operand: str, value: Any, command: str, partitions: int) -> Any:
    """What load_reduce loads into the accumulators; absent with any other command."""
    if command == "load_reduce":
        if value is None:
            refuse(errors.MissingOperandError, op=op, operand=operand, problem="is needed by reduce_cmd.load_reduce")
        return column(value, op, operand, partitions, FP32, _CONVERT)
    if value is not None and not (isinstance(value, (int, float)) and value == 0):
        fail(
            errors.MissingOperandError,
            op=op,
            operand=operand,
            problem=f"is given, but reduce_cmd.{command} does not load it",
        )
    return None


def tensor_scalar_cumulative(
    dst: NkiTensor,
    src: NkiTensor,
    op0: Any,
    op1: Any,
    imm0: Any,
    imm1: Any = None,
    reduce_cmd: ReduceCommand = ReduceCommand.reset_reduce,
    name: str | None = None,
) -> NkiInstruction:
    """Running reduction on the Vector engine: each element is `(src <op0> imm0) <op1> (the result before it)`.

    Args:
        dst, src: floats, or integers of 8 and 16 bits.
        op0: an arithmetic operator.
        op1: add, subtract, multiply, maximum or minimum.
        imm0, imm1: numbers, or tiles of one fp32 element per partition; `imm1` is what load_reduce begins with.
        reduce_cmd: reset_reduce, reduce or load_reduce.
    """
    instruction = "tensor_scalar_cumulative"
    trace = current()
    operator0 = name_of(op0, instruction, "op0")
    operator1 = name_of(op1, instruction, "op1")
    if operator0 not in ARITHMETIC:
        fail(errors.OperatorError, op=instruction, operand="op0", name=operator0, allowed="arithmetic operators")
    if operator1 not in _CUMULATIVE:
        fail(
            errors.OperatorError,
            op=instruction,
            operand="op1",
            name=operator1,
            allowed=", ".join(sorted(_CUMULATIVE)),
        )
    size = extent(dst, instruction, "dst")
    like = extent(src, instruction, "src")
    if like != size:
        require_size(src, like, size, instruction, "src", dst, "dst")
    for operand, view in (("dst", dst), ("src", src)):
        require_dtype(view, SMALL, instruction, operand, "The running value is fp32: use float32.")
    imm0 = column(imm0, instruction, "imm0", size[0], FP32, _CONVERT)
    command = command_of(instruction, reduce_cmd, _ACCUMULATE)
    imm1 = _initial(instruction, "imm1", imm1, command, size[0])
    return emit(trace, instruction, "vector", (dst,), (src, imm0, imm1), (operator0, operator1, command), name)


def tensor_tensor_scan(
    dst: NkiTensor,
    data0: NkiTensor,
    data1: NkiTensor,
    initial: Any,
    op0: Any,
    op1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """Scan on the Vector engine: `r[i] = (data0[i] <op0> r[i-1]) <op1> data1[i]`, in fp32, beginning with `initial`.

    Args:
        initial: a number, or a tile of one element per partition.
        op0, op1: arithmetic operators with two operands.
        reverse0, reverse1: the operands of the operator change places.

    Raises:
        BothInPsumError: `data0` and `data1` lie in PSUM.
    """
    instruction = "tensor_tensor_scan"
    trace = current()
    operators = (name_of(op0, instruction, "op0"), name_of(op1, instruction, "op1"))
    for operand, operator in zip(("op0", "op1"), operators, strict=True):
        if operator not in BINARY:
            fail(
                errors.OperatorError,
                op=instruction,
                operand=operand,
                name=operator,
                allowed="arithmetic operators with two operands",
            )
    size = extent(dst, instruction, "dst")
    for operand, view in (("data0", data0), ("data1", data1)):
        like = extent(view, instruction, operand)
        if like != size:
            require_size(view, like, size, instruction, operand, dst, "dst")
    if data0.storage.region == "psum" and data1.storage.region == "psum":
        psum_pair(instruction, "data0", "data1")
    initial = column(initial, instruction, "initial", size[0])
    return emit(
        trace, "scan", "vector", (dst,), (data0, data1, initial), (*operators, bool(reverse0), bool(reverse1)), name
    )


def exponential(
    dst: NkiTensor,
    src: NkiTensor,
    max_value: Any = 0.0,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: ReduceCommand = ReduceCommand.idle,
    reduce_init: Any = 0.0,
    name: str | None = None,
) -> NkiInstruction:
    """`exp(src - max_value)` on the Vector engine of NeuronCore-v4, and its sum per partition.

    Args:
        max_value: a number, or a tile of one fp32 element per partition.
        reduce_res: a float tile of one element per partition that gets the accumulators.
        reduce_cmd: idle, reset_reduce, reduce, or load_reduce, which begins with `reduce_init`.
    """
    instruction = "exponential"
    trace = current()
    require_generation(trace, 4, instruction)
    size = extent(dst, instruction, "dst")
    like = extent(src, instruction, "src")
    if like != size:
        require_size(src, like, size, instruction, "src", dst, "dst")
    require_dtype(dst, SMALL | {"int32"}, instruction, "dst")
    require_dtype(src, SMALL | {"int32", "uint32"}, instruction, "src")
    max_value = column(max_value, instruction, "max_value", size[0], FP32, _CONVERT)
    command = command_of(instruction, reduce_cmd, ("idle", *_ACCUMULATE))
    initial = _initial(instruction, "reduce_init", reduce_init, command, size[0])
    if reduce_res is not None:
        require_shape(
            reduce_res, extent(reduce_res, instruction, "reduce_res"), (size[0], 1), instruction, "reduce_res"
        )
        require_dtype(reduce_res, FLOATS, instruction, "reduce_res")
    return emit(trace, instruction, "vector", (dst, reduce_res), (src, max_value, initial), (command,), name)


def bn_stats(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> NkiInstruction:
    """Count, mean and variance * count of the even elements of each partition, then of the odd ones.

    Args:
        dst: 6 elements per partition.
        data: at most 512 elements per partition; nisa.bn_aggr joins several results.

    Raises:
        FreeSizeError: more.
    """
    trace = current()
    size = extent(dst, "bn_stats", "dst")
    like = extent(data, "bn_stats", "data")
    if like[1] > BN_STATS_ELEMENTS:
        fail(
            errors.FreeSizeError,
            op="bn_stats",
            operand="data",
            shape=data.shape,
            count=like[1],
            allowed=f"at most {BN_STATS_ELEMENTS}",
            cure="Cut it into tiles and join the results with nisa.bn_aggr.",
        )
    require_shape(dst, size, (like[0], 6), "bn_stats", "dst")
    return emit(trace, "bn_stats", "vector", (dst,), (data,), (), name)


def bn_aggr(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> NkiInstruction:
    """Mean and variance of each partition from results of nisa.bn_stats.

    Args:
        dst: 2 elements per partition.
        data: 3 elements (count, mean, variance * count) per partition, any number of times.
    """
    trace = current()
    size = extent(dst, "bn_aggr", "dst")
    like = extent(data, "bn_aggr", "data")
    if like[1] % 3:
        fail(
            errors.FreeSizeError,
            op="bn_aggr",
            operand="data",
            shape=data.shape,
            count=like[1],
            allowed="multiples of 3",
            cure="They are triples of count, mean and variance * count.",
        )
    require_shape(dst, size, (like[0], 2), "bn_aggr", "dst")
    return emit(trace, "bn_aggr", "vector", (dst,), (data,), (), name)
