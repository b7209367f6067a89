"""Instructions about places: selections, searches, gathers, random numbers, MX groups; against NumPy."""

from __future__ import annotations

import operator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from nki_bench import Bench, free_slice

from nki import _engines

_LEAST = float(np.finfo(np.float32).min)


def _numbers(seed: int, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _affine(partitions: int, pattern: tuple[tuple[int, int], ...], offset: int, channel: int) -> np.ndarray[Any, Any]:
    value = offset + channel * np.arange(partitions).reshape(-1, *(1,) * len(pattern))
    for axis, (step, count) in enumerate(pattern):
        value = value + step * np.arange(count).reshape(*(1,) * (axis + 1), -1, *(1,) * (len(pattern) - axis - 1))
    return value.reshape(partitions, -1)


@pytest.mark.parametrize("pattern", [((1, 64),), ((-3, 5), (100, 7)), ((10, 2), (0, 3), (1, 900)), ((1, 1),)])
@pytest.mark.parametrize("dtype", ["int32", "float32", "bfloat16", "uint8"])
def test_iota(pattern: tuple[tuple[int, int], ...], dtype: str) -> None:
    expected = _affine(128, pattern, 3, -2)
    bench = Bench()
    out = bench.tile(expected.shape, dtype)
    bench.emit("iota", (out,), (3,), (pattern, -2), "gpsimd")
    if dtype == "uint8":
        expected = np.clip(expected, 0, 255)
    np.testing.assert_array_equal(
        bench.run(out), expected.astype(np.float32).astype(out.dtype.numpy) if dtype != "int32" else expected
    )


@pytest.mark.parametrize("op", ["equal", "greater_equal", "less", "not_equal"])
@pytest.mark.parametrize(
    ("source", "target"), [("float32", "float32"), ("bfloat16", "bfloat16"), ("float32", "bfloat16")]
)
def test_affine_select(op: str, source: str, target: str) -> None:
    data = _numbers(1, (128, 130))
    bench = Bench()
    tile, out = bench.load(data, source), bench.tile(data.shape, target)
    bench.emit("affine_select", (out,), (tile, 5), (((-1, 130),), 1, -9984.0, op), "gpsimd")
    compare = {"equal": operator.eq, "greater_equal": operator.ge, "less": operator.lt, "not_equal": operator.ne}[op]
    got, read = bench.run(out, tile)
    keep = compare(_affine(128, ((-1, 130),), 5, 1), 0)
    expected = np.where(keep, read.astype(np.float32), np.float32(-9984.0)).astype(out.dtype.numpy)
    np.testing.assert_array_equal(got.astype(np.float32), expected.astype(np.float32))


def test_affine_select_keeps_all_bits_of_integers() -> None:
    data = np.full((128, 4), 2**31 - 1, np.int32)
    bench = Bench()
    out = bench.tile(data.shape, "int32")
    bench.emit("affine_select", (out,), (bench.load(data), 0), (((1, 4),), 0, 7.0, "greater"), "gpsimd")
    assert bench.run(out)[0].tolist() == [7, 2**31 - 1, 2**31 - 1, 2**31 - 1]


@pytest.mark.parametrize("n", [20, 4100])
def test_range_select(n: int) -> None:
    data = _numbers(2, (128, n))
    low = np.arange(128, dtype=np.float32)[:, None] - 10
    high = low + np.float32(n / 2)
    bench = Bench()
    source, bounds = bench.load(data), (bench.load(low), bench.load(high))
    out, first, second = bench.tile(data.shape, "bfloat16"), bench.tile((128, 1)), bench.tile((128, 1))
    attrs = ("greater_equal", "less")
    bench.emit("range_select", (out, first), (source, *bounds), (*attrs, "reset_reduce", "maximum", 0, _LEAST))
    bench.emit("range_select", (out, second), (source, *bounds), (*attrs, "reduce", "maximum", 100, _LEAST))
    got, one, two = bench.run(out, first, second)

    def select(start: int) -> Any:
        index = start + np.arange(n, dtype=np.float32)
        return np.where((index >= low) & (index < high), data, np.float32(_LEAST))

    np.testing.assert_array_equal(got.astype(np.float32), select(100).astype(ml_dtypes.bfloat16).astype(np.float32))
    np.testing.assert_array_equal(one[:, 0], select(0).max(1))
    np.testing.assert_array_equal(two[:, 0], np.maximum(select(0).max(1), select(100).max(1)))


@pytest.mark.parametrize("reverse", [False, True])
def test_select_reduce(reverse: bool) -> None:
    data, other = _numbers(3, (128, 77)), _numbers(4, (128, 1))
    predicate = np.random.default_rng(5).integers(-1, 2, data.shape).astype(np.int8)
    bench = Bench()
    out, largest = bench.tile(data.shape), bench.tile((128, 1))
    operands = (bench.load(predicate), bench.load(data), bench.load(other))
    bench.emit("select_reduce", (out, largest), operands, ("reset_reduce", "maximum", reverse))
    got, reduced = bench.run(out, largest)
    expected = np.where((predicate != 0) ^ reverse, data, other)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(reduced[:, 0], expected.max(1))


@pytest.mark.parametrize("n", [8, 33, 5000])
def test_max8_is_in_descending_order_with_duplicates(n: int) -> None:
    data = np.random.default_rng(6).integers(-50, 50, (128, n)).astype(np.float32)
    bench = Bench()
    out = bench.tile((128, 8))
    bench.emit("max8", (out,), (bench.load(data),))
    np.testing.assert_array_equal(bench.run(out), -np.sort(-data, axis=1)[:, :8])


def _successive(row: Any, values: Any, order: Any) -> list[int]:
    taken: set[int] = set()
    found = [-1] * 8
    for k in order:
        places = [i for i in np.flatnonzero(row == values[k]) if i not in taken]
        if places:
            found[k] = int(places[0])
            taken.add(found[k])
    return found


@pytest.mark.parametrize("n", [11, 3000])
@pytest.mark.parametrize("index", ["uint16", "uint32"])
def test_find_index8_and_match_replace8_pair_duplicates(n: int, index: str) -> None:
    rng = np.random.default_rng(7)
    data = rng.integers(0, 40, (64, n)).astype(np.float32)
    values = rng.integers(0, 42, (64, 8)).astype(np.float32)
    values[0] = 8
    bench = Bench()
    source, wanted = bench.load(data), bench.load(values)
    found, places, replaced = bench.tile((64, 8), index), bench.tile((64, 8), index), bench.tile(data.shape)
    bench.emit("find_index8", (found,), (source, wanted))
    bench.emit("match_replace8", (replaced, places), (source, wanted), (-1.0,))
    bench.emit("match_replace8", (source, None), (source, wanted), (-1.0,))
    got, where, after, in_place = bench.run(found, places, replaced, source)
    kind = np.dtype(index)
    for row in range(64):
        forward = _successive(data[row], values[row], range(8))
        backward = _successive(data[row], values[row], reversed(range(8)))
        np.testing.assert_array_equal(got[row], np.array(forward, np.int64).astype(kind))
        np.testing.assert_array_equal(where[row], np.array(backward, np.int64).astype(kind))
        expected = data[row].copy()
        expected[[i for i in backward if i >= 0]] = -1
        np.testing.assert_array_equal(after[row], expected)
        np.testing.assert_array_equal(in_place[row], expected)


def test_the_documented_example_of_match_replace8() -> None:
    data = np.array([[1, 2, 3, 4, 8, 8, 8, 8, 8, 8, 8]], np.float32)
    values = np.array([[3, 8, 8, 8, 8, 8, 8, 8]], np.float32)
    bench = Bench()
    out, places = bench.tile(data.shape), bench.tile((1, 8), "uint32")
    bench.emit("match_replace8", (out, places), (bench.load(data), bench.load(values)), (0.0,))
    assert bench.run(places).tolist() == [[2, 10, 9, 8, 7, 6, 5, 4]]


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_nonzero_with_count_works_on_every_16th_partition(dtype: str) -> None:
    data = np.random.default_rng(8).integers(-1, 2, (48, 100)).astype(dtype)
    bench = Bench()
    out = bench.load(np.full((48, 101), 99, np.int32))
    bench.emit("nonzero_with_count", (out,), (bench.load(data),), (16, -1), "gpsimd")
    got = bench.run(out)
    for row in range(48):
        if row % 16:
            assert (got[row] == 99).all()
            continue
        places = np.flatnonzero(data[row]) + 16
        assert got[row].tolist() == [*places, *[-1] * (100 - len(places)), len(places)]


def test_the_documented_example_of_sequence_bounds() -> None:
    ids = np.array([[0, 1, 1, 2, 2, 2, 0, 3, 3]], np.int32)
    bench = Bench()
    out = bench.tile((1, 2, 9), "int32")
    bench.emit("sequence_bounds", (out,), (bench.load(ids),), (), "gpsimd")
    assert bench.run(out).tolist() == [[[9, 1, 1, 3, 3, 3, 9, 7, 7], [-1, 3, 3, 6, 6, 6, -1, 9, 9]]]


def test_topk_reads_columns_of_16_partitions() -> None:
    rng = np.random.default_rng(9)
    data = np.stack([rng.permutation(96).reshape(16, 6) for _ in range(2)]).reshape(32, 6).astype(np.float32)
    bench = Bench()
    values, indices = bench.tile((32, 10), "bfloat16"), bench.tile((32, 10), "uint32")
    bench.emit("topk", (values, indices), (bench.load(data, "bfloat16"),), (90,), "gpsimd")
    got, places = bench.run(values, indices)
    for row in range(32):
        stream = data[row // 16 * 16 : row // 16 * 16 + 16].T.reshape(-1)[:90]
        order = np.argsort(stream)[-10:]
        np.testing.assert_array_equal(places[row], order)
        np.testing.assert_array_equal(got[row].astype(np.float32), stream[order])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8"])
def test_n_gather(dtype: str) -> None:
    rng = np.random.default_rng(10)
    data, indices = rng.integers(0, 200, (128, 30, 20)), rng.integers(0, 600, (128, 5, 9)).astype(np.uint32)
    bench = Bench()
    out = bench.tile(indices.shape, dtype)
    bench.emit("n_gather", (out,), (bench.load(data, dtype), bench.load(indices)), (), "gpsimd")
    expected = np.take_along_axis(data.reshape(128, -1), indices.reshape(128, -1).astype(np.int64), 1)
    np.testing.assert_array_equal(bench.run(out).astype(np.int64).reshape(128, -1), expected)


def test_a_gather_beyond_the_row_is_a_fault() -> None:
    bench = Bench()
    out = bench.tile((16, 1))
    index = bench.load(np.full((16, 1), 7, np.uint32))
    bench.emit("n_gather", (out,), (bench.load(_numbers(11, (16, 7))), index), (), "gpsimd")
    with pytest.raises(_engines.ProgramFault, match="index 7 in partition 0 is outside the 7 elements"):
        bench.run(out)


@pytest.mark.parametrize("count", [None, 50])
def test_local_gather(count: int | None) -> None:
    rng = np.random.default_rng(12)
    data, index = rng.random((128, 512, 4)).astype(np.float32), rng.integers(0, 512, (128, 4)).astype(np.uint16)
    n = count or 64
    bench = Bench()
    out = bench.tile((128, n, 4))
    operands = (bench.load(data), bench.load((index * 4).astype(np.uint16)))
    bench.emit("local_gather", (out,), operands, (4, count), "gpsimd")
    got = bench.run(out)
    for core in range(8):
        rows = slice(16 * core, 16 * core + 16)
        np.testing.assert_array_equal(got[rows], np.take(data[rows], index[rows].flatten(order="F")[:n], axis=1))


def test_random_numbers_repeat_with_their_seed_and_state() -> None:
    bench = Bench()
    seed = bench.load(np.array([[1234]], np.uint32))
    draws = [bench.tile((128, 200), "uint32") for _ in range(4)]
    state = bench.tile((128, 24), "uint32")
    bench.emit("set_rng_seed", (), (seed,))
    bench.emit("rng", (draws[0],), ())
    bench.emit("rand_get_state", (state,), ())
    bench.emit("rng", (draws[1],), ())
    bench.emit("set_rng_seed", (), (seed,))
    bench.emit("rng", (draws[2],), ())
    bench.emit("rand_set_state", (), (state,))
    bench.emit("rng", (draws[3],), ())
    first, second, again, continued = bench.run(*draws)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(second, continued)
    assert len(np.unique(first)) > 0.999 * first.size
    assert not np.array_equal(first, second)


def test_gpsimd_has_the_published_xorwow_generator() -> None:
    state = np.random.default_rng(13).integers(1, 2**32, (16, 6)).astype(np.uint32)
    bench = Bench()
    out = bench.tile((16, 9), "uint32")
    bench.emit("rand_set_state", (), (bench.load(state),), (), "gpsimd")
    bench.emit("rng", (out,), (), (), "gpsimd")
    got, mask = bench.run(out), 2**32 - 1
    for row in range(16):
        x, y, z, w, v, d = (int(s) for s in state[row])
        for i in range(9):
            t = x ^ (x >> 2)
            x, y, z, w = y, z, w, v
            v = (v ^ (v << 4) ^ t ^ (t << 1)) & mask
            d = (d + 362437) & mask
            assert got[row, i] == (v + d) & mask


def test_rand2_is_uniform_between_its_bounds() -> None:
    low = np.full((128, 1), -2.0, np.float32)
    bench = Bench()
    out = bench.tile((128, 2000))
    bench.emit("rand2", (out,), (bench.load(low), 6.0))
    got = bench.run(out)
    assert got.min() >= -2
    assert got.max() <= 6
    counts, _ = np.histogram(got, bins=16, range=(-2, 6))
    assert np.abs(counts / got.size - 1 / 16).max() < 2e-3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_dropout_zeroes_with_the_given_probability_and_scales_nothing(dtype: str) -> None:
    probability = np.linspace(0, 1, 128, dtype=np.float32)[:, None]
    bench = Bench()
    tile = bench.load(np.full((128, 4000), 3.0), dtype)
    out = bench.tile(tile.shape, dtype)
    bench.emit("dropout", (out,), (tile, bench.load(probability)))
    got = bench.run(out).astype(np.float32)
    assert set(np.unique(got)) == {0.0, 3.0}
    assert (got[0] == 3).all()
    assert (got[-1] == 0).all()
    assert np.abs((got == 0).mean(1) - probability[:, 0]).max() < 0.04


@pytest.mark.parametrize(
    ("dtype", "element", "reach"), [("float8_e4m3fn_x4", "float8_e4m3fn", 8), ("float8_e5m2_x4", "float8_e5m2", 15)]
)
@pytest.mark.parametrize("partitions", [32, 128])
def test_quantize_mx_shares_a_scale_among_8_partitions_of_4(
    dtype: str, element: str, reach: int, partitions: int
) -> None:
    rng = np.random.default_rng(14)
    data = rng.standard_normal((partitions, 400)) * 2.0 ** rng.integers(-10, 10, (partitions, 1))
    data[:8, :4] = 0
    source = data.astype(ml_dtypes.bfloat16)
    bench = Bench()
    out, scale = bench.tile((partitions, 100), dtype), bench.load(np.zeros((partitions, 100), np.uint8))
    bench.emit("quantize_mx", (out, scale), (bench.load(source),))
    packed, exponents = bench.run(out, scale)
    groups = source.astype(np.float64).reshape(partitions // 8, 8, 100, 4)
    largest = np.abs(groups).max((1, 3))
    with np.errstate(divide="ignore"):
        exponent = np.where(largest == 0, -127, np.floor(np.log2(largest)) - (reach - 1))
    quads = groups / 2.0 ** exponent[:, None, :, None]
    kind = getattr(ml_dtypes, element)
    expected = quads.reshape(partitions, 400).astype(np.float32).astype(kind)
    np.testing.assert_array_equal(packed.view(kind).astype(np.float32), expected.astype(np.float32))
    for group in range(partitions // 8):
        np.testing.assert_array_equal(exponents[group // 4 * 32 + group % 4], exponent[group] + 127)


def test_searches_walk_strided_views() -> None:
    data = _numbers(15, (128, 64))
    bench = Bench()
    out = bench.tile((128, 8))
    bench.emit("max8", (out,), (free_slice(bench.load(data), 1, 64, 3),))
    np.testing.assert_array_equal(bench.run(out), -np.sort(-data[:, 1::3], axis=1)[:, :8])
