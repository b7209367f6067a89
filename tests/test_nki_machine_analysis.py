"""What is known of a program before it runs: reads of what nobody wrote, and who waits for whom."""

from __future__ import annotations

import time

import numpy as np
import pytest
from nki_programs import ProgramBuilder, columns, rows, view

from nki.tensor import Dynamic, NkiTensor

ZEROS = np.zeros((128, 64), np.float32)


class TestUnwrittenReads:
    def test_none_where_all_was_written_before(self):
        b = ProgramBuilder()
        tile = b.sbuf(128, 64)
        for start in range(0, 64, 16):
            b.copy(columns(tile, start, start + 16), columns(b.given(ZEROS), start, start + 16))
        b.stored(tile)
        assert b.program().unwritten_reads() == []
        assert b.program().unwritten_storages() == []

    def test_one_column_is_missing(self):
        b = ProgramBuilder()
        tile = b.sbuf(128, 64)
        b.copy(columns(tile, 0, 63), columns(b.given(ZEROS), 0, 63))
        b.emit("copy", b.sbuf(128, 63), columns(tile, 0, 63))
        b.emit("copy", b.sbuf(128, 64), tile)
        assert b.program().unwritten_reads() == [(2, 1, tile.storage.number)]

    def test_some_partitions_are_missing(self):
        b = ProgramBuilder()
        tile = b.sbuf(128, 64)
        b.emit("fill", rows(tile, 0, 96), (), 0.0)
        b.emit("copy", b.sbuf(96, 64), rows(tile, 0, 96))
        b.emit("copy", b.sbuf(128, 64), tile)
        b.emit("fill", columns(rows(tile, 96, 128), 0, 32), (), 0.0)
        b.emit("copy", b.sbuf(128, 32), columns(tile, 0, 32))
        b.emit("copy", b.sbuf(128, 33), columns(tile, 0, 33))
        assert [i for i, _, _ in b.program().unwritten_reads()] == [2, 5]

    def test_every_second_element(self):
        b = ProgramBuilder()
        tile = b.sbuf(128, 64)
        b.emit("fill", columns(tile, 0, 64, 2), (), 0.0)
        b.emit("copy", b.sbuf(128, 32), columns(tile, 0, 64, 2))
        b.emit("copy", b.sbuf(128, 32), columns(tile, 1, 64, 2))
        b.emit("fill", columns(tile, 1, 64, 2), (), 0.0)
        b.emit("copy", b.sbuf(128, 64), tile)
        assert [i for i, _, _ in b.program().unwritten_reads()] == [2]

    def test_through_an_overlapping_address(self):
        b = ProgramBuilder()
        tile, half = b.sbuf(128, 64, address=(0, 0)), b.sbuf(128, 32, address=(0, 128))
        b.emit("fill", tile, (), 0.0)
        b.emit("copy", b.sbuf(128, 32), half)
        other = b.sbuf(128, 32, address=(0, 1024))
        b.emit("copy", b.sbuf(128, 32), other)
        assert b.program().unwritten_reads() == [(2, 1, other.storage.number)]

    def test_a_dynamic_write_may_have_written_everything(self):
        b = ProgramBuilder()
        tile, r = b.sbuf(128, 64), b.register()
        moved = view(tile, (128, 1), (64, 1), dynamic=Dynamic("scalar", r, 1, 64))
        b.emit("copy", b.sbuf(128, 1), moved)
        b.emit("fill", moved, (), 0.0)
        b.emit("copy", b.sbuf(128, 64), tile)
        assert [i for i, _, _ in b.program().unwritten_reads()] == [0]

    def test_outputs_that_nobody_writes(self):
        b = ProgramBuilder()
        written, forgotten = b.output(128, 64), b.output(128, 64)
        b.copy(written, b.given(ZEROS))
        assert b.program().unwritten_storages() == [forgotten.storage.number]

    @pytest.mark.parametrize("role", ["", "output"])
    def test_what_another_core_may_have_written(self, role):
        b = ProgramBuilder()
        shared = b._storage("shared_hbm", (128, 64), "float32", role=role)
        b.emit("barrier", (), shared, (0, 1))
        b.emit("copy", b.sbuf(128, 64), shared)
        assert b.program().unwritten_reads() == []
        assert b.program().unwritten_storages() == ([0] if role else [])


class TestDependencies:
    def test_of_reads_and_writes(self):
        b = ProgramBuilder()
        x, tile = b.given(ZEROS), b.sbuf(128, 64)
        b.copy(tile, x)  # 0
        b.emit("copy", b.sbuf(128, 64), tile)  # 1: reads what 0 wrote
        b.emit("copy", b.sbuf(128, 64), tile)  # 2: so does this; readers do not wait for each other
        b.copy(tile, x)  # 3: writes over what 1 and 2 read
        b.emit("copy", b.sbuf(128, 64), tile)  # 4: 0 is over when 3 is
        assert b.program().dependencies() == [(), (0,), (0,), (0, 1, 2), (3,)]

    def test_tiles_of_one_tensor_are_apart(self):
        b = ProgramBuilder()
        memory = b.output(512, 512)
        tile = b.sbuf(128, 128)
        b.emit("fill", tile, (), 0.0)
        for r in range(0, 512, 128):
            for c in range(0, 512, 128):
                b.copy(columns(rows(memory, r, r + 128), c, c + 128), tile)
        assert all(d == (0,) for d in b.program().dependencies()[1:])

    def test_elements_between_each_other(self):
        b = ProgramBuilder()
        tile = b.sbuf(128, 64)
        b.emit("fill", columns(tile, 0, 64, 2), (), 0.0)
        b.emit("fill", columns(tile, 1, 64, 2), (), 0.0)
        blocks = [view(tile, (128, 4, 8), (64, 16, 1), start) for start in (0, 8)]
        for block in blocks:
            b.emit("fill", block, (), 0.0)
        assert b.program().dependencies() == [(), (), (0, 1), (0, 1)]

    def test_of_places(self):
        """The tensors share bytes or not as `places` says, whatever address the kernel asked for."""
        b = ProgramBuilder()
        first, second = b.sbuf(128, 8, address=(0, 0)), b.sbuf(128, 8, address=(0, 16))
        b.emit("fill", first, (), 0.0)
        b.emit("fill", second, (), 0.0)
        program = b.program()
        assert program.dependencies() == [(), (0,)]
        assert program.dependencies([None, None]) == [(), ()]
        assert program.dependencies([(0, 0, 0), (0, 28, 0)]) == [(), (0,)]
        assert program.dependencies([(0, 0, 0), (0, 32, 0)]) == [(), ()]
        assert program.dependencies([(0, 0, 0), (0, 0, 1)]) == [(), ()]
        with pytest.raises(ValueError, match="places"):
            program.dependencies([None])

    def test_of_registers_and_indices(self):
        b = ProgramBuilder()
        r, tile = b.register(), b.sbuf(128, 64)
        b.emit("fill", tile, (), 0.0)
        b.emit("register_move", r, 3)
        b.emit("copy", b.sbuf(128, 1), view(tile, (128, 1), (64, 1), dynamic=Dynamic("scalar", r, 1, 64)))
        b.emit("register_move", r, 4)
        index = b.sbuf(1, 1, dtype="int32")
        b.emit("fill", index, (), 1)
        b.emit("copy", b.sbuf(128, 1), view(tile, (128, 1), (64, 1), dynamic=Dynamic("scalar", index, 1, 64)))
        assert b.program().dependencies() == [(), (), (0, 1), (1, 2), (), (0, 4)]

    def test_that_the_kernel_asks_for(self):
        b = ProgramBuilder()
        first = b.emit("fill", b.sbuf(128, 1), (), 0.0)
        b.emit("fill", b.sbuf(128, 1), (), 0.0)
        b.emit("fill", b.sbuf(128, 1), (), 0.0).after = (first,)
        assert b.program().dependencies() == [(), (), (0,)]

    @pytest.mark.parametrize("region", ["sbuf", "shared_hbm"])
    @pytest.mark.parametrize("seed", range(6))
    def test_match_a_comparison_element_by_element(self, region, seed):
        """Everything that must be waited for is, at least through others; and nothing that shares no hull is."""
        rng = np.random.default_rng(seed)
        b = ProgramBuilder()
        tile = b._storage(region, (16, 40), "float32")
        touched: list[tuple[bool, set[int]]] = []
        for _ in range(120):
            part, first, last, step = self._random_view(rng, tile)
            writes = bool(rng.integers(0, 2))
            if writes:
                b.emit("fill", part, (), 0.0)
            else:
                b.emit("copy", b.sbuf(*part.shape), part)
            numbers = {r * 40 + c for r in range(*first) for c in range(last[0], last[1], step)}
            touched.append((writes, numbers))
        found = b.program().dependencies()
        closure: list[set[int]] = []
        for i, before in enumerate(found):
            closure.append(set(before).union(*(closure[j] for j in before)))
            for j in range(i):
                conflict = (touched[i][0] or touched[j][0]) and bool(touched[i][1] & touched[j][1])
                assert not conflict or j in closure[i], (i, j)
                if j in before:
                    assert conflict, (i, j)

    @staticmethod
    def _random_view(
        rng: np.random.Generator, tile: NkiTensor
    ) -> tuple[NkiTensor, tuple[int, int], tuple[int, int], int]:
        r0, c0 = int(rng.integers(0, 16)), int(rng.integers(0, 40))
        r1, c1 = int(rng.integers(r0 + 1, 17)), int(rng.integers(c0 + 1, 41))
        step = 2 if rng.integers(0, 3) == 0 else 1
        return columns(rows(tile, r0, r1), c0, c1, step), (r0, r1), (c0, c1), step


def test_analysis_is_nearly_linear():
    """100,000 instructions over tiles of large tensors: quadratic work would take minutes."""
    b = ProgramBuilder()
    source, target = b.given(np.zeros((2048, 4096), np.float32)), b.output(2048, 4096)
    tiles = [b.sbuf(128, 64) for _ in range(32)]
    for i in range(33_333):
        place = i * 7 % 1024
        r, c = place // 64 * 128, place % 64 * 64
        tile = tiles[i % 32]
        b.copy(tile, columns(rows(source, r, r + 128), c, c + 64))
        b.emit("tensor_scalar", tile, (tile, 2.0, None), "multiply", False, None, False)
        b.copy(columns(rows(target, r, r + 128), c, c + 64), tile)
    begin = time.perf_counter()
    program = b.program()
    found = program.dependencies()
    assert program.unwritten_reads() == []
    assert time.perf_counter() - begin < 60
    assert max(map(len, found)) <= 6
