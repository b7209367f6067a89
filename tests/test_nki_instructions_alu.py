"""Elementwise ALU instructions against NumPy: tensor_tensor, tensor_scalar, scalar_tensor_tensor, copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from nki_bench import Bench, free_slice, view

from nki import _engines

_SHAPE = (128, 48)


def _numbers(seed: int, shape: tuple[int, ...] = _SHAPE, scale: float = 3.0) -> np.ndarray[Any, Any]:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def _one(value: Any) -> Any:
    return np.asarray(value, np.float32)


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "abs_max": lambda a, b: np.where(np.abs(a) > np.abs(b), a, b),
    "abs_min": lambda a, b: np.where(np.abs(a) < np.abs(b), a, b),
    "mod": np.mod,
    "fmod": np.fmod,
    "equal": lambda a, b: _one(a == b),
    "not_equal": lambda a, b: _one(a != b),
    "greater": lambda a, b: _one(a > b),
    "greater_equal": lambda a, b: _one(a >= b),
    "less": lambda a, b: _one(a < b),
    "less_equal": lambda a, b: _one(a <= b),
    "logical_and": lambda a, b: _one((a != 0) & (b != 0)),
    "logical_or": lambda a, b: _one((a != 0) | (b != 0)),
    "logical_xor": lambda a, b: _one((a != 0) ^ (b != 0)),
}


@pytest.mark.parametrize("op", _OPERATORS)
def test_tensor_tensor_computes_each_operator(op: str) -> None:
    a, b = _numbers(1), _numbers(2)
    a[:, :8] = b[:, :8]
    a[:, 8:12] = -b[:, 8:12]
    a[3, 20:24] = 0
    bench = Bench()
    out = bench.tile(_SHAPE)
    bench.emit("tensor_tensor", (out,), (bench.load(a), bench.load(b)), (op, False))
    np.testing.assert_array_equal(bench.run(out), _OPERATORS[op](a, b).astype(np.float32))


@pytest.mark.parametrize("n", [1, 3, 8, 64, 300, 2048, 5000])
@pytest.mark.parametrize("reverse", [False, True])
def test_tensor_scalar_takes_columns_and_numbers_in_any_size(n: int, reverse: bool) -> None:
    data, column = _numbers(n, (128, n)), _numbers(n + 1, (128, 1))
    bench = Bench()
    out = bench.tile((128, n))
    bench.emit(
        "tensor_scalar", (out,), (bench.load(data), bench.load(column), 0.75), ("subtract", reverse, "multiply", False)
    )
    expected = (column - data if reverse else data - column) * np.float32(0.75)
    np.testing.assert_array_equal(bench.run(out), expected)


def test_scale_and_bias_round_twice() -> None:
    data, scale, bias = _numbers(5), _numbers(6, (128, 1)), _numbers(7, (128, 1))
    bench = Bench()
    out = bench.tile(_SHAPE)
    operands = (bench.load(data), bench.load(scale), bench.load(bias))
    bench.emit("tensor_scalar", (out,), operands, ("multiply", False, "add", False))
    np.testing.assert_array_equal(bench.run(out), data * scale + bias)


@pytest.mark.parametrize(
    ("op", "function"),
    [
        ("abs", np.abs),
        ("square", np.square),
        ("relu", lambda x: np.maximum(x, 0)),
        ("rsqrt", lambda x: 1 / np.sqrt(x)),
        ("reciprocal", lambda x: 1 / x),
    ],
)
def test_unary_operators_need_no_operand(op: str, function: Callable[[Any], Any]) -> None:
    data = np.abs(_numbers(8)) if op == "rsqrt" else _numbers(8)
    bench = Bench()
    out = bench.tile(_SHAPE)
    bench.emit("tensor_scalar", (out,), (bench.load(data), None, None), (op, False, None, False))
    np.testing.assert_allclose(bench.run(out), function(data), rtol=2e-7)


def test_powers_follow_ieee_at_the_edges() -> None:
    bases = np.array([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.3, np.inf, -np.inf, np.nan, 1e-38, 3e38], np.float32)
    exponents = np.array([0.0, 0.5, -0.5, 1.0, 2.0, 3.0, -1.0, -3.0, 2.5, np.inf, -np.inf, np.nan, 100.0], np.float32)
    a, b = (np.ascontiguousarray(x, np.float32) for x in np.meshgrid(bases, exponents, indexing="ij"))
    bench = Bench()
    out = bench.tile(a.shape)
    bench.emit("tensor_tensor", (out,), (bench.load(a), bench.load(b)), ("power", False), "gpsimd")
    with np.errstate(all="ignore"):
        expected = np.power(a.astype(np.float64), b.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(bench.run(out), expected, rtol=1e-6)


def test_maximum_with_nan_is_nan() -> None:
    a, b = np.array([[np.nan, 1.0, np.nan]], np.float32), np.array([[1.0, np.nan, np.nan]], np.float32)
    bench = Bench()
    out = bench.tile(a.shape)
    bench.emit("tensor_tensor", (out,), (bench.load(a), bench.load(b)), ("maximum", False))
    assert np.isnan(bench.run(out)).all()


@pytest.mark.parametrize(
    "dtype", ["bfloat16", "float16", "float8_e4m3", "float8_e5m2", "int8", "uint8", "int16", "uint16"]
)
def test_narrow_types_are_computed_in_fp32_and_rounded_once(dtype: str) -> None:
    rng = np.random.default_rng(3)
    whole = rng.integers(0, 100, _SHAPE).astype(np.float32)
    bench = Bench()
    a, b = bench.load(whole, dtype), bench.load(_numbers(4, scale=0.5), "bfloat16")
    out = bench.tile(_SHAPE, dtype)
    bench.emit("tensor_tensor", (out,), (a, b), ("multiply", False))
    got, x, y = bench.run(out, a, b)
    exact = x.astype(np.float32) * y.astype(np.float32)
    if np.issubdtype(out.dtype.numpy, np.integer):
        limits = np.iinfo(out.dtype.numpy)
        exact = np.clip(np.rint(exact), limits.min, limits.max)
    np.testing.assert_array_equal(got.astype(np.float32), exact.astype(out.dtype.numpy).astype(np.float32))


def test_integers_round_to_even_and_saturate() -> None:
    data = np.array([[0.5, 1.5, 2.5, -0.5, 3e9, -3e9, np.nan, np.inf, -np.inf, 2147483520.0]], np.float32)
    bench = Bench()
    source = bench.load(data)
    signed, unsigned, byte = (bench.tile(data.shape, t) for t in ("int32", "uint32", "int8"))
    for out in (signed, unsigned, byte):
        bench.emit("copy", (out,), (source,))
    top, low = 2**31 - 1, -(2**31)
    got = bench.run(signed, unsigned, byte)
    assert got[0].tolist() == [[0, 2, 2, 0, top, low, 0, top, low, 2147483520]]
    assert got[1].tolist() == [[0, 2, 2, 0, 3000000000, 0, 0, 2**32 - 1, 0, 2147483520]]
    assert got[2].tolist() == [[0, 2, 2, 0, 127, -128, 0, 127, -128, 127]]


@pytest.mark.parametrize("dtype", ["float8_e4m3", "float8_e4m3fn", "float8_e5m2", "bfloat16", "float16"])
def test_small_floats_read_and_write_every_pattern(dtype: str) -> None:
    wide = dtype in ("bfloat16", "float16")
    kind = np.dtype(np.float16) if dtype == "float16" else np.dtype(getattr(ml_dtypes, dtype))
    patterns = (
        np.arange(2**16 if wide else 2**8)
        .astype(np.uint16 if wide else np.uint8)
        .view(kind)
        .reshape(1 if not wide else 64, -1)
    )
    bench = Bench()
    source = bench.load(patterns)
    as_fp32, back = bench.tile(patterns.shape), bench.tile(patterns.shape, dtype)
    bench.emit("copy", (as_fp32,), (source,))
    bench.emit("copy", (back,), (as_fp32,))
    got, again = bench.run(as_fp32, back)
    np.testing.assert_array_equal(got, patterns.astype(np.float32))
    np.testing.assert_array_equal(again.astype(np.float32), patterns.astype(np.float32))


@pytest.mark.parametrize("dtype", ["float8_e4m3", "float8_e4m3fn", "float8_e5m2", "bfloat16", "float16"])
def test_small_floats_round_to_even(dtype: str) -> None:
    kind = np.dtype(np.float16) if dtype == "float16" else np.dtype(getattr(ml_dtypes, dtype))
    largest = float(ml_dtypes.finfo(kind).max)
    rng = np.random.default_rng(9)
    data = (rng.standard_normal((128, 200)) * 2.0 ** rng.integers(-20, 7, (128, 200))).astype(np.float32)
    data = np.clip(data, -largest, largest)
    bench = Bench()
    out = bench.tile(data.shape, dtype)
    bench.emit("copy", (out,), (bench.load(data),))
    np.testing.assert_array_equal(bench.run(out).astype(np.float32), data.astype(kind).astype(np.float32))


def test_float8_overflow_is_infinity_only_where_there_is_one() -> None:
    data = np.array([[500.0, -1e9, np.inf]], np.float32)
    bench = Bench()
    source = bench.load(data)
    legacy, ocp = bench.tile(data.shape, "float8_e4m3"), bench.tile(data.shape, "float8_e4m3fn")
    bench.emit("copy", (legacy,), (source,))
    bench.emit("copy", (ocp,), (source,))
    got = [x.astype(np.float32).tolist() for x in bench.run(legacy, ocp)]
    assert got == [[[np.inf, -np.inf, np.inf]], [[448.0, -448.0, 448.0]]]


def test_tfloat32_keeps_ten_bits() -> None:
    data = np.array([[1 + 2**-10, 1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-12]], np.float32)
    bench = Bench()
    out = bench.tile(data.shape, "tfloat32")
    bench.emit("copy", (out,), (bench.load(data),))
    assert bench.run(out).tolist() == [[1 + 2**-10, 1.0, 1 + 2**-9, 1.0]]


def test_copies_of_equal_types_keep_all_bits() -> None:
    data = np.array([[2**31 - 1, -(2**31) + 1, 16777217, -1]], np.int32)
    bench = Bench()
    out = bench.tile(data.shape, "int32")
    bench.emit("copy", (out,), (bench.load(data),))
    np.testing.assert_array_equal(bench.run(out), data)


@pytest.mark.parametrize(
    ("op", "function"),
    [
        ("bitwise_and", np.bitwise_and),
        ("bitwise_or", np.bitwise_or),
        ("bitwise_xor", np.bitwise_xor),
        ("left_shift", np.left_shift),
        ("right_shift", np.right_shift),
    ],
)
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
def test_bitwise_operators_work_on_patterns(op: str, function: Callable[[Any, Any], Any], dtype: str) -> None:
    rng = np.random.default_rng(11)
    a = rng.integers(0, np.iinfo(dtype).max, _SHAPE, dtype=dtype, endpoint=True)
    b = rng.integers(0, 8, _SHAPE, dtype=dtype) if "shift" in op else rng.permuted(a)
    bench = Bench()
    tensor, scalar = bench.tile(_SHAPE, dtype), bench.tile(_SHAPE, dtype)
    loaded = bench.load(a)
    bench.emit("tensor_tensor", (tensor,), (loaded, bench.load(b)), (op, False))
    bench.emit("tensor_scalar", (scalar,), (loaded, 5, None), (op, False, None, False))
    got = bench.run(tensor, scalar)
    np.testing.assert_array_equal(got[0], function(a, b))
    np.testing.assert_array_equal(got[1], function(a, np.array(5, dtype)))


def test_shifts_of_signed_bytes() -> None:
    data = np.array([[-128, -1, 64]], np.int8)
    bench = Bench()
    source = bench.load(data)
    logical, arithmetic, inverted = (bench.tile(data.shape, "int8") for _ in range(3))
    bench.emit("tensor_scalar", (logical,), (source, 1, None), ("right_shift", False, None, False))
    bench.emit("tensor_scalar", (arithmetic,), (source, 1, None), ("arithmetic_right_shift", False, None, False))
    bench.emit("tensor_scalar", (inverted,), (source, None, None), ("invert", False, None, False))
    got = [x.tolist() for x in bench.run(logical, arithmetic, inverted)]
    assert got == [[[64, 127, 32]], [[-64, -1, 32]], [[127, 0, -65]]]


@pytest.mark.parametrize("op", ["add", "subtract", "multiply", "maximum", "minimum", "less", "power"])
@pytest.mark.parametrize("dtype", ["int32", "uint32"])
def test_native_integers_wrap(op: str, dtype: str) -> None:
    rng = np.random.default_rng(12)
    info = np.iinfo(dtype)
    a = rng.integers(info.min, info.max, _SHAPE, dtype=dtype, endpoint=True)
    b = rng.integers(0, 5, _SHAPE, dtype=dtype) if op == "power" else rng.permuted(a)
    bench = Bench()
    out = bench.tile(_SHAPE, dtype)
    bench.emit("tensor_tensor", (out,), (bench.load(a), bench.load(b)), (op, True), "gpsimd")
    with np.errstate(all="ignore"):
        expected = getattr(np, op)(a, b).astype(dtype)
    np.testing.assert_array_equal(bench.run(out), expected)


def test_fp32_arithmetic_on_integers_loses_what_fp32_cannot_hold() -> None:
    data = np.array([[16777217, 5]], np.int32)
    bench = Bench()
    out = bench.tile(data.shape, "int32")
    bench.emit("tensor_scalar", (out,), (bench.load(data), 1.0, None), ("multiply", False, None, False))
    assert bench.run(out).tolist() == [[16777216, 5]]


@pytest.mark.parametrize("reverse0", [False, True])
@pytest.mark.parametrize("reverse1", [False, True])
def test_scalar_tensor_tensor_reverses_each_step(reverse0: bool, reverse1: bool) -> None:
    data, column, other = _numbers(13), _numbers(14, (128, 1)), _numbers(15)
    bench = Bench()
    out = bench.tile(_SHAPE)
    operands = (bench.load(data), bench.load(column), bench.load(other))
    bench.emit("scalar_tensor_tensor", (out,), operands, ("subtract", "subtract", reverse0, reverse1))
    between = column - data if reverse0 else data - column
    np.testing.assert_array_equal(bench.run(out), other - between if reverse1 else between - other)


def test_results_may_overwrite_an_operand_in_place() -> None:
    data, other = _numbers(16), _numbers(17)
    bench = Bench()
    tile, second = bench.load(data), bench.load(other)
    bench.emit("scalar_tensor_tensor", (tile,), (second, 2.0, tile), ("multiply", "subtract", False, False))
    np.testing.assert_array_equal(bench.run(tile), other * np.float32(2) - data)


@pytest.mark.parametrize("width", [40, 3000])
def test_reads_come_before_writes_where_operands_overlap(width: int) -> None:
    data = _numbers(18, (128, width))
    bench = Bench()
    tile = bench.load(data)
    bench.emit(
        "tensor_scalar",
        (free_slice(tile, 1, width),),
        (free_slice(tile, 0, width - 1), 1.0, None),
        ("add", False, None, False),
    )
    expected = data.copy()
    expected[:, 1:] = data[:, :-1] + np.float32(1)
    np.testing.assert_array_equal(bench.run(tile), expected)


def test_halves_of_one_tile_do_not_disturb_each_other() -> None:
    data = _numbers(19, (128, 64))
    bench = Bench()
    tile = bench.load(data)
    low, high = free_slice(tile, 0, 32), free_slice(tile, 32, 64)
    bench.emit("tensor_tensor", (low,), (low, high), ("add", False))
    np.testing.assert_array_equal(bench.run(low), data[:, :32] + data[:, 32:])


def test_views_of_any_stride_and_shape_are_walked_in_row_major_order() -> None:
    data = _numbers(20, (64, 4, 6, 8))
    bench = Bench()
    tile = bench.load(data)
    row = tile.strides[0]
    permuted = view(tile, (64, 8, 4, 6), (row, 1, 48, 8))
    reversed_ = view(tile, (64, 192), (row, -1), 191)
    spread = view(tile, (64, 16, 12), (row, 0, 3))  # a broadcast of every third element
    out = bench.tile((64, 192), "bfloat16")
    total = bench.tile((64, 2, 96))
    bench.emit("tensor_tensor", (out,), (permuted, reversed_), ("add", False))
    bench.emit("tensor_tensor", (total,), (spread, permuted), ("multiply", False))
    got, product = bench.run(out, total)
    flat = data.reshape(64, 192)
    moved = data.transpose(0, 3, 1, 2).reshape(64, 192)
    np.testing.assert_array_equal(
        got.astype(np.float32), (moved + flat[:, ::-1]).astype(ml_dtypes.bfloat16).astype(np.float32)
    )
    repeated = np.broadcast_to(flat[:, None, 0:36:3], (64, 16, 12)).reshape(64, 192)
    np.testing.assert_array_equal(product.reshape(64, 192), repeated * moved)


def test_predicated_copies_leave_the_rest() -> None:
    old, new = _numbers(21), _numbers(22)
    predicate = (np.random.default_rng(23).random(_SHAPE) > 0.5).astype(np.uint8) * 7
    bench = Bench()
    mask, fresh = bench.load(predicate), bench.load(new)
    by_tile, reversed_, by_number = (bench.load(old) for _ in range(3))
    bench.emit("copy_predicated", (by_tile,), (fresh, mask), (False,))
    bench.emit("copy_predicated", (reversed_,), (fresh, mask), (True,))
    bench.emit("copy_predicated", (by_number,), (2.5, mask), (False,))
    got = bench.run(by_tile, reversed_, by_number)
    np.testing.assert_array_equal(got[0], np.where(predicate, new, old))
    np.testing.assert_array_equal(got[1], np.where(predicate, old, new))
    np.testing.assert_array_equal(got[2], np.where(predicate, np.float32(2.5), old))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8", "float8_e5m2"])
def test_fill_writes_every_element(dtype: str) -> None:
    bench = Bench()
    out = bench.tile((100, 3000), dtype)
    bench.emit("fill", (out,), (), (3,))
    assert (bench.run(out).astype(np.float32) == 3).all()


def test_shuffle_moves_partitions_within_quadrants() -> None:
    data, old = _numbers(24), _numbers(25)
    mask = [255, *range(31)]
    bench = Bench()
    out = bench.load(old)
    bench.emit("shuffle", (out,), (bench.load(data),), (tuple(mask),))
    in_place = bench.load(data)
    bench.emit("shuffle", (in_place,), (in_place,), (tuple(reversed(range(32))),))
    got, turned = bench.run(out, in_place)
    expected = old.copy()
    for partition in range(128):
        if mask[partition % 32] != 255:
            expected[partition] = data[partition // 32 * 32 + mask[partition % 32]]
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(turned, data.reshape(4, 32, -1)[:, ::-1].reshape(_SHAPE))


def test_operands_of_unequal_size_are_refused() -> None:
    bench = Bench()
    out = bench.tile((128, 4))
    bench.emit(
        "tensor_tensor", (out,), (bench.load(_numbers(1, (128, 4))), bench.load(_numbers(2, (128, 5)))), ("add", False)
    )
    with pytest.raises(_engines.ProgramFault, match="128 partitions of 5 elements"):
        bench.run(out)
