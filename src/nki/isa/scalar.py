"""Instructions of the Scalar engine: activation functions, with scale, bias and sums of the results."""

from __future__ import annotations

from typing import Any

from .. import errors
from ..element_types import TYPES
from ..operators import ACTIVATIONS, COMPOSED, known, name_of
from ..targets import GENERATIONS
from ..tensor import NkiTensor
from ..trace import current
from .enums import reduce_cmd as ReduceCommand
from .instruction_handle import NkiInstruction
from .validation import (
    FP32,
    column,
    emit,
    extent,
    fail,
    require_generation,
    require_member,
    require_same_dtype,
    require_shape,
    require_size,
)

__all__ = ["activate2", "activation", "activation_reduce"]

IDLE = ReduceCommand.idle
_COMMANDS = ("idle", "reset", "reduce", "reset_reduce")
_BIASES = frozenset(TYPES) - {"tfloat32"}
_REDUCTIONS2 = frozenset({"add", "maximum", "minimum", "abs_max", "abs_min"})
_PAIRS2 = frozenset(
    {
        ("multiply", "add"), ("multiply", "subtract"), ("multiply", "bypass"), ("add", "bypass"),
        ("subtract", "bypass"), ("bypass", "bypass")
    }
)  # fmt: skip


def _function(op: str, value: Any) -> str:
    function = name_of(value, op, "op")
    if function not in ACTIVATIONS and function not in COMPOSED:
        fail(errors.OperatorError, op=op, operand="op", name=function, allowed=", ".join(sorted(ACTIVATIONS)))
    return function


def command_of(op: str, command: Any, allowed: tuple[str, ...]) -> str:
    require_member(command, ReduceCommand, op, "reduce_cmd")
    name: str = command._name_
    if name not in allowed:
        fail(errors.ReduceCommandError, op=op, command=name, allowed=", ".join(allowed))
    return name


def activation(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    bias: Any = None,
    scale: Any = 1.0,
    reduce_op: Any = None,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: ReduceCommand = IDLE,
    name: str | None = None,
) -> NkiInstruction:
    """`op(data * scale + bias)` in fp32 on the Scalar engine, and sums of it along the free dimensions.

    Args:
        op: an activation function, as nl.exp. Those with a limited range are exact only inside of it.
        bias: a tile of one element per partition, of any type but tfloat32; a number on NeuronCore-v3 and later.
        scale: a number, or a tile of one fp32 element per partition.
        reduce_op: nl.add.
        reduce_res: a tile of one element per partition that gets the accumulators after the instruction; may be `dst`.
        reduce_cmd: what happens to the accumulators, which activation, activation_reduce and activate2 share.

    Raises:
        OperatorError: `op` is no activation function, or `reduce_op` is not add.
        GenerationError: a number as bias on NeuronCore-v2.
    """
    return _activation("activation", dst, op, data, bias, scale, reduce_op, reduce_res, reduce_cmd, name)


def _activation(
    instruction: str, dst: Any, op: Any, data: Any, bias: Any, scale: Any, reduce_op: Any, reduce_res: Any,
    reduce_cmd: Any, name: str | None,
) -> NkiInstruction:  # fmt: skip
    trace = current()
    try:
        function = known[op]
    except (KeyError, TypeError):
        function = name_of(op, instruction, "op")
    if function not in ACTIVATIONS:
        function = _function(instruction, op)
    size = extent(dst, instruction, "dst")
    like = extent(data, instruction, "data")
    if like != size:
        require_size(data, like, size, instruction, "data", dst, "dst")
    if bias is None:
        bias = 0.0
    else:
        bias = column(bias, instruction, "bias", size[0], _BIASES)
        if not isinstance(bias, NkiTensor) and bias != 0 and GENERATIONS[trace.target] < 3:
            require_generation(trace, 3, instruction, "a number as bias (on this chip: a tile of one column)")
    if scale.__class__ is not float:
        scale = column(scale, instruction, "scale", size[0], FP32, "Convert it with nisa.tensor_copy.")
    command = "idle" if reduce_cmd is IDLE else command_of(instruction, reduce_cmd, _COMMANDS)
    if reduce_op is not None and (operator := name_of(reduce_op, instruction, "reduce_op")) != "add":
        fail(errors.OperatorError, op=instruction, operand="reduce_op", name=operator, allowed="nl.add")
    out: tuple[Any, ...] = (dst, reduce_res)
    if reduce_res is not None:
        like = extent(reduce_res, instruction, "reduce_res")
        if like != (size[0], 1):
            require_shape(reduce_res, like, (size[0], 1), instruction, "reduce_res")
    return emit(trace, "activation", "scalar", out, (data, bias, scale), (function, "add", command), name)


def activation_reduce(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    reduce_op: Any,
    reduce_res: NkiTensor | None = None,
    bias: Any = None,
    scale: Any = 1.0,
    name: str | None = None,
) -> NkiInstruction:
    """nisa.activation with reduce_cmd=reset_reduce: `dst` gets the function, `reduce_res` its sum per partition."""
    return _activation(
        "activation_reduce", dst, op, data, bias, scale, reduce_op, reduce_res, ReduceCommand.reset_reduce, name
    )


def activate2(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    imm0: Any,
    imm1: Any,
    op0: Any,
    op1: Any,
    relu_param: Any = 0.0,
    reverse0: bool = False,
    reverse1: bool = False,
    reduce_op: Any = None,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: ReduceCommand = IDLE,
    name: str | None = None,
) -> NkiInstruction:
    """`op((data <op0> imm0) <op1> imm1)` on the Scalar engine of NeuronCore-v4, with a reduction of the results.

    Args:
        imm0, imm1: numbers, or tiles of one element per partition; of one type where both are tiles.
        op0, op1: multiply and add, multiply and subtract, or multiply, add, subtract or nl.bypass with nl.bypass.
        relu_param: of nl.prelu, as imm0.
        reduce_op: add, maximum, minimum, abs_max or abs_min.

    Raises:
        GenerationError: an earlier chip.
        OperatorError, MissingOperandError: operators that the engine does not combine, or that `reverse` needs.
    """
    instruction = "activate2"
    trace = current()
    require_generation(trace, 4, instruction)
    function = _function(instruction, op)
    operator0 = "bypass" if op0 is None else name_of(op0, instruction, "op0")
    operator1 = "bypass" if op1 is None else name_of(op1, instruction, "op1")
    if (operator0, operator1) not in _PAIRS2:
        fail(
            errors.OperatorError,
            op=instruction,
            operand="op0, op1",
            name=f"{operator0}, nl.{operator1}",
            allowed="; ".join(f"{a}, {b}" for a, b in sorted(_PAIRS2)),
        )
    for operand, flag, operator in (("reverse0", reverse0, operator0), ("reverse1", reverse1, operator1)):
        if flag and operator == "bypass":
            fail(
                errors.MissingOperandError,
                op=instruction,
                operand=operand,
                problem=f"needs an operator op{operand[-1]} other than nl.bypass",
            )
    size = extent(dst, instruction, "dst")
    like = extent(data, instruction, "data")
    if like != size:
        require_size(data, like, size, instruction, "data", dst, "dst")
    imm0, imm1, relu_param = (
        0.0 if value is None else column(value, instruction, operand, size[0])
        for operand, value in (("imm0", imm0), ("imm1", imm1), ("relu_param", relu_param))
    )
    if isinstance(imm0, NkiTensor) and isinstance(imm1, NkiTensor):
        require_same_dtype(imm0, imm1, instruction, "imm0", "imm1")
    command = command_of(instruction, reduce_cmd, _COMMANDS)
    reduction = "add" if reduce_op is None else name_of(reduce_op, instruction, "reduce_op")
    if reduction not in _REDUCTIONS2:
        fail(
            errors.OperatorError,
            op=instruction,
            operand="reduce_op",
            name=reduction,
            allowed=", ".join(sorted(_REDUCTIONS2)),
        )
    if reduce_res is not None:
        require_shape(
            reduce_res, extent(reduce_res, instruction, "reduce_res"), (size[0], 1), instruction, "reduce_res"
        )
    return emit(
        trace,
        "activate2",
        "scalar",
        (dst, reduce_res),
        (data, imm0, imm1, relu_param),
        (function, operator0, operator1, bool(reverse0), bool(reverse1), reduction, command),
        name,
    )
