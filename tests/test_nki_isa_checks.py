"""What nki.isa refuses: operands, engines, generations, operators, reductions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from nki_tiles import bf16, hbm, i32, moving, provoke, psum, rows, tile

import nki.isa as nisa
from nki import errors
from nki.trace import Trace, tracing

# Target, call, class of the mistake, and what its text has to name.
Case = tuple[str, Callable[[], Any], type[errors.NkiError], list[str]]
E = nisa.engine

CASES: list[Case] = [
    # Operands: what they are and where they lie.
    ("trn2", lambda: nisa.tensor_copy(tile(4, 4), [1, 2]), errors.NotATensorError, ["tensor_copy", "src", "[1, 2]"]),
    (
        "trn2",
        lambda: nisa.tensor_copy(tile(4, 4), hbm(4, 4)),
        errors.WrongBufferError,
        ["src", "shared_hbm", "dma_copy"],
    ),
    ("trn2", lambda: nisa.tensor_copy(hbm(4, 4), tile(4, 4)), errors.WrongBufferError, ["dst", "shared_hbm"]),
    ("trn2", lambda: nisa.dma_copy(hbm(4, 4), psum(4, 4)), errors.WrongBufferError, ["src", "psum", "tensor_copy"]),
    ("trn2", lambda: nisa.tensor_tensor(tile(4, 4), psum(4, 4), psum(4, 4), "add"), errors.BothInPsumError, ["data1"]),
    (
        "trn2",
        lambda: nisa.scalar_tensor_tensor(tile(4, 4), psum(4, 4), "add", 1, "add", psum(4, 4)),
        errors.BothInPsumError,
        ["operand1"],
    ),
    (
        "trn2",
        lambda: nisa.tensor_tensor_scan(tile(4, 4), psum(4, 4), psum(4, 4), 0, "add", "add"),
        errors.BothInPsumError,
        ["data0"],
    ),
    ("trn2", lambda: nisa.tensor_copy(tile(129, 4), tile(129, 4)), errors.PartitionLimitError, ["129", "128"]),
    (
        "trn2",
        lambda: nisa.tensor_copy(tile(4, 4), rows(tile(128, 4), 30, 34)),
        errors.StartPartitionError,
        ["partition 30", "0, 32, 64 or 96"],
    ),
    (
        "trn2",
        lambda: nisa.tensor_copy(tile(64, 4), rows(tile(128, 4), 32, 96)),
        errors.StartPartitionError,
        ["partition 32", "0 or 64"],
    ),
    (
        "trn2",
        lambda: nisa.tensor_copy(tile(96, 4), rows(tile(128, 4), 32, 128)),
        errors.StartPartitionError,
        ["partition 32"],
    ),
    (
        "trn2",
        lambda: nisa.tensor_copy(tile(8, 4), tile(8, 4, at=(16, 0))),
        errors.StartPartitionError,
        ["partition 16"],
    ),
    (
        "trn2",
        lambda: nisa.tensor_copy(tile(8, 4), tile(4, 4)),
        errors.PartitionMismatchError,
        ["8 partitions", "has 4"],
    ),
    (
        "trn2",
        lambda: nisa.tensor_copy(tile(8, 4), tile(8, 5)),
        errors.ElementCountError,
        ["4 elements", "5 are needed"],
    ),
    ("trn2", lambda: nisa.dma_copy(hbm(8, 4), tile(8, 5)), errors.ElementCountError, ["32", "40"]),
    (
        "trn2",
        lambda: nisa.tensor_copy(tile(8, 4), moving(tile(8, 4), "vector")),
        errors.DynamicOperandError,
        ["vector_offset"],
    ),
    (
        "trn2",
        lambda: nisa.tensor_copy(tile(8, 4), moving(tile(8, 4), "indirect")),
        errors.GenerationError,
        ["indirect", "trn3"],
    ),
    ("trn3", lambda: nisa.reciprocal(tile(8, 4), moving(tile(8, 4), "indirect")), errors.DynamicOperandError, ["data"]),
    # Engines and generations.
    (
        "trn2",
        lambda: nisa.tensor_copy(tile(8, 4), psum(8, 4), engine=E.gpsimd),
        errors.EngineError,
        ["gpsimd", "psum", "engine.vector"],
    ),
    (
        "trn2",
        lambda: nisa.tensor_copy(tile(8, 4), tile(8, 4), engine=E.tensor),
        errors.EngineError,
        ["engine.tensor", "scalar"],
    ),
    (
        "trn1",
        lambda: nisa.tensor_copy(tile(8, 4), tile(8, 4), engine=E.scalar),
        errors.GenerationError,
        ["scalar", "trn2", "trn1"],
    ),
    (
        "trn2",
        lambda: nisa.tensor_copy(tile(8, 4), tile(8, 4), engine=5),
        errors.EnumMemberError,
        ["nisa.engine", "vector"],
    ),
    (
        "trn2",
        lambda: nisa.tensor_tensor(psum(8, 4), tile(8, 4), tile(8, 4), "power"),
        errors.EngineError,
        ["dst", "psum"],
    ),
    (
        "trn2",
        lambda: nisa.tensor_tensor(tile(8, 4), tile(8, 4), tile(8, 4), "power", engine=E.vector),
        errors.EngineError,
        ["power"],
    ),
    (
        "trn2",
        lambda: nisa.tensor_tensor(i32(8, 4), i32(8, 4), i32(8, 4), "bitwise_or", engine=E.gpsimd),
        errors.EngineError,
        ["bitwise"],
    ),
    (
        "trn2",
        lambda: nisa.tensor_tensor(tile(8, 4), tile(8, 4), tile(8, 4), "abs_max"),
        errors.GenerationError,
        ["abs_max"],
    ),
    (
        "trn2",
        lambda: nisa.tensor_scalar(tile(8, 4), tile(8, 4), "maximum", 0.0, engine=E.scalar),
        errors.EngineError,
        ["scalar", "maximum"],
    ),
    (
        "trn2",
        lambda: nisa.tensor_scalar(tile(8, 4), tile(8, 4), "add", 0.0, engine=E.gpsimd),
        errors.EngineError,
        ["rsqrt"],
    ),
    (
        "trn2",
        lambda: nisa.tensor_scalar(tile(8, 4), psum(8, 4), "rsqrt", 0.0, engine=E.gpsimd),
        errors.EngineError,
        ["data", "psum"],
    ),
    (
        "trn2",
        lambda: nisa.activate2(tile(8, 4), "exp", tile(8, 4), 1.0, 0.0, "multiply", "add"),
        errors.GenerationError,
        ["activate2"],
    ),
    ("trn2", lambda: nisa.exponential(tile(8, 4), tile(8, 4)), errors.GenerationError, ["exponential", "trn3"]),
    (
        "trn1",
        lambda: nisa.range_select(tile(8, 4), tile(8, 4), "less", "less", tile(8, 1), tile(8, 1)),
        errors.GenerationError,
        ["range_select"],
    ),
    ("trn1", lambda: nisa.nonzero_with_count(i32(8, 5), i32(8, 4)), errors.GenerationError, ["nonzero"]),
    ("trn1", lambda: nisa.activation(tile(8, 4), "exp", tile(8, 4), bias=1.0), errors.GenerationError, ["bias"]),
    ("trn2", lambda: nisa.dma_copy(tile(8, 4), hbm(8, 4), priority=1), errors.GenerationError, ["priority"]),
    (
        "trn1",
        lambda: nisa.dma_copy(tile(8, 4), hbm(8, 4), dge_mode=nisa.dge_mode.hwdge),
        errors.GenerationError,
        ["hwdge"],
    ),
    # Operators.
    (
        "trn2",
        lambda: nisa.tensor_tensor(tile(8, 4), tile(8, 4), tile(8, 4), object),
        errors.UnknownOperatorError,
        ["object", "nl.add"],
    ),
    ("trn2", lambda: nisa.tensor_tensor(tile(8, 4), tile(8, 4), tile(8, 4), "exp"), errors.OperatorError, ["nl.exp"]),
    (
        "trn2",
        lambda: nisa.tensor_tensor(tile(8, 4), tile(8, 4), tile(8, 4), "bitwise_and"),
        errors.OperandDtypeError,
        ["dst", "integers"],
    ),
    (
        "trn2",
        lambda: nisa.tensor_scalar(i32(8, 4), i32(8, 4), "add", 1, op1="bitwise_and", operand1=1),
        errors.MixedOperatorsError,
        ["add", "bitwise_and"],
    ),
    (
        "trn2",
        lambda: nisa.tensor_scalar(tile(8, 4), tile(8, 4), "add", None),
        errors.MissingOperandError,
        ["operand0", "missing"],
    ),
    (
        "trn2",
        lambda: nisa.tensor_scalar(tile(8, 4), tile(8, 4), "rsqrt", 2.0),
        errors.MissingOperandError,
        ["rsqrt", "None or 0"],
    ),
    (
        "trn2",
        lambda: nisa.tensor_scalar(tile(8, 4), tile(8, 4), "add", 1.0, operand1=2.0),
        errors.MissingOperandError,
        ["op1"],
    ),
    (
        "trn2",
        lambda: nisa.tensor_scalar(tile(8, 4), tile(8, 4), "add", bf16(8, 1)),
        errors.OperandDtypeError,
        ["operand0", "bfloat16", "float32"],
    ),
    (
        "trn2",
        lambda: nisa.tensor_scalar(tile(8, 4), tile(8, 4), "add", tile(8, 2)),
        errors.OperandShapeError,
        ["operand0", "8 partitions of 1 element"],
    ),
    (
        "trn2",
        lambda: nisa.tensor_scalar(tile(8, 4), tile(8, 4), "add", "1"),
        errors.NotANumberError,
        ["operand0", "'1'"],
    ),
    (
        "trn2",
        lambda: nisa.scalar_tensor_tensor(i32(8, 4), i32(8, 4), "bitwise_or", 1, "add", i32(8, 4)),
        errors.OperatorError,
        ["op0", "arithmetic"],
    ),
    ("trn2", lambda: nisa.activation(tile(8, 4), "add", tile(8, 4)), errors.OperatorError, ["nl.add", "gelu"]),
    (
        "trn2",
        lambda: nisa.activation(tile(8, 4), "exp", tile(8, 4), scale=bf16(8, 1)),
        errors.OperandDtypeError,
        ["scale"],
    ),
    (
        "trn2",
        lambda: nisa.activation(tile(8, 4), "exp", tile(8, 4), reduce_op="maximum"),
        errors.OperatorError,
        ["reduce_op"],
    ),
    (
        "trn2",
        lambda: nisa.activation(tile(8, 4), "exp", tile(8, 4), reduce_res=tile(8, 4)),
        errors.OperandShapeError,
        ["reduce_res"],
    ),
    (
        "trn2",
        lambda: nisa.activation(tile(8, 4), "exp", tile(8, 4), reduce_cmd=nisa.reduce_cmd.load_reduce),
        errors.ReduceCommandError,
        ["load_reduce"],
    ),
    (
        "trn3",
        lambda: nisa.activate2(tile(8, 4), "exp", tile(8, 4), 1.0, 0.0, "add", "add"),
        errors.OperatorError,
        ["op0, op1"],
    ),
    (
        "trn3",
        lambda: nisa.activate2(tile(8, 4), "exp", tile(8, 4), 1.0, 0.0, "add", "bypass", reverse1=True),
        errors.MissingOperandError,
        ["reverse1"],
    ),
    # Reductions.
    (
        "trn2",
        lambda: nisa.tensor_reduce(tile(8, 1), "add", tile(8, 4), axis=0),
        errors.ReduceAxisError,
        ["axis=0", "partition"],
    ),
    (
        "trn2",
        lambda: nisa.tensor_reduce(tile(8, 3), "add", tile(8, 4, 3), axis=1),
        errors.ReduceAxisError,
        ["axis=1", "(2,)"],
    ),
    (
        "trn2",
        lambda: nisa.tensor_reduce(tile(8, 3), "add", tile(8, 4, 3), axis=2),
        errors.ElementCountError,
        ["3 elements", "4 are needed"],
    ),
    ("trn2", lambda: nisa.tensor_reduce(tile(8, 1), "power", tile(8, 4), axis=1), errors.OperatorError, ["power"]),
    (
        "trn2",
        lambda: nisa.tensor_reduce(i32(8, 1), "bitwise_or", i32(8, 4), axis=1, negate=True),
        errors.MissingOperandError,
        ["negate"],
    ),
    (
        "trn2",
        lambda: nisa.tensor_partition_reduce(tile(8, 4), "add", tile(8, 4)),
        errors.OperandShapeError,
        ["1 partitions of 4"],
    ),
    (
        "trn2",
        lambda: nisa.tensor_scalar_reduce(
            tile(8, 4), tile(8, 4), "add", 1.0, "add", reduce_cmd=nisa.reduce_cmd.load_reduce
        ),
        errors.MissingOperandError,
        ["reduce_init", "load_reduce"],
    ),
    (
        "trn2",
        lambda: nisa.tensor_scalar_reduce(tile(8, 4), tile(8, 4), "add", 1.0, "add", reduce_init=1.0),
        errors.MissingOperandError,
        ["reduce_init", "reset_reduce"],
    ),
    (
        "trn2",
        lambda: nisa.tensor_scalar_cumulative(i32(8, 4), i32(8, 4), "add", "add", 1.0),
        errors.OperandDtypeError,
        ["int32"],
    ),
    ("trn2", lambda: nisa.bn_stats(tile(8, 6), tile(8, 513)), errors.FreeSizeError, ["513", "512", "bn_aggr"]),
    ("trn2", lambda: nisa.bn_aggr(tile(8, 2), tile(8, 7)), errors.FreeSizeError, ["7", "multiples of 3"]),
]


@pytest.mark.parametrize(("target", "call", "mistake", "names"), CASES)
def test_mistake(target: str, call: Callable[[], Any], mistake: type[errors.NkiError], names: list[str]) -> None:
    provoke(target, call, mistake, names)


@pytest.mark.parametrize("start", [0, 32, 64, 96])
def test_small_tiles_begin_at_any_quadrant(start: int) -> None:
    with tracing(Trace("trn2")):
        nisa.tensor_copy(tile(32, 4), rows(tile(128, 4), start, start + 32))


def test_indirect_operands_of_the_newest_generation() -> None:
    with tracing(Trace("trn3")):
        a, b = tile(8, 4), moving(tile(8, 4), "indirect")
        nisa.tensor_copy(a, b)
        nisa.tensor_tensor(a, b, tile(8, 4), "add")
        with pytest.raises(errors.DynamicOperandError, match="data2"):
            nisa.tensor_tensor(a, tile(8, 4), b, "add")


def test_problems_are_gathered_where_they_are_asked_for() -> None:
    trace = replace(Trace("trn2"), problems=[])
    with tracing(trace):
        nisa.tensor_copy(tile(8, 4), tile(4, 5))
        nisa.bn_stats(tile(8, 6), tile(8, 600))
    assert trace.problems is not None
    assert [type(problem) for problem in trace.problems] == [errors.PartitionMismatchError, errors.FreeSizeError]


def test_mistakes_are_assertion_errors_too() -> None:
    """Kernels catch AssertionError where the vendor's simulator asserts."""
    with tracing(Trace("trn2")), pytest.raises(AssertionError):
        nisa.max8(tile(8, 8), tile(8, 7))
