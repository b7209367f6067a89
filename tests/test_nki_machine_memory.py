"""Memory of the simulated core: DMA of any layout, poison of fresh tensors, addresses, liveness."""

from __future__ import annotations

import gc
import threading

import ml_dtypes
import numpy as np
import pytest
from nki_programs import ProgramBuilder, columns, rows, view

from nki import _engines
from nki.tensor import Dynamic


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20261130)


def test_copies_between_shapes_and_strides(rng):
    b = ProgramBuilder()
    x = rng.standard_normal((128, 96), np.float32)
    src = b.given(x)
    tile = b.sbuf(128, 48, 2)
    b.copy(tile, view(src, (128, 48, 2), (96, 1, 48)))
    out = b.stored(tile)
    flat = b.output(96, 128)
    b.copy(flat, src)
    reversed_columns = b.output(128, 96)
    b.copy(reversed_columns, view(src, (128, 96), (96, -1), 95))
    every_third = b.output(128, 32)
    b.copy(every_third, columns(src, 0, 96, 3))
    turned = b.output(96, 128)
    b.copy(turned, view(src, (96, 128), (1, 96)))
    b.run()
    np.testing.assert_array_equal(b.array(out), x.reshape(128, 2, 48).transpose(0, 2, 1))
    np.testing.assert_array_equal(b.array(flat), x.reshape(96, 128))
    np.testing.assert_array_equal(b.array(reversed_columns), x[:, ::-1])
    np.testing.assert_array_equal(b.array(every_third), x[:, ::3])
    np.testing.assert_array_equal(b.array(turned), x.T)


def _random_view(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[int, tuple[int, ...], int]:
    """Elements of memory, strides and offset of a view of `shape`: dimensions in any order, with gaps, reversed."""
    strides, reach = [0] * len(shape), 1
    for d in rng.permutation(len(shape)):
        strides[d] = reach * int(rng.integers(1, 3))
        reach = strides[d] * shape[d]
    offset = 0
    for d in range(len(shape)):
        if rng.integers(0, 4) == 0:
            offset += strides[d] * (shape[d] - 1)
            strides[d] = -strides[d]
    return reach + 1, tuple(strides), offset


@pytest.mark.parametrize("seed", range(40))
def test_copies_of_any_layout(seed):
    rng = np.random.default_rng(seed)
    factors = [int(f) for f in rng.choice([1, 2, 3, 4, 5, 7, 8], 5)]
    shapes = []
    for _ in range(2):
        order = [factors[i] for i in rng.permutation(5)]
        cuts = sorted(int(c) for c in rng.choice(range(1, 5), int(rng.integers(0, 4)), replace=False))
        shapes.append(tuple(int(np.prod(order[a:z])) for a, z in zip([0, *cuts], [*cuts, 5], strict=True)))
    number = [np.float32, np.uint16, np.uint8, np.int64][seed % 4]
    b = ProgramBuilder()
    views, arrays = [], []
    for shape in shapes:
        size, strides, offset = _random_view(rng, shape)
        memory = rng.integers(0, 200, size).astype(number)
        views.append(view(b.given(memory), shape, strides, offset))
        bytes_apart = tuple(s * memory.itemsize for s in strides)
        arrays.append(np.lib.stride_tricks.as_strided(memory[offset:], shape, bytes_apart))
    b.copy(views[0], views[1])
    expected = b.array(views[0]).copy()
    shown = np.lib.stride_tricks.as_strided(expected[views[0].offset :], shapes[0], arrays[0].strides)
    shown[...] = arrays[1].reshape(shapes[0])
    b.run()
    np.testing.assert_array_equal(b.array(views[0]), expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int32", "uint8", "int16"])
def test_copies_convert_through_fp32(rng, dtype):
    b = ProgramBuilder()
    x = (rng.standard_normal((64, 80)) * 40).astype(np.float32)
    if dtype == "uint8":
        x = np.abs(x)
    out = b.output(64, 80, dtype=dtype)
    b.copy(out, b.given(x))
    b.run()
    target = b.array(out).dtype
    expected = np.rint(x).astype(target) if target.kind in "iu" else x.astype(target)
    np.testing.assert_array_equal(b.array(out).astype(np.float32), expected.astype(np.float32))


def test_equal_types_are_copied_bit_by_bit():
    b = ProgramBuilder()
    bits = np.arange(1 << 16, dtype=np.uint16).reshape(128, 512)
    src = b.given(bits, "bfloat16")
    tile = b.sbuf(128, 512, dtype="bfloat16")
    b.copy(tile, src)
    out = b.stored(tile)
    b.run()
    np.testing.assert_array_equal(b.array(out).view(np.uint16), bits)


def test_large_copies_go_in_parallel(rng):
    b = ProgramBuilder()
    x = rng.standard_normal((512, 4096), np.float32)
    out = b.output(4096, 512)
    b.copy(out, view(b.given(x), (4096, 512), (1, 4096)))
    b.run(threads=2)
    np.testing.assert_array_equal(b.array(out), x.T)


def test_overlapping_copies_read_before_they_write():
    b = ProgramBuilder()
    x = np.arange(64, dtype=np.int32).reshape(1, 64)
    memory = b.given(x.copy())
    b.copy(view(memory, (1, 63), offset=1), view(memory, (1, 63)))
    b.run()
    np.testing.assert_array_equal(b.array(memory)[0], [0, *range(63)])


@pytest.mark.parametrize(
    ("dtype", "is_poison"),
    [("float32", np.isnan), ("bfloat16", np.isnan), ("float16", np.isnan), ("float8_e5m2", np.isnan),
     ("int32", lambda a: a == 4), ("uint8", lambda a: a == 4)],
)  # fmt: skip
def test_fresh_memory_is_poisoned(dtype, is_poison):
    b = ProgramBuilder()
    first = b.sbuf(128, 40, dtype=dtype)
    b.emit("fill", first, (), 1)
    b.stored(first)
    second = b.sbuf(128, 40, dtype=dtype)  # takes the memory of `first`
    b.copy(columns(second, 0, 10), columns(b.given(np.zeros((128, 10), np.float32)), 0, 10))
    out = b.stored(second)
    b.run()
    result = b.array(out)
    assert (result[:, :10] == 0).all()
    assert is_poison(result[:, 10:].astype(np.float32)).all()


def test_memory_that_is_written_before_it_is_read_costs_no_poison():
    """What lives at different times shares memory, and a program's need is that of its fullest moment."""
    b = ProgramBuilder()
    x = b.given(np.ones((128, 512), np.float32))
    for _ in range(50):
        tile = b.sbuf(128, 512)
        b.copy(tile, x)
        b.copy(b.output(128, 512), tile)
    assert b.program().memory_bytes == 128 * 512 * 4


def test_lifetimes():
    b = ProgramBuilder()
    x = b.given(np.ones((128, 4), np.float32))
    before, inside, unused = b.sbuf(128, 4), b.sbuf(128, 4, loops=(0,)), b.sbuf(128, 4)
    b.copy(before, x)
    counter = b.register()
    b.emit("loop_begin", counter, (0, 3), 1)
    b.copy(inside, before)
    b.copy(before, inside)
    b.emit("loop_end", (), ())
    b.stored(before)
    times = b.program().lifetimes()
    assert times[before.storage.number] == (0, 5)
    assert times[inside.storage.number] == (2, 3)
    assert times[unused.storage.number] == (-1, -1)


def test_addresses_that_overlap_share_bytes():
    b = ProgramBuilder()
    x = np.arange(128 * 32, dtype=np.float32).reshape(128, 32)
    wide = b.sbuf(128, 32, address=(0, 256))
    b.copy(wide, b.given(x))
    part = b.sbuf(64, 8, address=(64, 256 + 16))  # partitions 64.., columns 4..
    raised = b.stored(part)
    b.emit("fill", part, (), -1.0)
    out = b.stored(wide)
    bits = b.sbuf(128, 128, dtype="uint8", address=(0, 256))
    seen = b.stored(bits)
    b.run()
    np.testing.assert_array_equal(b.array(raised), x[64:, 4:12])
    x[64:, 4:12] = -1
    np.testing.assert_array_equal(b.array(out), x)
    np.testing.assert_array_equal(b.array(seen), x.view(np.uint8))


def test_views_of_other_types():
    b = ProgramBuilder()
    x = np.arange(128 * 8, dtype=np.float32).reshape(128, 8)
    tile = b.sbuf(128, 8)
    b.copy(tile, b.given(x))
    out = b.output(128, 16, dtype="uint16")
    b.copy(out, view(tile, (128, 16), dtype="uint16"))
    b.run()
    np.testing.assert_array_equal(b.array(out), x.view(np.uint16))


def test_low_precision_is_kept_as_fp32_unless_precise():
    def small(precise: bool) -> float:
        b = ProgramBuilder()
        tile = b.sbuf(128, 1, dtype="bfloat16")
        b.copy(tile, b.given(np.full((128, 1), 1 + 2.0**-12, np.float32)))
        out = b.output(128, 1)
        b.copy(out, tile)
        b.run(precise=precise)
        return float(b.array(out)[0, 0])

    assert small(True) == 1
    assert small(False) == 1 + 2.0**-12


class TestRunTimeIndices:
    def test_of_the_whole_view(self, rng):
        b = ProgramBuilder()
        x = rng.standard_normal((16, 32), np.float32)
        src, index = b.given(x), b.given(np.array([[5]], np.int32))
        tile = b.sbuf(1, 1, dtype="int32")
        b.copy(tile, index)
        out = b.output(1, 32)
        b.copy(out, view(src, (1, 32), dynamic=Dynamic("scalar", tile, 32, 16)))
        b.run()
        np.testing.assert_array_equal(b.array(out)[0], x[5])

    @pytest.mark.parametrize("side", ["gather", "scatter"])
    def test_of_rows(self, rng, side):
        b = ProgramBuilder()
        x = rng.standard_normal((64, 32)).astype(ml_dtypes.bfloat16)
        chosen = rng.permutation(64)[:16].astype(np.uint32)
        index = b.sbuf(16, 1, dtype="uint32")
        b.copy(index, b.given(chosen.reshape(16, 1)))
        src = b.given(x if side == "gather" else x[:16].copy())
        out = b.output(16 if side == "gather" else 64, 32, dtype="bfloat16")
        moved = Dynamic("vector", index, 32, 64)
        if side == "gather":
            b.copy(out, view(src, (16, 32), dynamic=moved))
        else:
            b.copy(view(out, (16, 32), dynamic=moved), src)
        b.run()
        expected = x[chosen] if side == "gather" else np.zeros((64, 32), ml_dtypes.bfloat16)
        if side == "scatter":
            expected[chosen] = x[:16]
        np.testing.assert_array_equal(b.array(out), expected)

    def _rows(self, values: list[int], skip: bool) -> ProgramBuilder:
        b = ProgramBuilder()
        index = b.sbuf(len(values), 1, dtype="int32")
        b.copy(index, b.given(np.array(values, np.int32).reshape(-1, 1)))
        out = b.output(len(values), 4, dtype="int32")
        b.array(out)[:] = 7
        src = b.given(np.arange(40, dtype=np.int32).reshape(10, 4))
        b.copy(out, view(src, (len(values), 4), dynamic=Dynamic("vector", index, 4, 10)), skip)
        return b

    @pytest.mark.parametrize("bad", [10, -1, 1 << 30])
    def test_out_of_bounds_is_a_fault(self, bad):
        with pytest.raises(_engines.ProgramFault) as raised:
            self._rows([1, bad, 2], False).run()
        assert (raised.value.kind, raised.value.instruction, raised.value.program) == ("out_of_bounds", 1, 0)
        assert str(bad) in raised.value.detail
        assert "10" in raised.value.detail

    def test_out_of_bounds_may_be_left_out(self):
        b = self._rows([1, 10, -1, 2], True)
        b.run()
        result = next(a for n, a in b.arrays.items() if b.trace.storages[n].role == "output")
        np.testing.assert_array_equal(result, [[4, 5, 6, 7], [7] * 4, [7] * 4, [8, 9, 10, 11]])

    def test_indirect_columns(self, rng):
        """Index i is in partition i % 16 and column i // 16 of the list."""
        b = ProgramBuilder()
        x = rng.standard_normal((16, 64), np.float32)
        chosen = rng.integers(0, 64, 24)
        lists = np.zeros((16, 2), np.int32)
        for i, value in enumerate(chosen):
            lists[i % 16, i // 16] = value
        index, tile = b.sbuf(16, 2, dtype="int32"), b.sbuf(16, 64)
        b.copy(index, b.given(lists))
        b.copy(tile, b.given(x))
        out = b.output(16, 24)
        b.copy(out, view(tile, (16, 24), (64, 1), dynamic=Dynamic("indirect", index, 1, 64, 16)))
        b.run()
        np.testing.assert_array_equal(b.array(out), x[:, chosen])


class TestOtherTransfers:
    def test_transposes(self, rng):
        for shape, axes in (((48, 128), (1, 0)), ((4, 6, 16), (2, 1, 0)), ((3, 2, 5, 16), (3, 1, 2, 0))):
            b = ProgramBuilder()
            x = rng.standard_normal(shape).astype(ml_dtypes.bfloat16)
            expected = x.transpose(axes)
            tile = b.sbuf(*expected.shape, dtype="bfloat16")
            b.emit("dma_transpose", tile, b.given(x), axes, False)
            out = b.stored(tile)
            b.run()
            np.testing.assert_array_equal(b.array(out), expected)

    def test_gathering_transpose(self, rng):
        """Indices go down the columns of a list of 128 partitions."""
        b = ProgramBuilder()
        x = rng.standard_normal((300, 64)).astype(ml_dtypes.bfloat16)
        lists = rng.integers(0, 300, (128, 2)).astype(np.uint32)
        index = b.sbuf(128, 2, dtype="uint32")
        b.copy(index, b.given(lists))
        tile = b.sbuf(64, 256, dtype="bfloat16")
        b.emit(
            "dma_transpose", tile, view(b.given(x), (256, 64), dynamic=Dynamic("vector", index, 64, 300)), None, False
        )
        out = b.stored(tile)
        b.run()
        np.testing.assert_array_equal(b.array(out), x[lists.T.flatten()].T)

    def test_sums_on_the_way(self, rng):
        b = ProgramBuilder()
        parts = [rng.standard_normal((64, 32)).astype(ml_dtypes.bfloat16) for _ in range(5)]
        out = b.output(64, 32, dtype="bfloat16")
        b.emit("dma_compute", out, tuple(b.given(p) for p in parts), "add", None, False)
        b.run()
        total = np.zeros((64, 32), np.float32)
        for p in parts:
            total += p.astype(np.float32)
        np.testing.assert_array_equal(b.array(out), total.astype(ml_dtypes.bfloat16))

    def test_adding_to_rows(self, rng):
        b = ProgramBuilder()
        x = rng.standard_normal((32, 8), np.float32)
        memory = b.given(x.copy())
        added = rng.standard_normal((4, 8), np.float32)
        index = b.sbuf(4, 1, dtype="int32")
        b.copy(index, b.given(np.array([[3], [30], [99], [0]], np.int32)))
        moved = view(memory, (4, 8), dynamic=Dynamic("vector", index, 8, 32))
        b.emit("dma_compute", moved, (moved, b.given(added)), "add", None, True)
        b.run()
        x[[3, 30, 0]] += added[[0, 1, 3]]
        np.testing.assert_array_equal(b.array(memory), x)

    def test_tables_and_masks(self, rng):
        b = ProgramBuilder()
        x = rng.standard_normal((128, 16), np.float32)
        tile, target = b.sbuf(128, 16, address=(0, 64)), b.sbuf(128, 16)
        b.sbuf(128, 2, address=(0, 128))  # makes the block of `tile` wider than its rows
        b.copy(tile, b.given(x))
        b.emit("fill", target, (), 0.0)
        source = rng.permutation(128 * 16).astype(np.int64)
        source[::7] = -1
        b.emit("table_copy", target, tile, None, source)
        out = b.stored(target)
        mask = rng.random((128, 16)) < 0.5
        b.emit("masked_copy", target, tile, mask)
        masked = b.stored(target)
        b.run()
        expected = np.where(source < 0, 0, x.reshape(-1)[source]).reshape(128, 16)
        np.testing.assert_array_equal(b.array(out), expected)
        np.testing.assert_array_equal(b.array(masked), np.where(mask, x, expected))


def test_private_hbm_belongs_to_the_machine(rng):
    b = ProgramBuilder()
    x = rng.standard_normal((200, 30), np.float32)
    scratch = b.scratch(200, 30)
    b.copy(rows(scratch, 0, 100), rows(b.given(x), 0, 100))
    out = b.stored(scratch)
    b.run()
    np.testing.assert_array_equal(b.array(out)[:100], x[:100])
    assert np.isnan(b.array(out)[100:]).all()


def test_one_program_on_several_threads():
    b = ProgramBuilder()
    src, out = b.given(np.zeros((128, 64), np.float32)), b.output(128, 64)
    tile = b.sbuf(128, 64)
    b.copy(tile, src)
    b.copy(out, tile)
    program = b.program()
    inputs = [np.full((128, 64), i, np.float32) for i in range(8)]
    outputs = [np.zeros((128, 64), np.float32) for _ in range(8)]

    def work(i: int) -> None:
        for _ in range(200):
            _engines.run([program], [[inputs[i].ctypes.data, outputs[i].ctypes.data]])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i in range(8):
        assert (outputs[i] == i).all()


def test_programs_outlive_their_trace():
    b = ProgramBuilder()
    out = b.output(128, 4)
    tile = b.sbuf(128, 4)
    b.emit("fill", tile, (), 3.0)
    b.copy(out, tile)
    program, addresses, array = b.program(), b.addresses(), b.array(out)
    del b, out, tile
    gc.collect()
    _engines.run([program], [addresses])
    assert (array == 3).all()
