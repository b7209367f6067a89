"""Loops of the Beta 1 dialect: accumulation, what iterations may share, and where instructions write their results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import neuronxcc.nki as nki
import neuronxcc.nki.compiler as ncc
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
import nki as current
from nki import errors
from nki.kernel import Request


def random(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def instructions(kernel: Any, *args: Any) -> list[Any]:
    found: list[Any] = kernel.specialize(args, {}, Request("trn2")).programs[0].trace.instructions
    return found


def matmul_over(k: int, initialised: bool) -> Any:
    @nki.jit
    def kernel(a: Any, b: Any) -> Any:
        y = nl.ndarray((64, 96), dtype=nl.float32, buffer=nl.shared_hbm)
        total = (nl.zeros if initialised else nl.ndarray)((64, 96), nl.float32, buffer=nl.psum)
        for i in nl.affine_range(k):
            total += nisa.nc_matmul(nl.load(a[i]), nl.load(b[i]))
        nl.store(y, total)
        return y

    return kernel


@pytest.mark.parametrize("initialised", [True, False])
@pytest.mark.parametrize("k", [1, 3])
def test_a_matmul_that_is_added_to_psum_accumulates_there(k: int, initialised: bool) -> None:
    a, b = random(k, 32, 64), random(k, 32, 96, seed=1)
    kernel = matmul_over(k, initialised)
    np.testing.assert_allclose(kernel(a, b), np.einsum("kpm,kpn->mn", a, b), rtol=1e-5, atol=1e-5)
    ops = [i.op for i in instructions(kernel, a, b)]
    assert ops.count("matmul") == k
    assert "tensor_tensor" not in ops


def test_a_product_that_is_used_twice_is_computed_and_accumulated() -> None:
    @nki.jit
    def kernel(a: Any, b: Any) -> Any:
        y = nl.ndarray((2, 64, 96), dtype=nl.float32, buffer=nl.shared_hbm)
        total = nl.zeros((64, 96), nl.float32, buffer=nl.psum)
        for i in nl.affine_range(2):
            product = nisa.nc_matmul(nl.load(a[i]), nl.load(b[i]))
            total += product
        nl.store(y[0], total)
        nl.store(y[1], product)
        return y

    a, b = random(2, 32, 64), random(2, 32, 96, seed=1)
    found = kernel(a, b)
    np.testing.assert_allclose(found[0], np.einsum("kpm,kpn->mn", a, b), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found[1], a[1].T @ b[1], rtol=1e-5, atol=1e-5)


def carried(loop: Any) -> Any:
    @nki.jit
    def kernel(a: Any, b: Any) -> Any:
        y = nl.ndarray((64, 96), dtype=nl.float32, buffer=nl.shared_hbm)
        total = nl.zeros((64, 96), nl.float32)
        for i in loop(3):
            total[...] = total + nisa.nc_matmul(nl.load(a[i]), nl.load(b[i]))
        nl.store(y, total)
        return y

    return kernel


def test_a_sum_by_assignment_in_affine_range_is_loop_carried() -> None:
    a, b = random(3, 32, 64), random(3, 32, 96, seed=1)
    with pytest.raises(errors.LoopCarriedError, match=r"loop-carried.*nl\.sequential_range, or accumulate.*PSUM"):
        carried(nl.affine_range)(a, b)
    problems = current.check(carried(nl.affine_range))(a, b)
    assert [type(p) for p in problems if isinstance(p, errors.LoopCarriedError)]


@pytest.mark.parametrize("loop", [nl.sequential_range, nl.static_range, range])
def test_the_same_sum_in_other_loops_is_right(loop: Any) -> None:
    a, b = random(3, 32, 64), random(3, 32, 96, seed=1)
    np.testing.assert_allclose(carried(loop)(a, b), np.einsum("kpm,kpn->mn", a, b), rtol=1e-5, atol=1e-5)


def test_iterations_may_reuse_a_tile_that_each_writes_anew() -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray((8, 4), dtype=x.dtype)
        for i in nl.affine_range(x.shape[0]):
            tile[...] = nl.load(x[i])
            nl.store(y[i], tile * 2.0)
        return y

    x = random(3, 8, 4)
    np.testing.assert_array_equal(kernel(x), 2 * x)


def test_an_iteration_that_reads_its_neighbours_part_is_loop_carried() -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        y = nl.ndarray((8, 5), dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.zeros((8, 5), x.dtype)
        for i in nl.affine_range(4):
            tile[:, i + 1] = tile[:, i] + 1.0
        nl.store(y, tile)
        return y

    with pytest.raises(errors.LoopCarriedError):
        kernel(random(8, 4))


def test_parts_that_lie_between_each_other_are_not_confused() -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        y = nl.ndarray((8, 12), dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray((8, 12), dtype=x.dtype)
        for i in nl.affine_range(3):
            part = tile[nl.arange(8)[:, None], 3 * nl.arange(4)[None, :] + i]
            part[...] = nl.load(x[i])
            nl.store(y[nl.arange(8)[:, None], 3 * nl.arange(4)[None, :] + i], part * 2.0)
        return y

    x = random(3, 8, 4)
    np.testing.assert_array_equal(kernel(x), 2 * x.transpose(1, 2, 0).reshape(8, 12))


def test_precise_schedule_keeps_the_order_of_iterations() -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.load(x)
        for _ in nl.affine_range(3, precise_schedule=True):
            tile[...] = tile * 2.0
        nl.store(y, tile)
        return y

    x = random(8, 4)
    np.testing.assert_array_equal(kernel(x), 8 * x)


def test_loop_reduce_adds_over_the_loop_that_it_names() -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        y = nl.ndarray((2, 8, 4), dtype=x.dtype, buffer=nl.shared_hbm)
        for j in nl.affine_range(2):
            total = nl.ndarray((8, 4), dtype=x.dtype)
            for i in nl.affine_range(3):
                total[...] = nl.loop_reduce(nl.load(x[j, i]), op=np.add, loop_indices=[i])
            nl.store(y[j], total)
        return y

    x = random(2, 3, 8, 4)
    np.testing.assert_allclose(kernel(x), x.sum(1), rtol=1e-5, atol=1e-6)


def test_an_assigned_result_is_written_where_it_is_assigned() -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        y = nl.ndarray((64, 96), dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray((64, 96), dtype=x.dtype)
        tile[:, 0:48] = nl.load(x[:, 0:48])
        tile[:, 48:96] = nisa.activation(op=nl.exp, data=nl.load(x[:, 48:96]))
        nl.store(y, tile)
        return y

    x = random(64, 96)
    np.testing.assert_allclose(kernel(x), np.hstack([x[:, :48], np.exp(x[:, 48:])]), rtol=1e-5)
    assert [i.op for i in instructions(kernel, x)] == ["dma_copy", "dma_copy", "activation", "dma_copy"]


def test_a_result_that_others_read_too_is_copied() -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        y = nl.ndarray((2, 8, 4), dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray((8, 4), dtype=x.dtype)
        result = nl.load(x) * 2.0
        tile[...] = result
        tile[...] = tile + 1.0
        nl.store(y[0], tile)
        nl.store(y[1], result)
        return y

    x = random(8, 4)
    np.testing.assert_array_equal(kernel(x), np.stack([2 * x + 1, 2 * x]))


def test_tiles_that_take_turns_share_memory() -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        place = ncc.sbuf.mod_alloc(base_addr=512, num_free_tiles=(2,))
        tiles = nl.ndarray((4, nl.par_dim(8), 16), dtype=x.dtype, buffer=place)
        for i in nl.affine_range(4):
            tiles[i] = nl.load(x[i])
            nl.store(y[i], tiles[i])
        return y

    x = random(4, 8, 16)
    np.testing.assert_array_equal(kernel(x), x)
    trace = kernel.specialize((x,), {}, Request("trn2")).programs[0].trace
    places = [s.address for s in trace.storages if s.address is not None]
    assert places == [(0, 512), (0, 576)]


def test_tensors_at_the_same_place_are_used_one_after_the_other() -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        y = nl.ndarray((2, 8, 16), dtype=x.dtype, buffer=nl.shared_hbm)
        for i in nl.static_range(2):
            tile = nl.ndarray((8, 16), dtype=x.dtype, buffer=ncc.sbuf.alloc(lambda index, partitions, size: (0, 0)))
            tile[...] = nl.load(x[i])
            nl.store(y[i], tile)
        return y

    x = random(2, 8, 16)
    np.testing.assert_array_equal(kernel(x), x)


def test_a_tile_may_start_at_any_partition() -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        y = nl.ndarray((8, 4), dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.load(x)
        tile[5, :] = tile[3, :] * 2.0
        tile[2, 1] = 7.0
        nl.store(y, tile)
        return y

    x = random(8, 4)
    expected = x.copy()
    expected[5] = 2 * x[3]
    expected[2, 1] = 7
    np.testing.assert_array_equal(kernel(x), expected)
