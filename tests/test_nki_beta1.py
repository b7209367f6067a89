"""Kernels of the Beta 1 dialect: indices, masks, blocks, operators and what its decorators do."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
from neuronxcc.nki.indices import Index, Mask
from nki import errors


def random(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).uniform(-2, 2, shape).astype(np.float32)


# -- Index expressions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "expression",
    [
        lambda i, j: i * 3 + 1,
        lambda i, j: 7 - i * 2 + j,
        lambda i, j: (i + j * 5) * 2 - 4,
        lambda i, j: -i + np.int64(3) * j,
        lambda i, j: (i + 4 * j) // 3,
        lambda i, j: (i * 5 + j) % 4,
        lambda i, j: i * j,
    ],
)
def test_index_arithmetic_agrees_with_numpy(expression: Any) -> None:
    i, j = nl.arange(6)[:, None], nl.arange(2, 9)[None, :]
    a, b = np.arange(6)[:, None], np.arange(2, 9)[None, :]
    expected = np.broadcast_to(expression(a, b), np.broadcast_shapes(np.shape(expression(a, b))))
    found = expression(i, j)
    np.testing.assert_array_equal(found.dense(), expected)
    assert found.range() == (expected.min(), expected.max())


def test_sums_and_multiples_stay_affine_and_the_rest_does_not() -> None:
    i, j = nl.mgrid[0:4, 0:8]
    assert (i * 8 + j - 3).values is None
    assert ((i * 8 + j) // 2).values is not None


def test_mgrid_has_numpys_values_and_names() -> None:
    grid = nl.mgrid[0:4, 2:8, 0:9:3]
    for found, expected in zip(grid, np.mgrid[0:4, 2:8, 0:9:3], strict=True):
        np.testing.assert_array_equal(found.dense(), expected)
    assert grid.p is grid[0]
    assert grid.x is grid[1]
    assert grid.y is grid[2]


@pytest.mark.parametrize(
    ("comparison", "is_box"),
    [
        (lambda i, j: (i < 3) & (j >= 4), True),
        (lambda i, j: (2 * i + 1 <= 6) & (j * -3 > -14), True),
        (lambda i, j: i + j < 7, False),
        (lambda i, j: (i < 2) | (j > 5), False),
        (lambda i, j: ~(i < 3), True),
        (lambda i, j: i == 4, True),
        (lambda i, j: i != 4, False),
        (lambda i, j: (i > 20) & (j < 3), True),
    ],
)
def test_masks_agree_with_numpy(comparison: Any, is_box: bool) -> None:
    mask = comparison(nl.arange(6)[:, None], nl.arange(8)[None, :])
    expected = np.broadcast_to(comparison(np.arange(6)[:, None], np.arange(8)[None, :]), (6, 8))
    np.testing.assert_array_equal(np.broadcast_to(mask.dense(), (6, 8)), expected)
    box = mask.box((6, 8))
    assert (box is not None) == is_box
    if box is not None:
        filled = np.zeros((6, 8), bool)
        filled[box[0][0] : box[0][1], box[1][0] : box[1][1]] = True
        np.testing.assert_array_equal(filled, expected)


def test_and_between_masks_warns() -> None:
    i, j = nl.arange(6)[:, None], nl.arange(8)[None, :]
    with pytest.warns(errors.MaskTruthWarning, match="Combine masks with & and"):
        mask = (i < 3) and (j < 2)
    assert isinstance(mask, Mask)
    assert mask.shape == (1, 8)


def test_a_comparison_with_no_index_is_an_error() -> None:
    with pytest.raises(errors.IndexExpressionError, match="is no mask"):
        Mask.of("i < 3")
    assert Index.of(2.5) is None


# -- Loads and stores -------------------------------------------------------------------------------------------------


@nki.jit
def gathered_columns(x: Any) -> Any:
    """Columns 2 * j + 1 of x, with rows in reverse order."""
    i, j = nl.arange(8)[:, None], nl.arange(5)[None, :]
    y = nl.ndarray((8, 5), dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(y[i, j], nl.load(x[7 - i, 2 * j + 1]))
    return y


def test_affine_indices_choose_strided_elements() -> None:
    x = random(8, 12)
    np.testing.assert_array_equal(gathered_columns(x), x[::-1, 1:11:2])


def test_indices_that_are_not_affine_choose_elements_one_by_one() -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        i, j = nl.arange(8)[:, None], nl.arange(12)[None, :]
        y = nl.ndarray((8, 12), dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.load(x[(i * 3) % 8, j // 2])
        nl.store(y[i, (j * 5) % 12], tile * 2.0)
        return y

    x = random(8, 6)
    i, j = np.arange(8)[:, None], np.arange(12)[None, :]
    expected = np.empty((8, 12), np.float32)
    expected[i, (j * 5) % 12] = 2 * x[(i * 3) % 8, j // 2]
    np.testing.assert_array_equal(kernel(x), expected)


def test_a_slice_beside_an_index_takes_the_place_that_is_free() -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        y = nl.ndarray((16, 6), dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(y, nl.load(x[1, 0:16, 3 * nl.arange(6)[None, :]]))
        return y

    x = random(2, 16, 18)
    np.testing.assert_array_equal(kernel(x), x[1, :, ::3])


def test_a_box_mask_leaves_the_other_elements_alone() -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        i, j = nl.arange(128)[:, None], nl.arange(512)[None, :]
        y = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(y, nl.zeros((128, 512), x.dtype))
        mask = (i < 64) & (j < 256)
        nl.store(y[i, j], nl.square(nl.load(x[i, j]), mask=mask), mask=mask)
        return y

    x = random(128, 512)
    expected = np.zeros_like(x)
    expected[:64, :256] = x[:64, :256] ** 2
    np.testing.assert_allclose(kernel(x), expected, rtol=1e-6)


def test_a_mask_keeps_an_index_inside_of_its_tensor() -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        for block in nl.affine_range(2):
            i, j = nl.mgrid[0:128, 0:8]
            i = block * 128 + i
            tile = nl.load(x[i, j], mask=(i < 200))
            nl.store(y[i, j], tile + 1.0, mask=(i < 200))
        return y

    x = random(200, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the rest of the last tile is computed with, and not stored
        np.testing.assert_allclose(kernel(x), x + 1, rtol=1e-6)


def test_an_index_that_leaves_its_tensor_without_a_mask_is_an_error() -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        y = nl.ndarray((128, 8), dtype=x.dtype, buffer=nl.shared_hbm)
        i, j = nl.mgrid[0:128, 0:8]
        nl.store(y[i, j], nl.load(x[i, j + 1]))
        return y

    with pytest.raises(errors.TileBoundsError, match=r"has 8 elements, but is indexed from 1 to 8.*mask=\(i_p < 8\)"):
        kernel(random(128, 8))


def test_a_mask_that_is_no_box_masks_an_assignment_and_a_store() -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        i, j = nl.mgrid[0:16, 0:16]
        y = nl.ndarray((2, 16, 16), dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.zeros((16, 16), x.dtype)
        tile[i, j] = nl.multiply(nl.load(x), 3.0, mask=(j <= i))
        nl.store(y[0], tile)
        nl.store(y[1], nl.zeros((16, 16), x.dtype))
        nl.store(y[1, i, j], nl.load(x), mask=(i + j < 12))
        return y

    x = random(16, 16)
    found = kernel(x)
    np.testing.assert_allclose(found[0], np.tril(3 * x), rtol=1e-6)
    i, j = np.mgrid[0:16, 0:16]
    np.testing.assert_array_equal(found[1], np.where(i + j < 12, x, 0))


def test_a_tile_among_the_indices_chooses_rows_when_the_kernel_runs() -> None:
    @nki.jit
    def kernel(x: Any, rows: Any) -> Any:
        i_p, i_f = nl.arange(16)[:, None], nl.arange(8)[None, :]
        y = nl.ndarray((32, 8), dtype=x.dtype, buffer=nl.shared_hbm)
        index = nl.load(rows[i_p])
        nl.store(y, nl.zeros((32, 8), x.dtype))
        nl.store(y[index[i_p, 0], i_f], nl.load(x[index[i_p, 0], i_f]) * 2.0)
        return y

    x, rows = random(32, 8), np.random.default_rng(1).permutation(32)[:16].astype(np.int32)
    expected = np.zeros_like(x)
    expected[rows] = 2 * x[rows]
    np.testing.assert_array_equal(kernel(x, rows), expected)


def test_a_row_index_out_of_bounds_is_an_error() -> None:
    @nki.jit
    def kernel(x: Any, rows: Any) -> Any:
        i_p, i_f = nl.arange(16)[:, None], nl.arange(8)[None, :]
        y = nl.ndarray((16, 8), dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(y, nl.load(x[nl.load(rows[i_p]), i_f]))
        return y

    with pytest.raises(IndexError, match="out of bounds"):
        kernel(random(32, 8), np.full(16, 32, np.int32))


# -- Shapes of `a[0]` -------------------------------------------------------------------------------------------------


def test_an_integer_drops_its_dimension_in_hbm_and_keeps_the_partition_on_chip() -> None:
    shapes = {}

    @nki.jit
    def kernel(x: Any) -> Any:
        shapes["hbm"] = (x[0].shape, x[0, 1].shape, x[0, 1, 2].shape)
        tile = nl.load(x[0])
        shapes["chip"] = (tile[0].shape, tile[:, 3].shape, tile[2, 3].shape)
        blocks = nl.ndarray((3, nl.par_dim(8), 4), dtype=x.dtype)
        shapes["blocks"] = (blocks.shape, blocks[0].shape, blocks[0, 1].shape, blocks[0, :, 1].shape)
        y = nl.ndarray((8, 4), dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(y, tile)
        return y

    kernel(random(2, 8, 4))
    assert shapes["hbm"] == ((8, 4), (4,), (1,))
    assert shapes["chip"] == ((1, 4), (8, 1), (1, 1))
    assert shapes["blocks"] == ((3, 8, 4), (8, 4), (1, 4), (8, 1))


def test_dimensions_before_the_partition_take_integers_only() -> None:
    @nki.jit
    def kernel(x: Any) -> None:
        blocks = nl.ndarray((3, nl.par_dim(8), 4), dtype=x.dtype)
        blocks[0:2] = 0.0

    with pytest.raises(errors.BlockIndexError, match="index it with an integer"):
        kernel(random(8, 4))


# -- Operators --------------------------------------------------------------------------------------------------------


def test_operators_broadcast_as_numpy_does() -> None:
    @nki.jit
    def kernel(a: Any, column: Any, row: Any) -> Any:
        y = nl.ndarray((4, 64, 96), dtype=a.dtype, buffer=nl.shared_hbm)
        tile, c, r = nl.load(a), nl.load(column), nl.load(row)
        nl.store(y[0], 2.0 - tile * c)
        nl.store(y[1], (c - tile) + r)
        nl.store(y[2], nl.maximum(tile, r) / (c * c + 1.0))
        nl.store(y[3], -(nl.exp(abs(tile)) ** 1.0) if False else -nl.exp(abs(tile)))
        return y

    a, c, r = random(64, 96), random(64, 1, seed=1), random(1, 96, seed=2)
    found = kernel(a, c, r)
    expected = [2 - a * c, (c - a) + r, np.maximum(a, r) / (c * c + 1), -np.exp(np.abs(a))]
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(f, e, rtol=1e-5, atol=1e-6)


def test_a_tile_of_seven_dimensions_is_computed_in_parts() -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        y = nl.ndarray((4, 8, 8, 8), dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.load(x)
        out = nl.ndarray((4, 8, 8, 8), dtype=x.dtype)
        p, a, b, c, i, j, k = nl.mgrid[0:4, 0:2, 0:2, 0:2, 0:4, 0:4, 0:4]
        out[p, 2 * i + a, 2 * j + b, 2 * k + c] = tile[p, i, j, k] + tile[p, 3 - i, j, k] * 10.0
        nl.store(y, out)
        return y

    x = random(4, 4, 4, 4)
    expected = (x + 10 * x[:, ::-1]).repeat(2, 1).repeat(2, 2).repeat(2, 3)
    np.testing.assert_allclose(kernel(x), expected, rtol=1e-6)


@pytest.mark.parametrize(("name", "axis"), [("sum", [1]), ("max", [2, 4]), ("min", [1, 3]), ("sum", [1, 2, 3, 4])])
def test_reductions_take_any_free_dimensions(name: str, axis: list[int]) -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        found = getattr(nl, name)(nl.load(x), axis=axis)
        y = nl.ndarray(found.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(y, found)
        return y

    x = random(8, 2, 3, 4, 5)
    expected = getattr(np, name)(x, axis=tuple(axis))
    np.testing.assert_allclose(kernel(x).reshape(expected.shape), expected, rtol=1e-5, atol=1e-5)


def test_softmax_and_statistics() -> None:
    @nki.jit
    def kernel(x: Any, w: Any) -> Any:
        y = nl.ndarray((2, 32, 48), dtype=x.dtype, buffer=nl.shared_hbm)
        z = nl.ndarray((2, 32, 1), dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.load(x)
        nl.store(y[0], nl.softmax(tile, axis=1))
        nl.store(y[1], nl.rms_norm(tile, nl.load(w), axis=1, n=48))
        nl.store(z[0], nl.mean(tile, axis=1))
        nl.store(z[1], nl.var(tile, axis=1))
        return y, z

    x, w = random(32, 48), random(1, 48, seed=1)
    y, z = kernel(x, w)
    powers = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(y[0], powers / powers.sum(1, keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(y[1], x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-6) * w, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(z[0, :, 0], x.mean(1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(z[1, :, 0], x.var(1), rtol=1e-4, atol=1e-5)


def test_where_chooses_between_tiles_and_numbers() -> None:
    @nki.jit
    def kernel(a: Any, b: Any) -> Any:
        y = nl.ndarray((2, 32, 8), dtype=a.dtype, buffer=nl.shared_hbm)
        x, z = nl.load(a), nl.load(b)
        nl.store(y[0], nl.where(x > z, x, z))
        nl.store(y[1], nl.where(x > 0.5, 1.0, z))
        return y

    a, b = random(32, 8), random(32, 8, seed=1)
    found = kernel(a, b)
    np.testing.assert_array_equal(found[0], np.where(a > b, a, b))
    np.testing.assert_array_equal(found[1], np.where(a > 0.5, np.float32(1), b))


# -- Decorators, grids, results ---------------------------------------------------------------------------------------


@nki.jit(mode="simulation", platform_target="trn2")
def scaled(x: Any, factor: float = 2.0) -> Any:
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.hbm)
    i = nl.program_id(0)
    j = nl.program_id(1)
    nl.store(y[i, j], nl.load(x[i, j]) * factor)
    return y


@pytest.mark.parametrize("grid", [(4, 2), (nl.nc(2) * 2, 2), (nl.spmd_dim(2, nl.nc(2)), 2)])
def test_grids_of_several_dimensions(grid: Any) -> None:
    x = random(4, 2, 8, 3)
    np.testing.assert_array_equal(scaled[grid](x), 2 * x)


def test_a_grid_of_nothing_is_an_error() -> None:
    with pytest.raises(errors.BadGridError):
        scaled[-1, 2]


def test_a_kernel_without_tensors_gives_numpy_arrays() -> None:
    @nki.jit
    def kernel() -> Any:
        return nisa.iota(5 + 2 * nl.arange(16)[:, None] + nl.arange(4)[None, :], dtype=nl.int32)

    np.testing.assert_array_equal(kernel(), 5 + 2 * np.arange(16)[:, None] + np.arange(4))


def test_simulate_kernel_changes_the_arguments_that_a_kernel_writes() -> None:
    @nki.trace
    def kernel(x: Any, y: Any) -> None:
        nl.store(y, nl.load(x) + 1.0)

    x, y = random(8, 4), np.zeros((8, 4), np.float32)
    nki.simulate_kernel(kernel, x, y)
    np.testing.assert_array_equal(y, x + 1)


def test_benchmark_gives_the_modelled_latency() -> None:
    kernel = nki.benchmark(warmup=5, iters=10, save_neff_name="file.neff")(scaled)[4, 2]
    x = random(4, 2, 8, 3)
    np.testing.assert_array_equal(kernel(x), 2 * x)
    assert kernel.benchmark_result.nc_latency.get_latency_percentile(99) > 0


def test_an_unknown_option_is_an_error() -> None:
    with pytest.raises(errors.UnknownJitOptionError, match="no option speed"):
        nki.jit(speed="high")(scaled.function)


def test_breakpoint_works_in_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr("sys.breakpointhook", lambda: seen.append("stopped"))

    @nki.jit
    def kernel(x: Any) -> Any:
        y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.load(x)
        breakpoint()
        nl.store(y, tile)
        return y

    kernel(random(8, 4))
    assert seen == ["stopped"]


def test_tensors_of_pytorch_are_taken_and_given() -> None:
    import torch

    x = torch.arange(2 * 2 * 8 * 3, dtype=torch.float32).reshape(2, 2, 8, 3)
    found = scaled[2, 2](x)
    assert isinstance(found, torch.Tensor)
    torch.testing.assert_close(found, 2 * x)


# -- What the dialect refuses -----------------------------------------------------------------------------------------


def _square_of_a_triangle(x: Any) -> Any:
    i, j = nl.mgrid[0:16, 0:16]
    return nisa.bn_stats(nl.load(x), mask=(j <= i))


def _select_by_two_conditions(x: Any) -> Any:
    i, j = nl.mgrid[0:16, 0:16]
    return nisa.affine_select(pred=(j < i) & (j > 2), on_true_tile=nl.load(x), on_false_value=0.0)


def _assign_other_elements(x: Any) -> Any:
    tile = nl.ndarray((16, 8), dtype=x.dtype)
    tile[...] = nl.load(x)
    return tile


def _add_other_elements(x: Any) -> Any:
    tile = nl.load(x)
    return tile + tile[:, 0:8]


def _index_by_a_string(x: Any) -> Any:
    return nl.load(x["first"])


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (_square_of_a_triangle, errors.MaskedInstructionError),
        (_select_by_two_conditions, errors.AffinePredicateError),
        (_assign_other_elements, errors.TileAssignmentError),
        (_add_other_elements, errors.TileBroadcastError),
        (_index_by_a_string, errors.IndexExpressionError),
    ],
)
def test_what_the_dialect_does_not_have_is_an_error_with_its_line(function: Any, error: type[errors.NkiError]) -> None:
    with pytest.raises(error) as caught:
        nki.jit(function)(random(16, 16))
    assert caught.value.line is not None
    assert caught.value.line[0] == __file__
    assert caught.value.line[2] == function.__name__
