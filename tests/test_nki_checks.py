"""What the chip would fail on, found before a kernel runs."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki import errors


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def store(tile):
    out = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


def test_sbuf_overflow_names_tensors_and_limit():
    """Row N8 of the collection: bytes used and the limit, per tensor."""

    @nki.jit
    def too_much(x):
        tiles = []
        for i in range(4):
            tile = nl.ndarray((128, 16 * 1024), dtype=nl.float32, buffer=nl.sbuf, name=f"block{i}")
            nisa.dma_copy(dst=tile, src=x)
            tiles.append(tile)
        for tile in tiles[1:]:
            nisa.tensor_tensor(dst=tiles[0], data1=tiles[0], data2=tile, op=nl.add)
        return store(tiles[0])

    with pytest.raises(errors.MemoryOverflowError) as raised:
        too_much(numbers(128, 16 * 1024))
    text = str(raised.value)
    assert raised.value.facts["used"] == 4 * 64 * 1024
    assert raised.value.facts["limit"] < 4 * 64 * 1024
    assert all(word in text for word in ("SBUF", "block0", "65536"))
    assert raised.value.line[0] == __file__


def test_sbuf_is_reused_after_the_last_use():
    @nki.jit
    def one_after_the_other(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        for i in range(8):
            tile = nl.load(x[i * 128 : (i + 1) * 128, :])
            nl.store(out[i * 128 : (i + 1) * 128, :], tile)
        return out

    x = numbers(1024, 16 * 1024)
    np.testing.assert_array_equal(one_after_the_other(x), x)


def test_psum_overflow():
    @nki.jit
    def nine_banks(x):
        tile = nl.load(x)
        sums = []
        for _ in range(9):
            psum = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(dst=psum, stationary=tile[:, 0:128], moving=tile)
            sums.append(psum)
        total = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=total, value=0.0)
        for psum in sums:
            nisa.tensor_tensor(dst=total, data1=total, data2=psum, op=nl.add)
        return store(total)

    with pytest.raises(errors.MemoryOverflowError, match="PSUM"):
        nine_banks(numbers(128, 512))


def test_reads_of_unwritten_memory_are_told_and_poisoned():
    @nki.jit
    def half_written(x):
        tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf, name="half")
        nisa.dma_copy(dst=tile[:, 0:32], src=x)
        return store(tile)

    x = numbers(128, 32)
    with pytest.warns(UserWarning, match="half"):
        result = half_written(x)
    np.testing.assert_array_equal(result[:, :32], x)
    assert np.isnan(result[:, 32:]).all()
    (problem,) = nki.check(half_written)(x)
    assert isinstance(problem, errors.UnwrittenReadError)
    assert problem.line[0] == __file__


def test_fully_written_memory_is_not_told():
    @nki.jit
    def in_pieces(x):
        tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
        for i in range(4):
            nisa.dma_copy(dst=tile[i * 32 : (i + 1) * 32, 0:64:2], src=x[i * 32 : (i + 1) * 32, 0:64:2])
            nisa.dma_copy(dst=tile[i * 32 : (i + 1) * 32, 1:64:2], src=x[i * 32 : (i + 1) * 32, 1:64:2])
        return store(tile)

    x = numbers(128, 64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(in_pieces(x), x)


def test_sums_that_were_read_and_go_on():
    """Row N1 of the collection: PSUM accumulation over a loop with an extra index."""

    @nki.jit
    def accumulates_over_rows_too(x):
        tile = nl.load(x)
        out = nl.ndarray((2, 128, 64), dtype=nl.float32, buffer=nl.shared_hbm)
        psum = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.psum)
        for row in range(2):
            for _ in range(2):
                nisa.nc_matmul(dst=psum, stationary=tile[:, 0:128], moving=tile[:, 0:64])
            result = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=result, src=psum)
            nisa.dma_copy(dst=out[row], src=result)
        return out

    with pytest.raises(errors.AccumulationAfterReadError, match="accumulate="):
        accumulates_over_rows_too(numbers(128, 128))


def test_two_tensors_at_one_address_without_order():
    """Row A13 of the collection: a tile that is read while the load of another one into it is in flight."""

    @nki.jit
    def races(x):
        a = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf, name="a", address=(0, 0))
        b = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf, name="b", address=(0, 0))
        result = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=a, src=x)
        nisa.tensor_copy(dst=result, src=b)
        return store(result)

    with pytest.raises(errors.RaceError, match=r"depends_on|one tensor") as raised:
        races(numbers(128, 64))
    assert "dma_copy writes a" in str(raised.value)


def test_an_edge_makes_an_order():
    @nki.jit
    def ordered(x):
        a = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf, name="a", address=(0, 0))
        b = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf, name="b", address=(0, 0))
        result = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
        load = nisa.dma_copy(dst=a, src=x)
        nisa.tensor_copy(dst=result, src=b).depends_on(load)
        return store(result)

    x = numbers(128, 64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.testing.assert_array_equal(ordered(x), x)


def test_overlapping_tensors_of_one_engine_are_in_order():
    @nki.jit
    def one_engine(x):
        a = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf, address=(0, 0))
        b = nl.ndarray((128, 32), dtype=nl.float32, buffer=nl.sbuf, address=(0, 128))
        tile = nl.load(x)
        nisa.tensor_copy(dst=a, src=tile)
        result = nl.ndarray((128, 32), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=result, src=b)
        return store(result)

    x = numbers(128, 64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.testing.assert_array_equal(one_engine(x), x[:, 32:])


def test_check_gathers_all_problems():
    @nki.jit
    def many_mistakes(x):
        tile = nl.load(x)
        psum = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=psum, stationary=tile, moving=psum)  # moving must be in SBUF
        nisa.dma_copy(dst=x, src=psum)  # no DMA from PSUM
        return nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)  # never written

    report = nki.check(many_mistakes)(numbers(128, 64))
    assert len(report) >= 3
    assert any(isinstance(p, errors.OutputNeverWrittenError) for p in report)
    assert sum(isinstance(p, errors.NkiValidationError) for p in report) >= 2
    assert str(report).count("\n") >= 3


def test_check_of_a_sound_kernel_is_empty():
    @nki.jit
    def sound(x):
        return store(nl.load(x))

    x = numbers(128, 64)
    report = nki.check(sound)(x)
    assert not report
    assert str(report) == "no problems"


def test_check_for_a_generation():
    @nki.jit
    def needs_the_newest(x):
        tile = nl.load(x)
        result = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.exponential(dst=result, src=tile)
        return store(result)

    x = numbers(128, 64)
    assert len(nki.check(needs_the_newest, target="trn2")(x)) == 1
    assert not nki.check(needs_the_newest, target="trn3")(x)


def exchange(x, with_barrier):
    core = nl.program_id(0)
    scratch = nl.ndarray((2, *x.shape), dtype=x.dtype, buffer=nl.shared_hbm, name="scratch")
    out = nl.ndarray((2, *x.shape), dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=float(core))
    nisa.dma_copy(dst=scratch[core], src=tile)
    if with_barrier:
        nisa.core_barrier(scratch, cores=(0, 1))
    theirs = nl.load(scratch[1 - core])
    nisa.dma_copy(dst=out[core], src=theirs)
    return out


def test_a_core_that_reads_what_the_other_one_writes():
    kernel = nki.jit(exchange)
    x = numbers(16, 8)
    with pytest.raises(errors.CoreRaceError, match="core_barrier") as raised:
        kernel[2](x, with_barrier=False)
    assert "scratch" in str(raised.value)
    np.testing.assert_array_equal(kernel[2](x, with_barrier=True), [x + 1, x])


def test_cores_that_write_the_same_elements_are_warned_of():
    @nki.jit
    def both_write(x):
        return store(nl.load(x))

    with pytest.warns(errors.CoreRaceWarning, match="both cores write"):
        both_write[2](numbers(16, 8))


def test_cores_that_write_columns_of_their_own_are_fine():
    @nki.jit
    def columns(x):
        core, width = nl.program_id(0), x.shape[1] // 2
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        mine = slice(core * width, (core + 1) * width)
        nisa.dma_copy(dst=out[:, mine], src=nl.load(x[:, mine]))
        return out

    x = numbers(16, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(columns[2](x), x)


def test_a_copy_of_a_tensor_to_itself_is_no_race_of_cores():
    """Kernels wait for their transfers with it."""

    @nki.jit
    def fences(x):
        core, width = nl.program_id(0), x.shape[1] // 2
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        mine = slice(core * width, (core + 1) * width)
        nisa.dma_copy(dst=out[:, mine], src=nl.load(x[:, mine]))
        nisa.dma_copy(dst=out, src=out)
        return out

    x = numbers(16, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.UnwrittenReadWarning)
        np.testing.assert_array_equal(fences[2](x), x)
