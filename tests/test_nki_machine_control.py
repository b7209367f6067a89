"""Control of the simulated core: registers, loops, printing, and what several cores do together."""

from __future__ import annotations

import numpy as np
import pytest
from nki_programs import ProgramBuilder, columns, run_together, view

from nki import _engines
from nki.tensor import Dynamic


def value_of(b: ProgramBuilder, register) -> np.ndarray:
    tile = b.sbuf(1, 1, dtype="int32")
    b.emit("register_store", tile, register)
    return b.array(b.stored(tile))


@pytest.mark.parametrize(
    ("op", "a", "b", "expected"),
    [
        ("add", 2**31 - 1, 1, -(2**31)),
        ("multiply", 1 << 20, 1 << 20, 0),
        ("subtract", -5, 7, -12),
        ("maximum", -5, 7, 7),
        ("left_shift", 3, 4, 48),
        ("right_shift", -1, 28, 15),
        ("arithmetic_right_shift", -16, 2, -4),
        ("bitwise_and", 12, 10, 8),
        ("less", 3, 4, 1),
        ("equal", 3, 4, 0),
        ("mod", -7, 4, 1),
        ("divide", -7, 2, -4),
    ],
)
def test_registers_have_32_bits(op, a, b, expected):
    builder = ProgramBuilder()
    x, y, z = (builder.register() for _ in range(3))
    builder.emit("register_move", x, a)
    builder.emit("register_move", y, b)
    builder.emit("register_alu", z, (x, y), op)
    result = value_of(builder, z)
    builder.run()
    assert result[0, 0] == expected


def test_dividing_by_zero_is_a_fault():
    b = ProgramBuilder()
    x = b.register()
    b.emit("register_alu", x, (1, 0), "divide")
    with pytest.raises(_engines.ProgramFault, match="divided by 0"):
        b.run()


def test_registers_load_from_tiles():
    b = ProgramBuilder()
    tile = b.sbuf(1, 1, dtype="int32")
    b.copy(tile, b.given(np.array([[-123]], np.int32)))
    r = b.register()
    b.emit("register_load", r, tile)
    result = value_of(b, r)
    b.run()
    assert result[0, 0] == -123


class TestLoops:
    @pytest.mark.parametrize(("lower", "upper", "step"), [(0, 5, 1), (2, 11, 3), (3, 3, 1), (5, 2, 1)])
    def test_run_through_their_range(self, lower, upper, step):
        b = ProgramBuilder()
        out = b.given(np.zeros((1, 16), np.float32))
        one = b.sbuf(1, 1)
        b.emit("fill", one, (), 1.0)
        i = b.register()
        b.emit("loop_begin", i, (lower, upper), step)
        b.copy(view(out, (1, 1), (16, 1), dynamic=Dynamic("scalar", i, 1, 16)), one)
        b.emit("loop_end", (), ())
        b.run()
        assert np.flatnonzero(b.array(out)[0]).tolist() == list(range(lower, upper, step))

    def test_nest_and_take_bounds_from_registers(self):
        b = ProgramBuilder()
        i, j, total = (b.register() for _ in range(3))
        b.emit("loop_begin", i, (0, 4), 1)
        b.emit("loop_begin", j, (0, i), 1)
        b.emit("register_alu", total, (total, j), "add")
        b.emit("loop_end", (), ())
        b.emit("loop_end", (), ())
        result = value_of(b, total)
        b.run()
        assert result[0, 0] == sum(j for i in range(4) for j in range(i))

    def test_go_on_while_a_register_is_not_zero(self):
        b = ProgramBuilder()
        n, steps = b.register(), b.register()
        b.emit("register_move", n, 40)
        b.emit("while_begin", (), n)
        b.emit("register_alu", n, (n, 1), "right_shift")
        b.emit("register_alu", steps, (steps, 1), "add")
        b.emit("while_end", (), ())
        result = value_of(b, steps)
        b.run()
        assert result[0, 0] == 6

    def test_that_do_not_end_are_refused(self):
        b = ProgramBuilder()
        b.emit("loop_begin", b.register(), (0, 4), 1)
        with pytest.raises(ValueError, match="does not end"):
            b.program()
        c = ProgramBuilder()
        c.emit("while_end", (), ())
        with pytest.raises(ValueError, match="not begun"):
            c.program()


class TestMalformedTraces:
    @pytest.mark.parametrize(
        ("op", "out", "args", "attrs", "said"),
        [
            ("fly", (), (), (), "fly"),
            ("copy", (), ("text",), (), "str"),
            ("tensor_tensor", (), (), ("plus", False), "plus"),
            ("tensor_tensor", (), (), ("add",), "attribute 1 is missing"),
        ],
    )
    def test_are_refused_with_the_instruction(self, op, out, args, attrs, said):
        b = ProgramBuilder()
        b.emit("fill", b.sbuf(1, 1), (), 0.0)
        b.emit(op, out, args, *attrs)
        with pytest.raises(ValueError, match=f"instruction 1.*{said}"):
            b.program()

    def test_views_past_the_end(self):
        b = ProgramBuilder()
        tile = b.sbuf(128, 8)
        b.emit("fill", view(tile, (128, 8), offset=1), (), 0.0)
        with pytest.raises(ValueError, match="reaches"):
            b.program()


def test_printing():
    b = ProgramBuilder()
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    floats, integers = b.sbuf(2, 3, dtype="bfloat16"), b.sbuf(2, 3, dtype="int32")
    for tile in (floats, integers):
        b.copy(tile, b.given(x))
        b.emit("print", (), tile, "seen: ")
    seen: list[tuple[str, np.ndarray]] = []
    b.run(print=lambda prefix, values: seen.append((prefix, values)))
    assert [(p, v.dtype) for p, v in seen] == [("seen: ", np.float32), ("seen: ", np.int64)]
    for _, values in seen:
        np.testing.assert_array_equal(values, x)


def test_an_error_of_the_printer_reaches_the_caller():
    b = ProgramBuilder()
    tile = b.sbuf(1, 1)
    b.emit("fill", tile, (), 0.0)
    b.emit("print", (), tile, "")

    def fails(prefix: str, values: np.ndarray) -> None:
        raise KeyError("printer")

    with pytest.raises(KeyError, match="printer"):
        b.run(print=fails)


def cores(n: int) -> list[ProgramBuilder]:
    return [ProgramBuilder() for _ in range(n)]


def test_a_barrier_orders_two_cores():
    """Core 0 reads what core 1 writes before the barrier."""
    memory = np.zeros((128, 8), np.float32)
    pair = cores(2)
    outs = []
    for rank, b in enumerate(pair):
        shared = b.given(memory)
        mine = columns(shared, rank * 4, rank * 4 + 4)
        tile = b.sbuf(128, 4)
        b.emit("fill", tile, (), float(rank + 1))
        b.copy(mine, tile)
        b.emit("barrier", (), shared, (0, 1))
        out = b.output(128, 8)
        b.copy(out, shared)
        outs.append(b.array(out))
    run_together(*pair)
    for out in outs:
        assert (out[:, :4] == 1).all()
        assert (out[:, 4:] == 2).all()


def test_cores_exchange_tiles():
    pair = cores(2)
    outs = []
    for rank, b in enumerate(pair):
        tile = b.sbuf(128, 4)
        b.emit("fill", tile, (), float(rank))
        b.emit("sendrecv", tile, tile, 1 - rank, 1 - rank, 0)  # in place
        outs.append(b.array(b.stored(tile)))
    run_together(*pair)
    assert (outs[0] == 1).all()
    assert (outs[1] == 0).all()


def test_waiting_for_nobody_is_a_deadlock():
    first, second = cores(2)
    tile = first.sbuf(1, 1)
    first.emit("fill", tile, (), 0.0)
    first.emit("sendrecv", tile, tile, 1, 1, 3)
    second.emit("fill", second.sbuf(1, 1), (), 0.0)
    with pytest.raises(_engines.ProgramFault) as raised:
        run_together(first, second)
    assert (raised.value.kind, raised.value.program, raised.value.instruction) == ("deadlock", 0, 1)
    assert "core 0 sends to core 1" in raised.value.detail
    assert "core 1 has finished" in raised.value.detail


class TestCollectives:
    N = 4

    def run(self, kind, inputs, out_shape, groups=((0, 1, 2, 3),), op=None, dimension=None, ins=1):
        """What each rank gets when each brings inputs[rank] (`ins` arrays)."""
        ranks = cores(len(inputs))
        outs = []
        for b, given in zip(ranks, inputs, strict=True):
            arrays = given if isinstance(given, tuple) else (given,)
            out = b.output(*out_shape, dtype=arrays[0].dtype)
            b.emit(
                "collective", out, tuple(b.given(a) for a in arrays), kind, groups, op, dimension, None, engine="dma"
            )
            outs.append(b.array(out))
        run_together(*ranks)
        return outs

    def data(self, *shape):
        rng = np.random.default_rng(8)
        return [rng.standard_normal(shape, np.float32) for _ in range(self.N)]

    @pytest.mark.parametrize(("op", "function"), [("add", np.sum), ("maximum", np.max), ("minimum", np.min)])
    def test_all_reduce(self, op, function):
        x = self.data(6, 5)
        for out in self.run("all_reduce", x, (6, 5), op=op):
            np.testing.assert_allclose(out, function(np.stack(x), axis=0), rtol=1e-5, atol=1e-5)

    def test_integers_are_summed_exactly(self):
        x = [np.full((2, 2), 2**24 + rank, np.int32) for rank in range(4)]
        for out in self.run("all_reduce", x, (2, 2), op="add"):
            assert (out == 4 * 2**24 + 6).all()

    def test_groups_work_apart(self):
        x = self.data(6, 5)
        out = self.run("all_reduce", x, (6, 5), groups=((0, 2), (3, 1)), op="add")
        np.testing.assert_array_equal(out[0], x[0] + x[2])
        np.testing.assert_array_equal(out[1], x[3] + x[1])

    @pytest.mark.parametrize("dimension", [0, 1])
    def test_all_gather(self, dimension):
        x = self.data(6, 5)
        shape = (24, 5) if dimension == 0 else (6, 20)
        for out in self.run("all_gather", x, shape, dimension=dimension):
            np.testing.assert_array_equal(out, np.concatenate(x, axis=dimension))

    def test_reduce_scatter(self):
        x = self.data(8, 5)
        for rank, out in enumerate(self.run("reduce_scatter", x, (2, 5), op="add", dimension=0)):
            np.testing.assert_allclose(out, sum(x)[2 * rank : 2 * rank + 2], rtol=1e-5, atol=1e-6)

    def test_all_to_all(self):
        x = self.data(8, 5)
        for rank, out in enumerate(self.run("all_to_all", x, (8, 5), dimension=0)):
            np.testing.assert_array_equal(out, np.concatenate([a[2 * rank : 2 * rank + 2] for a in x]))

    def test_permute_by_pairs(self):
        x = self.data(3, 3)
        out = self.run("collective_permute", x, (3, 3), groups=((0, 2), (2, 0), (1, 3)))
        np.testing.assert_array_equal(out[2], x[0])
        np.testing.assert_array_equal(out[0], x[2])
        np.testing.assert_array_equal(out[3], x[1])
        assert (out[1] == 0).all()

    def test_permute_along_the_ring(self):
        x = self.data(3, 3)
        out = self.run("permute_implicit", x, (3, 3), groups=((0, 3, 1, 2),))
        for source, target in ((0, 3), (3, 1), (1, 2), (2, 0)):
            np.testing.assert_array_equal(out[target], x[source])

    def test_permute_and_reduce(self):
        x, y = self.data(3, 3), self.data(3, 3)[::-1]
        out = self.run("permute_implicit_reduce", list(zip(x, y, strict=True)), (3, 3), op="add")
        for rank in range(4):
            np.testing.assert_array_equal(out[(rank + 1) % 4], x[rank] + y[rank])

    def test_pieces_of_different_lengths(self):
        n = self.N
        counts = np.array([[1, 2, 0, 3], [2, 2, 1, 0], [0, 4, 1, 1], [3, 0, 2, 1]], np.uint32)
        x = [np.arange(8, dtype=np.float32) + 10 * rank for rank in range(n)]
        ranks = cores(n)
        outs, tables = [], []
        for rank, b in enumerate(ranks):
            starts = np.concatenate([[0], np.cumsum(counts[rank])[:-1]]).astype(np.uint32)
            table = np.stack([counts[rank], starts, np.zeros(n, np.uint32)]).astype(np.uint32)
            out, metadata = b.output(32), b.given(table)
            b.emit("collective", (out, metadata), (b.given(x[rank]), metadata), "all_to_all_v", ((0, 1, 2, 3),), None,
                   None, None, engine="dma")  # fmt: skip
            outs.append(b.array(out))
            tables.append(table)
        run_together(*ranks)
        for rank in range(n):
            np.testing.assert_array_equal(tables[rank][2], counts[:, rank])
            for source in range(n):
                start, count = int(counts[source][:rank].sum()), int(counts[source][rank])
                np.testing.assert_array_equal(outs[rank][8 * source :][:count], x[source][start : start + count])

    def test_a_rank_that_does_not_come(self):
        ranks = cores(2)
        x = np.zeros((2, 2), np.float32)
        out = ranks[0].output(2, 2)
        ranks[0].emit("collective", out, ranks[0].given(x), "all_reduce", ((0, 1),), "add", None, None, engine="dma")
        ranks[1].emit("fill", ranks[1].sbuf(1, 1), (), 0.0)
        with pytest.raises(_engines.ProgramFault, match="all_reduce"):
            run_together(*ranks)
