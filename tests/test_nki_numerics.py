"""Number formats and exactness of kernels, end to end."""

from __future__ import annotations

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl


def store(tile):
    out = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


@pytest.mark.parametrize("engine", [nisa.engine.vector, nisa.engine.scalar, nisa.engine.gpsimd, None])
def test_floats_become_integers_by_rounding_to_even_and_saturating(engine):
    """A row of the collection: 0.5, 1.5, 2.5, -0.5 and 3e9 to int32."""

    @nki.jit
    def convert(x):
        tile = nl.load(x)
        result = nl.ndarray(x.shape, dtype=nl.int32, buffer=nl.sbuf)
        if engine is None:
            nisa.dma_copy(dst=result, src=x)
        else:
            nisa.tensor_copy(dst=result, src=tile, engine=engine)
        return store(result)

    x = np.array([[0.5, 1.5, 2.5, -0.5, -1.5, 3e9, -3e9, 7.0]], np.float32)
    np.testing.assert_array_equal(convert(x), [[0, 2, 2, 0, -2, 2**31 - 1, -(2**31), 7]])


def test_transposes_on_the_tensor_engine_keep_nan_and_infinity():
    @nki.jit
    def transpose(x, eye):
        tile, identity = nl.load(x), nl.load(eye)
        product = nl.ndarray((x.shape[1], x.shape[0]), dtype=x.dtype, buffer=nl.psum)
        nisa.nc_matmul(dst=product, stationary=tile, moving=identity, is_transpose=True)
        result = nl.ndarray(product.shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=result, src=product)
        return store(result)

    x = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    x[3, 4], x[5, 6], x[7, 8] = np.nan, np.inf, -np.inf
    np.testing.assert_array_equal(transpose(x, np.eye(64, dtype=np.float32)), x.T)
    reverse = np.eye(64, dtype=np.float32)[::-1].copy()
    np.testing.assert_array_equal(transpose(x, reverse), x[::-1].T)


@pytest.mark.parametrize(("dtype", "expected"), [(np.int64, 10**10), (np.int32, 10**10 - 2 * 2**32)])
def test_scalars_wrap_at_their_width(dtype, expected):
    @nki.jit
    def multiply(x):
        tile = nl.load(x)
        a = nisa.scalar_load(tile[0:1, 0:1])
        b = nisa.scalar_load(tile[0:1, 1:2])
        result = nl.ndarray((1, 1), dtype=x.dtype, buffer=nl.sbuf)
        nisa.scalar_store(result, a * b)
        return store(result)

    x = np.array([[100_000, 100_000]], dtype)
    np.testing.assert_array_equal(multiply(x), [[expected]])


def test_sums_in_psum_are_fp32_and_rounded_once():
    @nki.jit
    def product(a, b):
        left, right = nl.load(a), nl.load(b)
        psum = nl.ndarray((a.shape[1], b.shape[1]), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=psum, stationary=left, moving=right)
        result = nl.ndarray(psum.shape, dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.tensor_copy(dst=result, src=psum)
        return store(result)

    import ml_dtypes

    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((128, n)).astype(ml_dtypes.bfloat16) for n in (64, 96))
    exact = a.astype(np.float64).T @ b.astype(np.float64)
    # bf16 keeps 8 bits: half of the last one, and what fp32 sums lose before.
    np.testing.assert_allclose(product(a, b).astype(np.float64), exact, rtol=2.0**-8, atol=1e-5)
