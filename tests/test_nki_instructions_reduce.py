"""Reductions, scans, running reductions and statistics against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from nki_bench import Bench, free_slice, view


def _numbers(seed: int, shape: tuple[int, ...], scale: float = 1.0) -> np.ndarray[Any, Any]:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "add": np.sum,
    "multiply": np.prod,
    "maximum": np.max,
    "minimum": np.min,
}


@pytest.mark.parametrize("op", _REDUCTIONS)
@pytest.mark.parametrize("shape", [(128, 1), (128, 5, 3), (64, 3, 700), (32, 2, 5000), (128, 2048), (16, 40, 65)])
@pytest.mark.parametrize("negate", [False, True])
def test_tensor_reduce_takes_trailing_dimensions(op: str, shape: tuple[int, ...], negate: bool) -> None:
    data = _numbers(1, shape, 0.1) + np.float32(1) if op == "multiply" else _numbers(1, shape)
    if op == "multiply":
        data = np.exp2(np.round(data * 2 - 2) / 64).astype(np.float32)
    bench = Bench()
    out = bench.tile(shape[:-1] if len(shape) > 2 else (shape[0], 1))
    bench.emit("tensor_reduce", (out,), (bench.load(data),), (op, 1, negate))
    expected = _REDUCTIONS[op](data.astype(np.float64), axis=-1).reshape(out.shape) * (-1 if negate else 1)
    np.testing.assert_allclose(bench.run(out), expected, rtol=1e-5, atol=1e-5 * np.abs(data).sum(-1).max() / 100)


def test_reductions_of_narrow_types_accumulate_in_fp32() -> None:
    bench = Bench()
    out = bench.tile((4, 1))
    bench.emit("tensor_reduce", (out,), (bench.load(np.ones((4, 5000)), "bfloat16"),), ("add", 1, False))
    assert (bench.run(out) == 5000).all()


def test_subtraction_and_logic_reduce_as_in_numpy() -> None:
    data = np.random.default_rng(2).integers(0, 3, (128, 37)).astype(np.float32)
    bench = Bench()
    source = bench.load(data)
    outs = {op: bench.tile((128, 1)) for op in ("subtract", "logical_and", "logical_or", "logical_xor")}
    for op, out in outs.items():
        bench.emit("tensor_reduce", (out,), (source,), (op, 1, False))
    for op, got in zip(outs, bench.run(*outs.values()), strict=True):
        np.testing.assert_array_equal(got[:, 0], getattr(np, op).reduce(data, axis=1).astype(np.float32), err_msg=op)


def test_bitwise_reductions_work_on_patterns() -> None:
    data = np.random.default_rng(3).integers(0, 2**31, (128, 3, 9)).astype(np.int32)
    bench = Bench()
    source = bench.load(data)
    outs = {op: bench.tile((128, 3), "int32") for op in ("bitwise_and", "bitwise_or", "bitwise_xor")}
    for op, out in outs.items():
        bench.emit("tensor_reduce", (out,), (source,), (op, 1, False))
    for op, got in zip(outs, bench.run(*outs.values()), strict=True):
        np.testing.assert_array_equal(got, getattr(np, op).reduce(data, axis=2), err_msg=op)


def test_reductions_walk_permuted_views() -> None:
    data = _numbers(4, (128, 24, 10))
    bench = Bench()
    tile = bench.load(data)
    out = bench.tile((128, 10))
    bench.emit("tensor_reduce", (out,), (view(tile, (128, 10, 24), (240, 1, 10)),), ("maximum", 1, False))
    np.testing.assert_array_equal(bench.run(out), data.max(axis=1))


def test_a_reduction_may_write_into_its_operand() -> None:
    data = _numbers(5, (128, 6, 50))
    bench = Bench()
    tile = bench.load(data)
    bench.emit("tensor_reduce", (view(tile, (128, 6), (300, 1)),), (tile,), ("add", 1, False))
    np.testing.assert_allclose(bench.run(view(tile, (128, 6), (300, 1))), data.sum(-1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("op", ["add", "average", "maximum", "bitwise_or", "bitwise_and"])
def test_partition_reduce(op: str) -> None:
    bits = op.startswith("bitwise")
    data = np.random.default_rng(6).integers(0, 1000, (96, 3000)).astype(np.int32 if bits else np.float32)
    bench = Bench()
    out = bench.tile((1, 3000), data.dtype)
    bench.emit("partition_reduce", (out,), (bench.load(data),), (op,), "gpsimd")
    expected = {
        "add": lambda: data.sum(0),
        "average": lambda: data.mean(0),
        "maximum": lambda: data.max(0),
        "bitwise_or": lambda: np.bitwise_or.reduce(data),
        "bitwise_and": lambda: np.bitwise_and.reduce(data),
    }[op]()
    np.testing.assert_allclose(bench.run(out)[0], expected, rtol=1e-6)


@pytest.mark.parametrize("reduce_op", ["add", "multiply", "maximum", "minimum"])
@pytest.mark.parametrize("n", [7, 4500])
def test_tensor_scalar_reduce_accumulates_over_instructions(reduce_op: str, n: int) -> None:
    data = np.exp2(np.round(_numbers(7, (128, n))) / 4096).astype(np.float32)
    column, start = _numbers(8, (128, 1), 1e-3) + np.float32(1), np.full((128, 1), 1.5, np.float32)
    bench = Bench()
    source, factor, loaded = bench.load(data), bench.load(column), bench.load(start)
    out, first, second, third = bench.tile((128, n)), *(bench.tile((128, 1)) for _ in range(3))
    attrs = ("multiply", False, reduce_op)
    bench.emit("tensor_scalar_reduce", (out, first), (source, factor, None), (*attrs, "reset_reduce", True))
    bench.emit("tensor_scalar_reduce", (out, second), (source, 1.0, None), (*attrs, "reduce", False))
    bench.emit("tensor_scalar_reduce", (out, third), (source, 1.0, loaded), (*attrs, "load_reduce", False))
    bench.emit("tensor_scalar_reduce", (out, None), (source, factor, None), (*attrs, "idle", False))
    scaled, reduced = bench.run(out, first, second, third), _REDUCTIONS[reduce_op]
    wide, wide_factor = data.astype(np.float64), column.astype(np.float64)
    np.testing.assert_array_equal(scaled[0], data * column)
    both = np.concatenate([wide * wide_factor, wide], axis=1)
    np.testing.assert_allclose(scaled[1], -reduced(wide * wide_factor, axis=1, keepdims=True), rtol=1e-4)
    np.testing.assert_allclose(scaled[2], reduced(both, axis=1, keepdims=True), rtol=1e-4)
    np.testing.assert_allclose(
        scaled[3], reduced(np.concatenate([start, wide], axis=1), axis=1, keepdims=True), rtol=1e-4
    )


_STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum,
    "divide": np.divide,
}  # fmt: skip


def _scan(a: Any, b: Any, state: Any, op0: str, op1: str, reverse0: bool, reverse1: bool) -> Any:
    out = np.empty_like(a)
    state = state.astype(np.float32)
    with np.errstate(all="ignore"):
        for i in range(a.shape[1]):
            between = _STEPS[op0](state, a[:, i]) if reverse0 else _STEPS[op0](a[:, i], state)
            state = _STEPS[op1](b[:, i], between) if reverse1 else _STEPS[op1](between, b[:, i])
            out[:, i] = state
    return out


@pytest.mark.parametrize(
    ("op0", "op1", "reverse0", "reverse1"),
    [
        ("multiply", "add", False, False),
        ("multiply", "add", True, True),
        ("add", "maximum", False, False),
        ("subtract", "multiply", True, False),
        ("multiply", "subtract", False, True),
        ("maximum", "minimum", False, False),
        ("divide", "add", False, False),
    ],
)
@pytest.mark.parametrize(("rows", "n"), [(128, 37), (13, 256), (128, 1100), (5, 1)])
def test_scan_is_sequential(op0: str, op1: str, reverse0: bool, reverse1: bool, rows: int, n: int) -> None:
    a, b, initial = _numbers(9, (rows, n), 0.5), _numbers(10, (rows, n)), _numbers(11, (rows, 1))
    bench = Bench()
    out = bench.tile((rows, n))
    operands = (bench.load(a), bench.load(b), bench.load(initial))
    bench.emit("scan", (out,), operands, (op0, op1, reverse0, reverse1))
    np.testing.assert_array_equal(bench.run(out), _scan(a, b, initial[:, 0], op0, op1, reverse0, reverse1))


def test_scan_keeps_its_state_in_fp32_whatever_it_writes() -> None:
    ones = np.ones((8, 1000), np.float32)
    bench = Bench()
    out = bench.tile(ones.shape, "bfloat16")
    bench.emit(
        "scan",
        (out,),
        (bench.load(ones, "bfloat16"), bench.load(ones, "bfloat16"), 0.0),
        ("multiply", "add", False, False),
    )
    assert bench.run(out).astype(np.float32)[0, -1] == 1000


def test_scan_in_place_and_on_strided_views() -> None:
    a, b = _numbers(12, (128, 600), 0.5), _numbers(13, (128, 600))
    bench = Bench()
    first, second = bench.load(a), bench.load(b)
    target = free_slice(second, 0, 600, 2)
    bench.emit("scan", (target,), (free_slice(first, 1, 600, 2), target, 1.0), ("multiply", "add", False, False))
    expected = b.copy()
    expected[:, ::2] = _scan(a[:, 1::2], b[:, ::2], np.ones(128), "multiply", "add", False, False)
    np.testing.assert_array_equal(bench.run(second), expected)


@pytest.mark.parametrize("op1", ["add", "subtract", "multiply", "maximum", "minimum"])
def test_tensor_scalar_cumulative_goes_on_where_the_last_one_stopped(op1: str) -> None:
    data, column = _numbers(14, (128, 300), 0.1) + np.float32(1), _numbers(15, (128, 1), 0.01)
    if op1 == "multiply":
        data = np.exp2(np.round(data * 3) / 256).astype(np.float32)
    bench = Bench()
    source, offset = bench.load(data), bench.load(column)
    outs = [bench.tile(data.shape) for _ in range(3)]
    bench.emit("tensor_scalar_cumulative", (outs[0],), (source, offset, None), ("add", op1, "reset_reduce"))
    bench.emit("tensor_scalar_cumulative", (outs[1],), (source, offset, None), ("add", op1, "reduce"))
    bench.emit("tensor_scalar_cumulative", (outs[2],), (source, offset, 3.0), ("add", op1, "load_reduce"))
    got = bench.run(*outs)
    zero = {"multiply": 1.0, "maximum": -np.inf, "minimum": np.inf}.get(op1, 0.0)
    shifted, state = data + column, np.full(128, zero, np.float32)
    for result, start in zip(got, (None, None, 3.0), strict=True):
        state = state if start is None else np.full(128, start, np.float32)
        for i in range(data.shape[1]):
            state = _STEPS[op1](shifted[:, i], state)
            np.testing.assert_array_equal(result[:, i], state)


@pytest.mark.parametrize("sizes", [(128,), (512, 511, 3), (1,)])
def test_bn_stats_and_bn_aggr_give_mean_and_variance(sizes: tuple[int, ...]) -> None:
    parts = [_numbers(16 + i, (128, n), 3.0) + np.float32(50) for i, n in enumerate(sizes)]
    bench = Bench()
    stats = bench.tile((128, 6 * len(sizes)))
    for i, part in enumerate(parts):
        bench.emit("bn_stats", (free_slice(stats, 6 * i, 6 * i + 6),), (bench.load(part),))
    moments = bench.tile((128, 2))
    bench.emit("bn_aggr", (moments,), (stats,))
    got_stats, got = bench.run(stats, moments)
    even = parts[0][:, ::2].astype(np.float64)
    expected = np.stack([np.full(128, even.shape[1]), even.mean(1), even.var(1) * even.shape[1]], axis=1)
    np.testing.assert_allclose(got_stats[:, :3], expected, rtol=2e-5, atol=1e-6)
    whole = np.concatenate(parts, axis=1).astype(np.float64)
    np.testing.assert_allclose(got, np.stack([whole.mean(1), whole.var(1)], axis=1), rtol=2e-5, atol=1e-6)
