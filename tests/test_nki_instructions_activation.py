"""Functions of the Scalar engine against float64, and what surrounds them: scale, bias, accumulators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from nki_bench import Bench, view

_INF = np.inf


def _sigmoid(x: Any) -> Any:
    with np.errstate(over="ignore"):
        return np.where(x >= 0, 1 / (1 + np.exp(-x)), np.exp(np.minimum(x, 0)) / (1 + np.exp(np.minimum(x, 0))))


def _normal_share(x: Any) -> Any:
    return torch.special.erfc(torch.from_numpy(-x / np.sqrt(2))).numpy() / 2


def _bell(x: Any) -> Any:
    return np.exp(-x * x / 2) / np.sqrt(2 * np.pi)


def _tanh_argument(x: Any) -> Any:
    return 2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)


def _gelu_tanh_dx(x: Any) -> Any:
    s = _sigmoid(_tanh_argument(x))
    return s + x * s * (1 - s) * 2 * np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x**2)


def _swish_dx(x: Any, scale: float) -> Any:
    s = _sigmoid(scale * x)
    return s + scale * x * s * (1 - s)


# Name: the function of float64, the arguments' range, the tolerance relative to the result and to 1.
_FUNCTIONS: dict[str, tuple[Callable[[Any], Any], float, float, float, float]] = {
    "copy": (lambda x: x, -1e3, 1e3, 0, 0),
    "square": (np.square, -1e3, 1e3, 1e-7, 0),
    "sqrt": (np.sqrt, 0, 1e3, 1e-7, 0),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 1e-3, 1e3, 2e-7, 0),
    "reciprocal": (lambda x: 1 / x, 1e-3, 1e3, 1e-7, 0),
    "exp": (np.exp, -87, 88, 2e-7, 0),
    "log": (np.log, 1e-6, 1e6, 2e-7, 2e-8),
    "sin": (np.sin, -np.pi, np.pi, 2e-7, 5e-8),
    "cos": (np.cos, -1e3, 1e3, 2e-7, 1e-9),
    "tan": (np.tan, -1e3, 1e3, 2e-7, 1e-9),
    "arctan": (np.arctan, -50, 50, 3e-7, 0),
    "tanh": (np.tanh, -12, 12, 3e-7, 0),
    "sigmoid": (_sigmoid, -80, 80, 3e-7, 0),
    "relu": (lambda x: np.maximum(x, 0), -5, 5, 0, 0),
    "gelu": (lambda x: x * _normal_share(x), -12, 12, 1e-6, 0),
    "gelu_dx": (lambda x: _normal_share(x) + x * _bell(x), -12, 12, 1e-6, 3e-7),
    "gelu_apprx_tanh": (lambda x: x * _sigmoid(_tanh_argument(x)), -4, 12, 2e-6, 0),
    "gelu_apprx_tanh_dx": (_gelu_tanh_dx, -12, 12, 1e-6, 5e-7),
    "gelu_apprx_sigmoid": (lambda x: x * _sigmoid(1.702 * x), -8, 12, 1e-6, 0),
    "gelu_apprx_sigmoid_dx": (lambda x: _swish_dx(x, 1.702), -12, 12, 1e-6, 3e-7),
    "silu": (lambda x: x * _sigmoid(x), -20, 20, 4e-7, 0),
    "silu_dx": (lambda x: _swish_dx(x, 1.0), -20, 20, 1e-6, 3e-7),
    "softplus": (lambda x: np.logaddexp(x, 0), -20, 20, 3e-7, 0),
    "mish": (lambda x: x * np.tanh(np.logaddexp(x, 0)), -20, 20, 5e-7, 0),
    "erf": (lambda x: torch.special.erf(torch.from_numpy(x)).numpy(), -6, 6, 3e-7, 0),
    "erf_dx": (lambda x: 2 / np.sqrt(np.pi) * np.exp(-x * x), -6, 6, 4e-7, 0),
    "sign": (np.sign, -3, 3, 0, 0),
    "abs": (np.abs, -3, 3, 0, 0),
    "floor": (np.floor, -1e3, 1e3, 0, 0),
    "ceil": (np.ceil, -1e3, 1e3, 0, 0),
    "trunc": (np.trunc, -1e3, 1e3, 0, 0),
}


def _activate(x: np.ndarray[Any, Any], function: str) -> np.ndarray[Any, Any]:
    bench = Bench()
    out = bench.tile(x.shape)
    bench.emit("activation", (out, None), (bench.load(x), None, 1.0), (function, None, "idle"), "scalar")
    return bench.run(out)


@pytest.mark.parametrize("function", _FUNCTIONS)
def test_functions_are_as_precise_as_fp32_allows(function: str) -> None:
    reference, low, high, relative, absolute = _FUNCTIONS[function]
    x = np.linspace(low, high, 128 * 500).astype(np.float32).reshape(128, 500)
    if low < 0:
        x[:8] *= 1e-4
    np.testing.assert_allclose(_activate(x, function), reference(x.astype(np.float64)), rtol=relative, atol=absolute)


_LIMITS: dict[str, tuple[float, float]] = {
    "exp": (0, _INF), "tanh": (-1, 1), "sigmoid": (0, 1), "relu": (0, _INF), "gelu": (0, _INF), "gelu_dx": (0, 1),
    "gelu_apprx_tanh": (0, _INF), "gelu_apprx_tanh_dx": (0, 1), "gelu_apprx_sigmoid": (0, _INF),
    "gelu_apprx_sigmoid_dx": (0, 1), "silu": (0, _INF), "silu_dx": (0, 1), "softplus": (0, _INF), "mish": (0, _INF),
    "erf": (-1, 1), "erf_dx": (0, 0), "sign": (-1, 1), "arctan": (-np.pi / 2, np.pi / 2), "log": (np.nan, _INF),
}  # fmt: skip


@pytest.mark.parametrize("function", _LIMITS)
def test_functions_reach_their_limits_and_let_nan_through(function: str) -> None:
    got = _activate(np.array([[-_INF, _INF, np.nan]], np.float32), function)
    np.testing.assert_allclose(got, np.array([[*_LIMITS[function], np.nan]]), rtol=1e-6)


@pytest.mark.parametrize("function", ["exp", "tanh", "gelu", "silu", "softplus", "mish", "erf"])
def test_small_arguments_keep_their_digits(function: str) -> None:
    x = np.array([[1e-30, -1e-30, 1e-8, -3e-6, 0.0, -0.0]], np.float32)
    reference, _, _, relative, _ = _FUNCTIONS[function]
    np.testing.assert_allclose(_activate(x, function), reference(x.astype(np.float64)), rtol=relative)


def test_sine_outside_of_its_range_is_extrapolated() -> None:
    assert abs(_activate(np.array([[9.0]], np.float32), "sin")[0, 0] - 27.65) < 1e-3


@pytest.mark.parametrize("n", [1, 5, 64, 2500])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scale_and_bias_come_before_the_function_and_sums_after_it(n: int, dtype: str) -> None:
    rng = np.random.default_rng(1)
    data = rng.standard_normal((128, n)).astype(np.float32)
    scale, bias = (rng.standard_normal((128, 1)).astype(np.float32) for _ in range(2))
    bench = Bench()
    source, columns = bench.load(data, dtype), (bench.load(bias), bench.load(scale))
    out, total, grand = bench.tile((128, n), dtype), bench.tile((128, 1)), bench.tile((128, 1))
    bench.emit("activation", (out, total), (source, *columns), ("exp", "add", "reset_reduce"), "scalar")
    bench.emit("activation", (out, grand), (source, *columns), ("exp", "add", "reduce"), "scalar")
    values, once, twice, read = bench.run(out, total, grand, source)
    exact = np.exp((read.astype(np.float32) * scale + bias).astype(np.float64))
    np.testing.assert_allclose(values.astype(np.float64), exact, rtol=2e-7 if dtype == "float32" else 2**-8)
    np.testing.assert_allclose(once[:, 0], exact.sum(1), rtol=1e-6)
    np.testing.assert_allclose(twice[:, 0], 2 * exact.sum(1), rtol=1e-6)


def test_reset_forgets_and_idle_keeps_the_sum() -> None:
    ones = np.ones((4, 10), np.float32)
    bench = Bench()
    source = bench.load(ones)
    out = bench.tile(ones.shape)
    results = [bench.tile((4, 1)) for _ in range(3)]
    for result, command in zip(results, ("reset_reduce", "idle", "reset"), strict=True):
        bench.emit("activation", (out, result), (source, 0.0, 1.0), ("copy", "add", command), "scalar")
    assert [float(r[0, 0]) for r in bench.run(*results)] == [10, 10, 0]


def test_the_sum_may_overwrite_the_destination() -> None:
    bench = Bench()
    tile = bench.load(np.full((128, 1), 3.0, np.float32))
    bench.emit("activation", (tile, tile), (tile, 1.0, 2.0), ("square", "add", "reset_reduce"), "scalar")
    assert (bench.run(tile) == 49).all()


@pytest.mark.parametrize("reduce_op", ["add", "maximum", "minimum", "abs_max", "abs_min"])
def test_activate2_has_two_operators_and_a_slope(reduce_op: str) -> None:
    rng = np.random.default_rng(2)
    data, slope = rng.standard_normal((128, 70)).astype(np.float32), rng.random((128, 1)).astype(np.float32)
    bench = Bench()
    out, total = bench.tile(data.shape), bench.tile((128, 1))
    attrs = ("prelu", "multiply", "subtract", False, True, reduce_op, "reset_reduce")
    bench.emit("activate2", (out, total), (bench.load(data), 2.0, 0.5, bench.load(slope)), attrs, "scalar")
    got, reduced = bench.run(out, total)
    inner = np.float32(0.5) - data * np.float32(2)
    expected = np.where(inner < 0, inner * slope, inner)
    np.testing.assert_array_equal(got, expected)
    pick = {
        "add": expected.astype(np.float64).sum(1),
        "maximum": expected.max(1),
        "minimum": expected.min(1),
        "abs_max": np.abs(expected).max(1),
        "abs_min": np.abs(expected).min(1),
    }[reduce_op]
    found = np.abs(reduced[:, 0]) if reduce_op.startswith("abs") else reduced[:, 0]
    np.testing.assert_allclose(found, pick, rtol=1e-5, atol=1e-5)


def test_exponential_subtracts_the_maximum_and_sums() -> None:
    data = np.random.default_rng(3).standard_normal((128, 300)).astype(np.float32) * 10
    bench = Bench()
    largest = data.max(1, keepdims=True)
    source, column, start = bench.load(data), bench.load(largest), bench.load(np.ones((128, 1), np.float32))
    out, first, second = bench.tile(data.shape, "bfloat16"), bench.tile((128, 1)), bench.tile((128, 1))
    bench.emit("exponential", (out, first), (source, column, None), ("reset_reduce",))
    bench.emit("exponential", (out, second), (source, column, start), ("load_reduce",))
    got, total, more = bench.run(out, first, second)
    exact = np.exp((data - largest).astype(np.float64))
    np.testing.assert_allclose(got.astype(np.float64), exact, rtol=2**-8)
    np.testing.assert_allclose(total[:, 0], exact.sum(1), rtol=1e-6)
    np.testing.assert_allclose(more[:, 0], exact.sum(1) + 1, rtol=1e-6)


def test_reciprocal_is_correctly_rounded() -> None:
    data = np.random.default_rng(4).standard_normal((128, 33)).astype(np.float32)
    bench = Bench()
    out = bench.tile(data.shape)
    bench.emit("reciprocal", (out,), (bench.load(data),))
    np.testing.assert_array_equal(bench.run(out), np.float32(1) / data)


def test_each_partition_has_its_own_accumulator() -> None:
    bench = Bench()
    tile, sums = bench.load(np.ones((128, 6), np.float32)), bench.tile((128, 1))
    halves = [view(tile, (64, 6), (6, 1), 6 * first) for first in (0, 64)]
    results = [view(sums, (64, 1), (1, 1), first) for first in (0, 64)]
    for half, command in ((0, "reset_reduce"), (1, "reset_reduce"), (1, "reduce"), (0, "reduce"), (0, "reduce")):
        operands = (halves[half], 0.0, 1.0)
        bench.emit("activation", (halves[half], results[half]), operands, ("copy", "add", command), "scalar")
    assert bench.run(sums)[[0, 127], 0].tolist() == [18, 12]
