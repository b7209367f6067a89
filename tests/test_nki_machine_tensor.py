"""The tensor engine of the simulated core: products, sums in PSUM, MX operands, transposes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from nki_programs import ProgramBuilder, columns, rows, view

from nki.tensor import NkiTensor

TYPES = ["float32", "bfloat16", "float16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2"]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(4)


def loaded(b: ProgramBuilder, array: np.ndarray, dtype: str | None = None) -> NkiTensor:
    tile = b.sbuf(*array.shape, dtype=dtype or array.dtype)
    b.copy(tile, b.given(array, dtype))
    return tile


def wide(*arrays: np.ndarray) -> list[np.ndarray]:
    return [a.astype(np.float64) for a in arrays]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(128, 128, 512), (1, 1, 1), (37, 5, 19), (128, 64, 33), (64, 128, 16), (3, 7, 500)])
def test_products(rng, dtype, shape):
    depth, m, n = shape
    b = ProgramBuilder()
    number = np.dtype(getattr(ml_dtypes, dtype, dtype))
    s, v = rng.standard_normal((depth, m)).astype(number), rng.standard_normal((depth, n)).astype(number)
    target = b.psum(m, n)
    b.emit("matmul", target, (loaded(b, s), loaded(b, v)), False, False)
    out = b.stored(target)
    b.run()
    s64, v64 = wide(s, v)
    # Each of `depth` sums rounds by half a unit of what has been summed in absolute value.
    np.testing.assert_array_less(
        np.abs(b.array(out) - s64.T @ v64), depth * 2.0**-24 * (np.abs(s64.T) @ np.abs(v64)) + 1e-30
    )


def test_operands_of_several_free_dimensions_and_strides(rng):
    b = ProgramBuilder()
    s, v = rng.standard_normal((64, 4, 16), np.float32), rng.standard_normal((64, 6, 20), np.float32)
    target = b.psum(32, 60)
    stationary = view(loaded(b, s), (64, 4, 8), (64, 16, 2))
    moving = view(loaded(b, v), (64, 20, 3), (120, 1, 40))
    b.emit("matmul", target, (stationary, moving), False, False)
    out = b.stored(target)
    b.run()
    left = s[:, :, ::2].reshape(64, 32)
    right = v[:, ::2, :].transpose(0, 2, 1).reshape(64, 60)
    np.testing.assert_allclose(b.array(out), left.T @ right, rtol=1e-4, atol=1e-4)


def test_double_row_contracts_over_both(rng):
    b = ProgramBuilder()
    s = rng.standard_normal((128, 2, 64)).astype(ml_dtypes.float8_e4m3)
    v = rng.standard_normal((128, 2, 96)).astype(ml_dtypes.float8_e4m3)
    target = b.psum(64, 96)
    b.emit("matmul", target, (loaded(b, s), loaded(b, v)), False, True)
    out = b.stored(target)
    b.run()
    s64, v64 = wide(s, v)
    np.testing.assert_allclose(b.array(out), np.einsum("kjm,kjn->mn", s64, v64), rtol=1e-4, atol=1e-3)


class TestSums:
    def _ones(self, b: ProgramBuilder) -> NkiTensor:
        return loaded(b, np.ones((128, 128), np.float32))

    def test_the_first_write_begins_a_sum(self):
        b = ProgramBuilder()
        one = self._ones(b)
        target = b.psum(128, 128)
        for _ in range(3):
            b.emit("matmul", target, (one, one), None, False)
        out = b.stored(target)
        again = b.psum(128, 128)  # fresh, where the last one was
        b.emit("matmul", again, (one, one), None, False)
        second = b.stored(again)
        b.run()
        assert (b.array(out) == 3 * 128).all()
        assert (b.array(second) == 128).all()

    def test_overlapping_regions_are_told_apart_by_element(self):
        """As convolutions do: windows that share columns with their neighbours."""
        b = ProgramBuilder()
        one = self._ones(b)
        target = b.psum(128, 100)
        for start in range(0, 90, 10):
            b.emit("matmul", columns(target, start, start + 20), (one, columns(one, 0, 20)), None, False)
        out = b.stored(target)
        b.run()
        expected = np.full(100, 256.0)
        expected[:10] = expected[90:] = 128
        np.testing.assert_array_equal(b.array(out), np.broadcast_to(expected, (128, 100)))

    def test_over_a_loop_that_the_target_lives_through(self):
        b = ProgramBuilder()
        one = self._ones(b)
        target = b.psum(128, 128)
        counter = b.register()
        b.emit("loop_begin", counter, (0, 5), 1)
        b.emit("matmul", target, (one, one), None, False)
        b.emit("loop_end", (), ())
        out = b.stored(target)
        b.run()
        assert (b.array(out) == 5 * 128).all()

    def test_anew_in_each_round_when_allocated_there(self):
        b = ProgramBuilder()
        one = self._ones(b)
        out = b.output(128, 128)
        counter = b.register()
        b.emit("loop_begin", counter, (0, 5), 1)
        target = b.psum(128, 128, loops=(0,))
        b.emit("matmul", target, (one, one), None, False)
        b.emit("matmul", target, (one, one), None, False)
        b.copy(out, target)
        b.emit("loop_end", (), ())
        b.run()
        assert (b.array(out) == 2 * 128).all()

    def test_tensors_at_one_address_have_sums_of_their_own(self):
        b = ProgramBuilder()
        one = self._ones(b)
        for _ in range(2):
            target = b.psum(128, 128, address=(0, 2048))
            b.emit("matmul", columns(target, 0, 64), (one, columns(one, 0, 64)), None, False)
            b.emit("matmul", target, (one, one), None, False)
            out = b.stored(target)
        b.run()
        assert (b.array(out)[:, :64] == 256).all()
        assert (b.array(out)[:, 64:] == 128).all()

    def test_adding_to_what_nobody_wrote_gives_nan(self):
        b = ProgramBuilder()
        one = self._ones(b)
        target = b.psum(128, 128)
        b.emit("matmul", target, (one, one), True, False)
        out = b.stored(target)
        assert b.program().unwritten_reads() == [(1, 0, target.storage.number)]
        b.run()
        assert np.isnan(b.array(out)).all()

    def test_in_bf16_round_once_per_write(self, rng):
        b = ProgramBuilder()
        parts = [rng.standard_normal((128, 64), np.float32) for _ in range(4)]
        target = b.psum(64, 64, dtype="bfloat16")
        for part in parts:
            tile = loaded(b, part)
            b.emit("matmul", target, (tile, tile), None, False)
        out = b.stored(target)
        b.run()
        total = (parts[0].T @ parts[0]).astype(ml_dtypes.bfloat16)
        for part in parts[1:]:
            total = (total.astype(np.float32) + part.T @ part).astype(ml_dtypes.bfloat16)
        # Sums of fp32 that differ in their last bit may round to neighbours.
        np.testing.assert_allclose(
            b.array(out).astype(np.float32), total.astype(np.float32), rtol=2.0**-7, atol=2.0**-7
        )


def test_large_products_in_psum(rng):
    """512 x 512 x 512 in bf16, tile by tile as kernels do it, on two threads."""
    b = ProgramBuilder()
    left, right = (rng.standard_normal((512, 512)).astype(ml_dtypes.bfloat16) for _ in range(2))
    left_t, moving = b.given(np.ascontiguousarray(left.T)), b.given(right)
    out = b.output(512, 512)
    for m in range(0, 512, 128):
        target = b.psum(128, 512)
        for k in range(0, 512, 128):
            s, v = b.sbuf(128, 128, dtype="bfloat16"), b.sbuf(128, 512, dtype="bfloat16")
            b.copy(s, columns(rows(left_t, k, k + 128), m, m + 128))
            b.copy(v, rows(moving, k, k + 128))
            b.emit("matmul", target, (s, v), None, False)
        tile = b.sbuf(128, 512)
        b.emit("copy", tile, target)
        b.copy(rows(out, m, m + 128), tile)
    b.run(threads=2)
    left64, right64 = wide(left, right)
    np.testing.assert_allclose(b.array(out), left64 @ right64, rtol=1e-4, atol=1e-3)
    again = b.array(out).copy()
    b.run(threads=1)
    np.testing.assert_array_equal(b.array(out), again)


def _mx_values(name: str) -> np.ndarray:
    if name == "float4_e2m1fn_x4":
        return np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    number = ml_dtypes.float8_e4m3fn if name == "float8_e4m3fn_x4" else ml_dtypes.float8_e5m2
    return np.arange(256, dtype=np.uint8).view(number).astype(np.float64)


@pytest.mark.parametrize("name", ["float8_e4m3fn_x4", "float8_e5m2_x4", "float4_e2m1fn_x4"])
@pytest.mark.parametrize("partitions", [32, 128])
def test_products_of_mx_operands(rng, name, partitions):
    """Low elements of a container first; 8 partitions x 4 elements share the scale in their quadrant."""
    values = _mx_values(name)
    finite = np.flatnonzero(np.isfinite(values))
    bits = 4 if len(values) == 16 else 8
    b = ProgramBuilder()
    operands, tiles, scales = [], [], []
    for n in (16, 40):
        codes = rng.choice(finite, (partitions, n, 4))
        exponents = rng.integers(120, 134, (partitions // 8, n))
        container = np.uint16 if bits == 4 else np.uint32
        packed = sum(codes[:, :, q].astype(np.uint64) << np.uint64(bits * q) for q in range(4)).astype(container)
        spread = np.full((partitions, n), 200, np.uint8)
        for group in range(partitions // 8):
            spread[group // 4 * 32 + group % 4] = exponents[group]
        operands.append(values[codes] * np.repeat(2.0 ** (exponents - 127), 8, axis=0)[:, :, None])
        tiles.append(loaded(b, packed, name))
        scales.append(loaded(b, spread))
    target = b.psum(16, 40)
    b.emit("matmul_mx", target, (*tiles, *scales), None)
    out = b.stored(target)
    b.run()
    expected = np.einsum("pmq,pnq->mn", *operands)
    error = np.abs(b.array(out) - expected)
    assert (error <= 1e-5 * np.einsum("pmq,pnq->mn", *map(np.abs, operands))).all()


class TestTransposes:
    @pytest.mark.parametrize("dtype", [np.float32, np.uint16, np.uint8])
    @pytest.mark.parametrize("shape", [(128, 128), (1, 100), (100, 1), (33, 65)])
    def test_copy_bits(self, rng, dtype, shape):
        b = ProgramBuilder()
        x = rng.integers(0, 200, shape).astype(dtype)
        target = b.psum(*shape[::-1], dtype=dtype)
        b.emit("transpose", target, loaded(b, x))
        out = b.stored(target)
        b.run()
        np.testing.assert_array_equal(b.array(out), x.T)

    def test_flatten_free_dimensions(self, rng):
        b = ProgramBuilder()
        x = rng.standard_normal((32, 4, 8), np.float32)
        target = b.psum(32, 32)
        b.emit("transpose", target, view(loaded(b, x), (32, 8, 4), (32, 1, 8)))
        out = b.stored(target)
        b.run()
        np.testing.assert_array_equal(b.array(out), x.transpose(0, 2, 1).reshape(32, 32).T)

    def test_in_place(self, rng):
        b = ProgramBuilder()
        x = rng.standard_normal((32, 32), np.float32)
        tile = loaded(b, x)
        b.emit("transpose", tile, tile)
        out = b.stored(tile)
        b.run()
        np.testing.assert_array_equal(b.array(out), x.T)
