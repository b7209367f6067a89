"""Instructions that compute element by element on the Vector, Scalar or GpSimd engine."""

from __future__ import annotations

from typing import Any

from .. import errors
from ..operators import ARITHMETIC, BINARY, BITWISE, UNARY, known, name_of
from ..targets import GENERATIONS
from ..tensor import NkiTensor
from ..trace import Trace, current
from .enums import engine as Engine
from .instruction_handle import NkiInstruction
from .validation import (
    FP32,
    UNKNOWN,
    WORDS,
    choose,
    column,
    emit,
    extent,
    fail,
    no_gpsimd_in_psum,
    psum_pair,
    refuse,
    require_dtype,
    require_generation,
    require_integers,
    require_same_dtype,
    require_size,
)

__all__ = [
    "reciprocal", "scalar_tensor_tensor", "tensor_copy", "tensor_copy_predicated", "tensor_scalar", "tensor_tensor"
]  # fmt: skip

# Operators that came with NeuronCore-v4.
_GENERATION_4 = frozenset({"abs_max", "abs_min", "square", "relu"})
# Arithmetic that the Vector engine of every generation has, and prefers no other engine for.
_EVERYWHERE = ARITHMETIC - _GENERATION_4 - {"rsqrt"}
_SCALAR_ENGINE_PAIRS = frozenset({("multiply", "add"), ("multiply", None), ("add", None)})
_PREDICATES = frozenset({"uint8", "uint16", "uint32"})
_FP32_CURE = "The engines compute in fp32 and read this operand as such: convert it with nisa.tensor_copy."


def tensor_copy(
    dst: NkiTensor, src: NkiTensor, engine: Engine = UNKNOWN, name: str | None = None, *, dtype: Any = None
) -> NkiInstruction:
    """Copies `src` to `dst`, both in SBUF or PSUM, with as many partitions and elements per partition.

    Bits are copied where the types are the same; otherwise elements go through fp32 and are rounded once.

    Args:
        engine: vector (the default), scalar (NeuronCore-v3 and later) or gpsimd (SBUF only).
        dtype: has no effect; older kernels say it. The result has the type of `dst`.

    Raises:
        EngineError, GenerationError: the engine cannot reach an operand, or cannot copy.
    """
    trace = current()
    size = extent(dst, "tensor_copy", "dst")
    like = extent(src, "tensor_copy", "src")
    if size != like:
        require_size(dst, size, like, "tensor_copy", "dst", src, "src")
    chosen = "vector"
    if engine is not UNKNOWN:
        chosen = choose(engine, ("vector", "scalar", "gpsimd"), "tensor_copy")
        if chosen == "gpsimd":
            no_gpsimd_in_psum(chosen, "tensor_copy", ("dst", dst), ("src", src))
        elif chosen == "scalar":
            require_generation(
                trace, 3, "tensor_copy", "the scalar engine (on this chip: nisa.activation with nl.copy)"
            )
    return emit(trace, "copy", chosen, (dst,), (src,), (), name)


def tensor_copy_predicated(
    dst: NkiTensor, src: Any, predicate: NkiTensor, reverse_pred: bool = False, name: str | None = None
) -> NkiInstruction:
    """Copies elements of `src` (a tile or a number) to `dst` where `predicate` is not 0; leaves the others as they are.

    Args:
        predicate: uint8, uint16 or uint32; not in PSUM together with `src`.
        reverse_pred: copy where it is 0.

    Raises:
        DtypeMismatchError: `src` and `dst` have different types.
        BothInPsumError: `src` and `predicate` lie in PSUM.
    """
    op = "tensor_copy_predicated"
    trace = current()
    size = extent(dst, op, "dst")
    like = extent(predicate, op, "predicate")
    if like != size:
        require_size(predicate, like, size, op, "predicate", dst, "dst")
    require_dtype(predicate, _PREDICATES, op, "predicate", "Write it with a uint8 destination, or .view() it.")
    if isinstance(src, NkiTensor):
        like = extent(src, op, "src")
        if like != size:
            require_size(src, like, size, op, "src", dst, "dst")
        require_same_dtype(src, dst, op, "src", "dst")
        if src.storage.region == "psum" and predicate.storage.region == "psum":
            psum_pair(op, "src", "predicate")
    else:
        src = column(src, op, "src", size[0])
    return emit(trace, "copy_predicated", "vector", (dst,), (src, predicate), (bool(reverse_pred),), name)


def tensor_tensor(
    dst: NkiTensor, data1: NkiTensor, data2: NkiTensor, op: Any, engine: Engine = UNKNOWN, name: str | None = None
) -> NkiInstruction:
    """`data1 <op> data2`, element by element; as many partitions and elements per partition everywhere.

    Arithmetic operators compute in fp32, bitwise ones on the bits of integers. Where all three tiles are int32 or
    uint32 in SBUF and no engine is named, the GpSimd engine computes with the integers as they are.

    Args:
        op: an operator with two operands; power runs on the GpSimd engine.
        engine: vector or gpsimd (SBUF only).

    Raises:
        BothInPsumError: both inputs lie in PSUM.
        EngineError, OperatorError, OperandDtypeError: operator, engine and types do not go together.
    """
    trace = current()
    try:
        operator = known[op]
    except (KeyError, TypeError):
        operator = name_of(op, "tensor_tensor", "op")
    size = extent(dst, "tensor_tensor", "dst")
    like = extent(data1, "tensor_tensor", "data1")
    if like != size:
        require_size(data1, like, size, "tensor_tensor", "data1", dst, "dst")
    like = extent(data2, "tensor_tensor", "data2")
    if like != size:
        require_size(data2, like, size, "tensor_tensor", "data2", dst, "dst")
    region1, region2 = data1.storage.region, data2.storage.region
    if region1 == "psum" and region2 == "psum":
        psum_pair("tensor_tensor", "data1", "data2")
    native = False
    if operator in BINARY:
        words = dst.dtype in WORDS and data1.dtype in WORDS and data2.dtype in WORDS
        chosen = "vector"
        if engine is not UNKNOWN:
            chosen = choose(engine, ("vector", "gpsimd"), "tensor_tensor")
            if operator == "power" and chosen != "gpsimd":
                choose(engine, ("gpsimd",), "tensor_tensor", ", which has no power")
        elif operator == "power" or (
            words and region1 == "sbuf" and region2 == "sbuf" and dst.storage.region == "sbuf"
        ):
            chosen = "gpsimd"
        if chosen == "gpsimd":
            native = words
            no_gpsimd_in_psum(chosen, "tensor_tensor", ("dst", dst), ("data1", data1), ("data2", data2))
        if operator in _GENERATION_4:
            require_generation(trace, 4, "tensor_tensor", f"nl.{operator}")
    else:
        chosen = "vector"
        _require_bitwise("tensor_tensor", operator, engine, ("dst", dst), ("data1", data1), ("data2", data2))
        if operator == "invert":
            fail(
                errors.OperatorError,
                op="tensor_tensor",
                operand="op",
                name=operator,
                allowed="operators with two operands; invert is one of nisa.tensor_scalar",
            )
    return emit(trace, "tensor_tensor", chosen, (dst,), (data1, data2), (operator, native), name)


def _require_bitwise(op: str, operator: str, engine: Any, *operands: tuple[str, NkiTensor]) -> None:
    """Bitwise operators: integers, on the Vector engine. Whatever else comes here is no operator of the instruction."""
    if operator not in BITWISE:
        allowed = (
            "operators with two operands, as nl.add or nl.bitwise_and"
            if op == "tensor_tensor"
            else "arithmetic and bitwise operators, as nl.add, nl.abs or nl.bitwise_and"
        )
        refuse(errors.OperatorError, op=op, operand="op", name=operator, allowed=allowed)
    for operand, view in operands:
        require_integers(view, op, operand, operator)
    if engine is not UNKNOWN:
        choose(engine, ("vector",), op, f", which has no bitwise operators (nl.{operator})")


def _scalar_operand(value: Any, operand: str, operator: str, data: NkiTensor, dst: NkiTensor, partitions: int) -> Any:
    """operand0 or operand1 of tensor_scalar, which suits `operator`."""
    if operator in UNARY or operator == "invert":
        if value is not None and not (isinstance(value, (int, float)) and value == 0):
            fail(
                errors.MissingOperandError,
                op="tensor_scalar",
                operand=operand,
                problem=f"has to be None or 0, as nl.{operator} takes one operand",
            )
        return 0
    kind = value.__class__
    if kind is float or kind is int:
        return value
    if value is None:
        refuse(
            errors.MissingOperandError,
            op="tensor_scalar",
            operand=operand,
            problem=f"is missing: nl.{operator} takes two operands",
        )
    value = column(value, "tensor_scalar", operand, partitions)
    if isinstance(value, NkiTensor):
        if operator in BITWISE:
            require_integers(value, "tensor_scalar", operand, operator)
        elif value.dtype != "float32" and not (value.dtype in WORDS and data.dtype in WORDS and dst.dtype in WORDS):
            require_dtype(value, FP32, "tensor_scalar", operand, _FP32_CURE)
    return value


def tensor_scalar(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any,
    reverse0: bool = False,
    op1: Any = None,
    operand1: Any = None,
    reverse1: bool = False,
    engine: Engine = UNKNOWN,
    name: str | None = None,
) -> NkiInstruction:
    """`(data <op0> operand0) <op1> operand1`, the operands broadcast along the free dimensions.

    Args:
        op0, op1: both arithmetic (computed in fp32) or both bitwise (integers only, Vector engine); op1 may be absent.
        operand0, operand1: a number, or a tile of one fp32 element per partition (integers for bitwise operators, and
            int32 or uint32 where `data` and `dst` are); None or 0 for operators with one operand.
        reverse0, reverse1: the operand stands left of its operator.
        engine: vector, scalar (multiply and add, multiply, or add) or gpsimd (rsqrt only).

    Raises:
        MixedOperatorsError, OperatorError, MissingOperandError, OperandDtypeError, EngineError.
    """
    trace = current()
    try:
        operator0 = known[op0]
    except (KeyError, TypeError):
        operator0 = name_of(op0, "tensor_scalar", "op0")
    operator1 = None
    if op1 is not None:
        try:
            operator1 = known[op1]
        except (KeyError, TypeError):
            operator1 = name_of(op1, "tensor_scalar", "op1")
        if operator1 == "bypass":
            operator1 = None
    size = extent(dst, "tensor_scalar", "dst")
    like = extent(data, "tensor_scalar", "data")
    if like != size:
        require_size(data, like, size, "tensor_scalar", "data", dst, "dst")
    if operand0.__class__ is not float or operator0 in UNARY:
        operand0 = _scalar_operand(operand0, "operand0", operator0, data, dst, size[0])
    if operator1 is not None:
        if operand1.__class__ is not float or operator1 in UNARY:
            operand1 = _scalar_operand(operand1, "operand1", operator1, data, dst, size[0])
    elif operand1 is not None and op1 is None:
        fail(
            errors.MissingOperandError,
            op="tensor_scalar",
            operand="operand1",
            problem="is given, but op1 is not; pass both or none",
        )
    chosen = "vector"
    if engine is not UNKNOWN or operator0 not in _EVERYWHERE or not (operator1 is None or operator1 in _EVERYWHERE):
        chosen = _tensor_scalar_engine(trace, operator0, operator1, engine, dst, data)
    return emit(
        trace,
        "tensor_scalar",
        chosen,
        (dst,),
        (data, operand0, operand1),
        (operator0, bool(reverse0), operator1, bool(reverse1)),
        name,
    )


def _tensor_scalar_engine(
    trace: Trace, operator0: str, operator1: str | None, engine: Any, dst: NkiTensor, data: NkiTensor
) -> str:
    """The engine for operators that not every engine and generation has."""
    operators = (operator0,) if operator1 is None else (operator0, operator1)
    others = [operator for operator in operators if operator not in ARITHMETIC]
    if others:
        for operator in others:
            _require_bitwise("tensor_scalar", operator, engine, ("dst", dst), ("data", data))
        if len(others) < len(operators):
            fail(errors.MixedOperatorsError, op="tensor_scalar", op0=operator0, op1=operator1)
        return "vector"
    for operator in operators:
        if operator in _GENERATION_4:
            require_generation(trace, 4, "tensor_scalar", f"nl.{operator}")
    chosen = "vector"
    if engine is not UNKNOWN:
        chosen = choose(engine, ("vector", "scalar", "gpsimd"), "tensor_scalar")
    elif "rsqrt" in operators and data.storage.region == dst.storage.region == "sbuf":
        chosen = "gpsimd"
    if chosen == "gpsimd":
        if "rsqrt" not in operators:
            choose(engine, ("vector", "scalar"), "tensor_scalar", f", which has rsqrt only, not nl.{operator0}")
        no_gpsimd_in_psum(chosen, "tensor_scalar", ("dst", dst), ("data", data))
    elif chosen == "scalar" and GENERATIONS[trace.target] < 4 and (operator0, operator1) not in _SCALAR_ENGINE_PAIRS:
        choose(
            engine,
            ("vector",),
            "tensor_scalar",
            f" with {operator0}, {operator1}: on this chip it has multiply and add, multiply, or add",
        )
    return chosen


def scalar_tensor_tensor(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any,
    op1: Any,
    operand1: NkiTensor,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """`(data <op0> operand0) <op1> operand1` on the Vector engine; operand1 is a tile of the size of `data`.

    Args:
        op0, op1: arithmetic operators.
        operand0: a number, or a tile of one element per partition.

    Raises:
        OperatorError: a bitwise operator.
        BothInPsumError: `data` and `operand1` lie in PSUM.
    """
    op = "scalar_tensor_tensor"
    trace = current()
    operator0 = name_of(op0, op, "op0")
    operator1 = name_of(op1, op, "op1")
    for operand, operator, allowed in (("op0", operator0, ARITHMETIC), ("op1", operator1, BINARY)):
        if operator not in allowed:
            fail(errors.OperatorError, op=op, operand=operand, name=operator, allowed="arithmetic operators")
        if operator in _GENERATION_4:
            require_generation(trace, 4, op, f"nl.{operator}")
    size = extent(dst, op, "dst")
    like = extent(data, op, "data")
    if like != size:
        require_size(data, like, size, op, "data", dst, "dst")
    like = extent(operand1, op, "operand1")
    if like != size:
        require_size(operand1, like, size, op, "operand1", dst, "dst")
    operand0 = 0 if operand0 is None and operator0 in UNARY else column(operand0, op, "operand0", size[0])
    if data.storage.region == "psum" and operand1.storage.region == "psum":
        psum_pair(op, "data", "operand1")
    return emit(
        trace,
        op,
        "vector",
        (dst,),
        (data, operand0, operand1),
        (operator0, operator1, bool(reverse0), bool(reverse1)),
        name,
    )


def reciprocal(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> NkiInstruction:
    """`1 / data` in fp32 on the Vector engine: more exact than nisa.activation(op=nl.reciprocal), and slower."""
    trace = current()
    size = extent(dst, "reciprocal", "dst")
    like = extent(data, "reciprocal", "data")
    if like != size:
        require_size(data, like, size, "reciprocal", "data", dst, "dst")
    return emit(trace, "reciprocal", "vector", (dst,), (data,), (), name)
