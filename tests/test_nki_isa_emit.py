"""What each function of nki.isa appends to the trace: operation, engine, operands and attributes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from nki_tiles import hbm, psum, tile

import nki.isa as nisa
from nki import errors
from nki.element_types import of
from nki.instruction import Instruction
from nki.operators import average, bypass
from nki.tensor import NkiTensor
from nki.trace import Trace, tracing


@contextmanager
def kernel(target: str = "trn2", grid: tuple[int, ...] = ()) -> Iterator[Trace]:
    with tracing(Trace(target, grid=grid)) as trace:
        yield trace


def ops(trace: Trace) -> list[str]:
    return [instruction.op for instruction in trace.instructions]


def facts(instruction: Instruction) -> tuple[str, str, tuple[Any, ...]]:
    return instruction.op, instruction.engine, instruction.attrs


def test_instruction_knows_its_line_and_name() -> None:
    with kernel() as trace:
        a = tile(128, 8)
        returned = nisa.tensor_copy(dst=a, src=tile(128, 8), name="mine")
    assert returned is trace.instructions[0]
    assert returned.line[0] == __file__
    assert returned.line[2] == "test_instruction_knows_its_line_and_name"
    assert trace.named == {"mine": returned}


@pytest.mark.parametrize(
    ("operator", "dtype", "engine", "expected"),
    [
        ("add", "float32", None, ("vector", False)),
        ("add", "int32", None, ("gpsimd", True)),
        ("multiply", "uint32", None, ("gpsimd", True)),
        ("add", "int32", nisa.engine.vector, ("vector", False)),
        ("add", "float32", nisa.engine.gpsimd, ("gpsimd", False)),
        ("power", "float32", None, ("gpsimd", False)),
        ("bitwise_and", "int32", None, ("vector", False)),
        ("bitwise_xor", "uint8", None, ("vector", False)),
    ],
)
def test_tensor_tensor_chooses_the_engine(operator: str, dtype: str, engine: Any, expected: tuple[str, bool]) -> None:
    with kernel():
        a, b, c = (tile(64, 16, dtype=dtype) for _ in range(3))
        made = nisa.tensor_tensor(a, b, c, operator, **({"engine": engine} if engine else {}))
    assert (made.engine, made.attrs) == (expected[0], (operator, expected[1]))
    assert made.out == (a,)
    assert made.args == (b, c)


def test_integers_in_psum_are_computed_in_fp32() -> None:
    with kernel():
        a, b, c = tile(8, 8, dtype="int32"), psum(8, 8, dtype="int32"), tile(8, 8, dtype="int32")
        made = nisa.tensor_tensor(dst=a, data1=b, data2=c, op="add")
    assert facts(made) == ("tensor_tensor", "vector", ("add", False))


@pytest.mark.parametrize("token", ["maximum", np.maximum, np.max, max, "max"])
def test_operators_go_by_many_names(token: Any) -> None:
    with kernel():
        made = nisa.tensor_reduce(tile(8, 1), token, tile(8, 32), axis=1)
    assert made.attrs == ("maximum", 1, False)


def test_tensor_scalar() -> None:
    with kernel():
        a, b, column = tile(128, 4, 8), tile(128, 32), tile(128, 1)
        made = nisa.tensor_scalar(a, b, np.subtract, column, True, "multiply", 2.0)
        unary = nisa.tensor_scalar(a, b, "rsqrt", None)
        bits = nisa.tensor_scalar(tile(8, 8, dtype="int32"), tile(8, 8, dtype="int32"), "right_shift", 3)
        on_scalar = nisa.tensor_scalar(a, b, "multiply", 2.0, op1="add", operand1=1.0, engine=nisa.scalar_engine)
    assert facts(made) == ("tensor_scalar", "vector", ("subtract", True, "multiply", False))
    assert made.args == (b, column, 2.0)
    assert (unary.engine, unary.args, unary.attrs) == ("gpsimd", (b, 0, None), ("rsqrt", False, None, False))
    assert (bits.engine, bits.args[1:]) == ("vector", (3, None))
    assert on_scalar.engine == "scalar"


def test_scalar_tensor_tensor() -> None:
    with kernel():
        a, b, c = tile(32, 16), tile(32, 16), psum(32, 16)
        made = nisa.scalar_tensor_tensor(
            a, data=b, op0="subtract", operand0=1.5, op1="multiply", operand1=c, reverse1=True
        )
    assert facts(made) == ("scalar_tensor_tensor", "vector", ("subtract", "multiply", False, True))
    assert made.args == (b, 1.5, c)


def test_copies() -> None:
    with kernel():
        a, b = tile(16, 8, dtype="bfloat16"), psum(16, 8)
        plain = nisa.tensor_copy(a, b)
        scalar = nisa.tensor_copy(dst=a, src=b, dtype=of("bfloat16"), engine=nisa.engine.scalar)
        flags = tile(16, 8, dtype="uint8")
        chosen = nisa.tensor_copy_predicated(src=3.0, dst=a, predicate=flags, reverse_pred=True)
        filled = nisa.memset(a, value=0)
    assert facts(plain) == ("copy", "vector", ())
    assert scalar.engine == "scalar"
    assert facts(chosen) == ("copy_predicated", "vector", (True,))
    assert chosen.args == (3.0, flags)
    assert facts(filled) == ("fill", "vector", (0,))


@pytest.mark.parametrize(
    ("axis", "left", "count"), [(3, (4, 2, 3), 1), ((2, 3), (4, 2), 2), ([1, 2, 3], (4, 1), 3), (-1, (4, 2, 3, 1), 1)]
)
def test_tensor_reduce_counts_trailing_axes(axis: Any, left: tuple[int, ...], count: int) -> None:
    with kernel():
        made = nisa.tensor_reduce(dst=tile(*left), op="add", data=tile(4, 2, 3, 5), axis=axis, negate=True)
    assert facts(made) == ("tensor_reduce", "vector", ("add", count, True))


def test_reductions() -> None:
    with kernel("trn3"):
        a, b, column = tile(16, 8), tile(16, 8), tile(16, 1)
        tsr = nisa.tensor_scalar_reduce(a, data=b, op0="add", operand0=1.0, reduce_op="max", reduce_res=column)
        loaded = nisa.tensor_scalar_reduce(
            a, b, "add", 1.0, "add", reduce_cmd=nisa.reduce_cmd.load_reduce, reduce_init=column, reduce_res_negate=True
        )
        running = nisa.tensor_scalar_cumulative(a, b, "multiply", "add", 2.0)
        scan = nisa.tensor_tensor_scan(a, b, tile(16, 8), 0.0, np.multiply, np.add, reverse0=True)
        across = nisa.tensor_partition_reduce(tile(1, 8), average, b)
        exponentials = nisa.exponential(
            a, b, max_value=column, reduce_res=column, reduce_cmd=nisa.reduce_cmd.reset_reduce
        )
        stats = nisa.bn_stats(tile(16, 6), b)
        merged = nisa.bn_aggr(tile(16, 2), tile(16, 12))
        inverse = nisa.reciprocal(a, b)
    assert facts(tsr) == ("tensor_scalar_reduce", "vector", ("add", False, "maximum", "reset_reduce", False))
    assert tsr.out == (a, column)
    assert tsr.args == (b, 1.0, None)
    assert loaded.attrs == ("add", False, "add", "load_reduce", True)
    assert loaded.args == (b, 1.0, column)
    assert facts(running) == ("tensor_scalar_cumulative", "vector", ("multiply", "add", "reset_reduce"))
    assert facts(scan) == ("scan", "vector", ("multiply", "add", True, False))
    assert facts(across) == ("partition_reduce", "gpsimd", ("average",))
    assert facts(exponentials) == ("exponential", "vector", ("reset_reduce",))
    assert facts(stats) == ("bn_stats", "vector", ())
    assert facts(merged) == ("bn_aggr", "vector", ())
    assert facts(inverse) == ("reciprocal", "vector", ())


def test_activations() -> None:
    with kernel("trn3"):
        a, b, column = tile(16, 8), psum(16, 8), tile(16, 1)
        plain = nisa.activation(dst=a, op=np.exp, data=b)
        full = nisa.activation(
            a,
            "gelu",
            b,
            bias=column,
            scale=column,
            reduce_op="add",
            reduce_res=column,
            reduce_cmd=nisa.reduce_cmd.reduce,
        )
        reduced = nisa.activation_reduce(a, op=np.square, data=b, reduce_op=np.add, reduce_res=column, scale=2)
        second = nisa.activate2(a, "silu", b, 2.0, column, "multiply", "subtract", reverse0=True)
        bare = nisa.activate2(a, "copy", b, None, None, bypass, bypass)
    assert facts(plain) == ("activation", "scalar", ("exp", "add", "idle"))
    assert (plain.out, plain.args) == ((a, None), (b, 0.0, 1.0))
    assert facts(full) == ("activation", "scalar", ("gelu", "add", "reduce"))
    assert (full.out, full.args) == ((a, column), (b, column, column))
    assert reduced.attrs == ("square", "add", "reset_reduce")
    assert reduced.args == (b, 0.0, 2)
    assert facts(second) == ("activate2", "scalar", ("silu", "multiply", "subtract", True, False, "add", "idle"))
    assert second.args == (b, 2.0, column, 0.0)
    assert bare.attrs[:3] == ("copy", "bypass", "bypass")


def test_matmul() -> None:
    with kernel():
        a, b, c = tile(128, 64, dtype="bfloat16"), tile(128, 2, 256, dtype="bfloat16"), psum(64, 512)
        plain = nisa.nc_matmul(c, a, b)
        adding = nisa.nc_matmul(dst=c, stationary=a, moving=b, accumulate=np.bool_(True))
        tiled = nisa.nc_matmul(c, a, b, is_moving_onezero=True)
        half = tile(64, 64, dtype="bfloat16"), tile(64, 512, dtype="bfloat16")
        placed = nisa.nc_matmul(c, *half, tile_position=(64, 0), tile_size=(64, 128))
    assert facts(plain) == ("matmul", "tensor", (None, False, False))
    assert (plain.out, plain.args, plain.hints) == ((c,), (a, b), None)
    assert adding.attrs == (True, False, False)
    assert tiled.hints is not None
    assert tiled.hints["is_moving_onezero"] is True
    assert placed.hints is not None
    assert (placed.hints["tile_position"], placed.hints["tile_size"]) == ((64, 0), (64, 128))


def test_double_row_contracts_two_dimensions() -> None:
    with kernel():
        a, b = tile(128, 2, 128, dtype="float8_e4m3"), tile(128, 2, 512, dtype="float8_e5m2")
        made = nisa.nc_matmul(psum(128, 512), a, b, perf_mode=nisa.matmul_perf_mode.double_row)
    assert made.attrs == (None, True, False)


def test_matmul_as_transpose_keeps_the_type() -> None:
    with kernel():
        a, identity = tile(128, 64, dtype="bfloat16"), tile(128, 128, dtype="bfloat16")
        made = nisa.nc_matmul(psum(64, 128, dtype="bfloat16"), a, identity, is_transpose=True)
    assert made.attrs == (None, False, True)


def test_wide_matmul_of_the_newest_generation() -> None:
    with kernel("trn3"):
        a, b = tile(128, 128, dtype="float8_e4m3fn"), tile(128, 8192, dtype="float8_e4m3fn")
        made = nisa.nc_matmul(psum(128, 8192, dtype="bfloat16"), a, b)
    assert made.op == "matmul"


def test_matmul_mx_with_scales_packed_into_one_tile() -> None:
    with kernel("trn3") as trace:
        a, b = tile(128, 64, dtype="float8_e4m3fn_x4"), tile(128, 512, dtype="float8_e5m2_x4")
        scales = tile(128, 512, dtype="uint8")
        upper = NkiTensor(scales.storage, scales.dtype, (124, 64), scales.strides, 4 * 512)
        nisa.quantize_mx(dst=a, src=tile(128, 256, dtype="bfloat16"), dst_scale=upper)
        made = nisa.nc_matmul_mx(psum(64, 512), a, b, upper, scales)
    assert ops(trace) == ["quantize_mx", "matmul_mx"]
    assert facts(made) == ("matmul_mx", "tensor", (None,))


@pytest.mark.parametrize(
    ("data", "dst", "engine"), [("sbuf", "psum", "tensor"), ("sbuf", "sbuf", "vector"), ("psum", "psum", "vector")]
)
def test_transpose_goes_by_where_the_result_lies(data: str, dst: str, engine: str) -> None:
    with kernel():
        made = nisa.nc_transpose(
            tile(32, 16, dtype="bfloat16", region=dst), tile(16, 32, dtype="bfloat16", region=data)
        )
    assert facts(made) == ("transpose", engine, ())


def test_dma() -> None:
    with kernel() as trace:
        a, b = hbm(256, 64), tile(128, 128, dtype="bfloat16")
        plain = nisa.dma_copy(dst=b, src=a)
        moded = nisa.dma_copy(a, b, oob_mode=nisa.oob_mode.skip, dge_mode=nisa.dge_mode.swdge)
        turned = nisa.dma_transpose(tile(64, 5, 3), hbm(3, 5, 64))
        summed = nisa.dma_compute(b, [a, a, a], reduce_op="add", scales=[1.0, 1, 1.0])
    assert facts(plain) == ("dma_copy", "dma", (False,))
    assert plain.hints is None
    assert moded.attrs == (True,)
    assert moded.hints == {"dge_mode": "swdge"}
    assert facts(turned) == ("dma_transpose", "dma", ((2, 1, 0), False))
    assert facts(summed) == ("dma_compute", "dma", ("add", (1.0, 1.0, 1.0), False))
    assert len(summed.args) == 3
    assert len(trace.instructions) == 4


def test_descriptor_modes_by_number_as_older_kernels_pass_them() -> None:
    with kernel():
        made = nisa.dma_copy(tile(8, 4), hbm(8, 4), dge_mode=3)
        with pytest.raises(errors.EnumMemberError, match="swdge"):
            nisa.dma_copy(tile(8, 4), hbm(8, 4), dge_mode=7)
    assert made.hints == {"dge_mode": "none"}


def test_gpsimd() -> None:
    with kernel("trn3"):
        a, b = tile(32, 12, dtype="int32"), tile(32, 12)
        register = nisa.register_alloc(3)
        numbers = nisa.iota(a, [[4, 3], [1, 4]], offset=register, channel_multiplier=12)
        masked = nisa.affine_select(
            pattern=[[-1, 12]], offset=-1, channel_multiplier=1, on_true_tile=b, on_false_value=-9984, dst=b,
            cmp_op=np.greater_equal,
        )  # fmt: skip
        index = tile(32, 4, dtype="uint16")
        near = nisa.local_gather(tile(32, 62, 2), tile(32, 100), index, 2, 62)
        each = nisa.nc_n_gather(tile(32, 12), b, tile(32, 12, dtype="uint32"))
        found = nisa.nonzero_with_count(tile(32, 13, dtype="int32"), a, index_offset=7)
        bounds = nisa.sequence_bounds(tile(1, 2, 9, dtype="int32"), tile(1, 9, dtype="int32"))
        largest = nisa.topk(
            tile(16, 8, dtype="bfloat16"), tile(16, 8, dtype="uint32"), tile(16, 3, dtype="bfloat16"), 42
        )  # fmt: skip
    assert facts(numbers) == ("iota", "gpsimd", (((4, 3), (1, 4)), 12))
    assert numbers.args == (register,)
    assert facts(masked) == ("affine_select", "gpsimd", (((-1, 12),), 1, -9984.0, "greater_equal"))
    assert masked.args == (b, -1)
    assert facts(near) == ("local_gather", "gpsimd", (2, 62))
    assert facts(each) == ("n_gather", "gpsimd", ())
    assert facts(found) == ("nonzero_with_count", "gpsimd", (7, -1))
    assert facts(bounds) == ("sequence_bounds", "gpsimd", ())
    assert facts(largest) == ("topk", "gpsimd", (42,))


def test_selection_and_search() -> None:
    with kernel():
        a, b, column = tile(64, 16), tile(64, 16), tile(64, 1)
        ranged = nisa.range_select(
            a,
            on_true_tile=b,
            comp_op0="greater_equal",
            comp_op1="less",
            bound0=column,
            bound1=column,
            reduce_res=column,
            range_start=32,
            on_false_value=np.finfo(np.float32).min,
        )
        chosen = nisa.select_reduce(a, tile(64, 16, dtype="uint8"), b, 0.5, reverse_pred=True)
        eight = tile(64, 8)
        best = nisa.max8(eight, a)
        where = nisa.nc_find_index8(tile(64, 8, dtype="uint32"), a, eight)
        replaced = nisa.nc_match_replace8(b, a, eight, -1, dst_idx=tile(64, 8, dtype="uint16"))
        mask = [255, *range(31)]
        shuffled = nisa.nc_stream_shuffle(a, b, mask)
    lowest = float(np.finfo(np.float32).min)
    assert facts(ranged) == (
        "range_select", "vector", ("greater_equal", "less", "reset_reduce", "maximum", 32, lowest)
    )  # fmt: skip
    assert facts(chosen) == ("select_reduce", "vector", ("idle", "maximum", True))
    assert facts(best) == ("max8", "vector", ())
    assert facts(where) == ("find_index8", "vector", ())
    assert facts(replaced) == ("match_replace8", "vector", (-1.0,))
    assert facts(shuffled) == ("shuffle", "vector", (tuple(mask),))


def test_random_numbers() -> None:
    with kernel("trn3") as trace:
        bits = tile(32, 8, dtype="uint16")
        nisa.rng(bits)
        nisa.rng(bits, engine=nisa.engine.gpsimd)
        nisa.rand2(tile(32, 8), 0.0, tile(32, 1))
        nisa.dropout(tile(32, 8), tile(32, 8), 0.25)
        nisa.set_rng_seed(tile(1, 1, dtype="int32"))
        nisa.rand_set_state(tile(32, 6, dtype="uint32"))
        nisa.rand_get_state(tile(32, 24, dtype="uint32"), engine=nisa.engine.vector)
    assert [(i.op, i.engine) for i in trace.instructions] == [
        ("rng", "vector"), ("rng", "gpsimd"), ("rand2", "vector"), ("dropout", "vector"), ("set_rng_seed", "vector"),
        ("rand_set_state", "gpsimd"), ("rand_get_state", "vector")
    ]  # fmt: skip


def test_two_cores() -> None:
    with kernel(grid=(2,)):
        a, b = tile(32, 8), tile(32, 8)
        exchanged = nisa.sendrecv(src=a, dst=b, send_to_rank=1, recv_from_rank=1, pipe_id=3)
        waited = nisa.core_barrier(hbm(4, 4), (0, 1))
    assert facts(exchanged) == ("sendrecv", "dma", (1, 1, 3))
    assert (exchanged.out, exchanged.args) == ((b,), (a,))
    assert facts(waited) == ("barrier", "gpsimd", ((0, 1),))


@pytest.mark.parametrize(("target", "version"), [("trn1", 2), ("trn2", 3), ("trn3", 4)])
def test_version_is_that_of_the_target(target: str, version: int) -> None:
    with kernel(target):
        found = nisa.get_nc_version()
        assert found is nisa.nc_version(version)
        assert found == version
        assert (found >= nisa.nc_version.gen3) == (version >= 3)
        assert nisa.get_nc_sub_version() == 0


def test_order_is_asked_for_with_depends_on() -> None:
    with kernel():
        a = tile(8, 8)
        first, second, third = (nisa.memset(a, value=float(i)) for i in range(3))
        assert third.depends_on(first, second) is third
        assert third.after == (first, second)
        with pytest.raises(errors.DependencyError, match="comes after"):
            first.depends_on(third)


def test_order_does_not_reach_into_loops() -> None:
    with kernel() as trace:
        a = tile(8, 8)
        line = ("", 0, "")
        before = nisa.memset(a, value=0.0)
        trace.add(Instruction("loop_begin", "sync", (), (0, 4), (1,), line))
        inside = nisa.memset(a, value=1.0).depends_on(before)
        trace.add(Instruction("loop_end", "sync", (), (), (), line))
        with pytest.raises(errors.DependencyError, match="dynamic loop"):
            nisa.memset(a, value=2.0).depends_on(inside)
    with kernel(), pytest.raises(errors.DependencyError, match="another kernel"):
        nisa.memset(tile(8, 8), value=2.0).depends_on(before)


def test_outside_of_a_kernel() -> None:
    with kernel():
        a = tile(8, 8)
    with pytest.raises(errors.OutsideKernelError, match="tensor_copy"):
        nisa.tensor_copy(a, a)


def test_constants_have_the_enumerations() -> None:
    from nki.isa import constants

    assert constants.oob_mode is nisa.oob_mode
    assert constants.dge_mode.hwdge.value == 2
    assert nisa.vector_engine is nisa.engine.vector
