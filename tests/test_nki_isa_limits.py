"""What nki.isa refuses: limits of the Tensor engine, DMA, GpSimd engine, searches and pairs of cores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from nki_tiles import bf16, columns, hbm, i32, moving, provoke, psum, rows, tile, u8

import nki.isa as nisa
from nki import errors
from nki.trace import Trace, tracing

# Target, call, class of the mistake, and what its text has to name.
Case = tuple[str, Callable[[], Any], type[errors.NkiError], list[str]]
E = nisa.engine
ROW = nisa.matmul_perf_mode.double_row

CASES: list[Case] = [
    # The Tensor engine.
    ("trn2", lambda: nisa.nc_matmul(tile(8, 4), bf16(4, 8), bf16(4, 4)), errors.WrongBufferError, ["dst", "psum"]),
    (
        "trn2",
        lambda: nisa.nc_matmul(psum(8, 4), psum(4, 8, dtype="bfloat16"), bf16(4, 4)),
        errors.WrongBufferError,
        ["stationary", "sbuf"],
    ),
    (
        "trn2",
        lambda: nisa.nc_matmul(psum(8, 4), bf16(4, 8), bf16(5, 4)),
        errors.PartitionMismatchError,
        ["moving", "5"],
    ),
    (
        "trn2",
        lambda: nisa.nc_matmul(psum(8, 5), bf16(4, 8), bf16(4, 4)),
        errors.OperandShapeError,
        ["dst", "8 partitions"],
    ),
    (
        "trn2",
        lambda: nisa.nc_matmul(psum(128, 4), bf16(4, 129), bf16(4, 4)),
        errors.FreeSizeError,
        ["stationary", "128"],
    ),
    ("trn2", lambda: nisa.nc_matmul(psum(8, 513), bf16(4, 8), bf16(4, 513)), errors.FreeSizeError, ["moving", "512"]),
    (
        "trn3",
        lambda: nisa.nc_matmul(psum(8, 4097), bf16(4, 8), bf16(4, 4097)),
        errors.FreeSizeError,
        ["moving", "4096"],
    ),
    (
        "trn2",
        lambda: nisa.nc_matmul(columns(psum(8, 1024), 256, 768), bf16(4, 8), bf16(4, 512)),
        errors.PsumBankError,
        ["1024 to 3071", "2048"],
    ),
    (
        "trn2",
        lambda: nisa.nc_matmul(psum(8, 512, at=(0, 1024)), bf16(4, 8), bf16(4, 512)),
        errors.PsumBankError,
        ["1024 to 3071"],
    ),
    (
        "trn2",
        lambda: nisa.nc_matmul(psum(8, 4), i32(4, 8), i32(4, 4)),
        errors.OperandDtypeError,
        ["stationary", "int32"],
    ),
    (
        "trn2",
        lambda: nisa.nc_matmul(psum(8, 4), tile(4, 8), bf16(4, 4)),
        errors.DtypeMismatchError,
        ["float32", "bfloat16"],
    ),
    (
        "trn2",
        lambda: nisa.nc_matmul(psum(8, 4, dtype="bfloat16"), bf16(4, 8), bf16(4, 4)),
        errors.OperandDtypeError,
        ["dst", "bfloat16"],
    ),
    (
        "trn2",
        lambda: nisa.nc_matmul(psum(8, 4), bf16(4, 8), bf16(4, 4), is_transpose=True),
        errors.DtypeMismatchError,
        ["does not convert"],
    ),
    (
        "trn2",
        lambda: nisa.nc_matmul(psum(8, 4), *(tile(4, n, dtype="float8_e4m3fn") for n in (8, 4))),
        errors.OperandDtypeError,
        ["float8_e4m3fn"],
    ),
    (
        "trn3",
        lambda: nisa.nc_matmul(psum(8, 4), tile(4, 8, dtype="float8_e4m3"), tile(4, 4, dtype="float8_e4m3fn")),
        errors.DtypeMismatchError,
        ["two kinds"],
    ),
    (
        "trn2",
        lambda: nisa.nc_matmul(psum(8, 4), bf16(4, 2, 8), bf16(4, 2, 4), perf_mode=ROW),
        errors.DoubleRowError,
        ["fp8"],
    ),
    (
        "trn2",
        lambda: nisa.nc_matmul(psum(8, 4), *(tile(4, 2 * n, dtype="float8_e5m2") for n in (8, 4)), perf_mode=ROW),
        errors.DoubleRowError,
        ["(K, 2, columns)"],
    ),
    (
        "trn1",
        lambda: nisa.nc_matmul(psum(8, 4), *(tile(4, 2, n, dtype="float8_e5m2") for n in (8, 4)), perf_mode=ROW),
        errors.GenerationError,
        ["double_row"],
    ),
    (
        "trn2",
        lambda: nisa.nc_matmul(psum(8, 4), bf16(4, 8), bf16(4, 4), tile_position=(32, 0)),
        errors.TensorEngineTilingError,
        ["both"],
    ),
    (
        "trn1",
        lambda: nisa.nc_matmul(psum(8, 4), bf16(4, 8), bf16(4, 4), tile_position=(32, 0), tile_size=(32, 128)),
        errors.TensorEngineTilingError,
        ["64, 128"],
    ),
    (
        "trn2",
        lambda: nisa.nc_matmul(psum(8, 4), bf16(4, 8), bf16(4, 4), tile_position=(32, 0), tile_size=(64, 128)),
        errors.TensorEngineTilingError,
        ["multiple"],
    ),
    (
        "trn2",
        lambda: nisa.nc_matmul(psum(8, 4), bf16(64, 8), bf16(64, 4), tile_position=(32, 0), tile_size=(32, 128)),
        errors.TensorEngineTilingError,
        ["64 rows"],
    ),
    (
        "trn3",
        lambda: nisa.nc_matmul_mx(psum(8, 4), bf16(32, 8), bf16(32, 4), u8(4, 8), u8(4, 4)),
        errors.OperandDtypeError,
        ["quantize_mx"],
    ),
    (
        "trn3",
        lambda: nisa.quantize_mx(tile(64, 4, dtype="float8_e5m2_x4"), bf16(64, 16), u8(4, 4)),
        errors.OperandShapeError,
        ["36 partitions"],
    ),
    (
        "trn3",
        lambda: nisa.quantize_mx(tile(48, 4, dtype="float8_e5m2_x4"), bf16(48, 16), u8(48, 4)),
        errors.OperandShapeError,
        ["multiple of 32"],
    ),
    (
        "trn2",
        lambda: nisa.nc_transpose(bf16(64, 64), bf16(64, 64)),
        errors.PartitionLimitError,
        ["engine.vector", "32"],
    ),
    (
        "trn2",
        lambda: nisa.nc_transpose(psum(8, 4, dtype="bfloat16"), bf16(8, 4)),
        errors.OperandShapeError,
        ["4 partitions of 8"],
    ),
    ("trn2", lambda: nisa.nc_transpose(psum(4, 8), bf16(8, 4)), errors.DtypeMismatchError, ["does not convert"]),
    # DMA.
    (
        "trn2",
        lambda: nisa.dma_copy(tile(8, 4), hbm(8, 4, dtype="bfloat16"), dge_mode=nisa.dge_mode.hwdge),
        errors.DescriptorModeError,
        ["convert"],
    ),
    (
        "trn2",
        lambda: nisa.dma_copy(tile(8, 4), moving(hbm(8, 4), "vector"), dge_mode=nisa.dge_mode.hwdge),
        errors.DescriptorModeError,
        ["swdge"],
    ),
    (
        "trn2",
        lambda: nisa.dma_copy(tile(8, 4), moving(hbm(8, 4), "scalar"), dge_mode=nisa.dge_mode.none),
        errors.DescriptorModeError,
        ["run-time"],
    ),
    ("trn3", lambda: nisa.dma_copy(tile(8, 4), hbm(8, 4), priority=4), errors.OperandValueError, ["priority", "3"]),
    (
        "trn3",
        lambda: nisa.dma_copy(tile(8, 4, dtype="float8_e5m2_x4"), hbm(8, 4, dtype="uint32")),
        errors.DtypeMismatchError,
        ["view"],
    ),
    ("trn2", lambda: nisa.dma_copy(tile(8, 4), hbm(8, 4), oob_mode=1), errors.EnumMemberError, ["oob_mode", "skip"]),
    ("trn2", lambda: nisa.dma_transpose(tile(4, 8), hbm(8, 4), axes=(0, 1)), errors.TransposeAxesError, ["(0, 1)"]),
    ("trn2", lambda: nisa.dma_transpose(tile(8, 4), hbm(8, 4)), errors.OperandShapeError, ["(4, 8)"]),
    (
        "trn2",
        lambda: nisa.dma_transpose(tile(4, 16), hbm(16, 4), dge_mode=nisa.dge_mode.hwdge),
        errors.DescriptorModeError,
        ["2 bytes"],
    ),
    (
        "trn2",
        lambda: nisa.dma_transpose(bf16(4, 8), hbm(8, 4, dtype="bfloat16"), dge_mode=nisa.dge_mode.hwdge),
        errors.DescriptorModeError,
        ["16 rows"],
    ),
    (
        "trn2",
        lambda: nisa.dma_transpose(bf16(4, 8), moving(hbm(8, 4, dtype="bfloat16"), "vector")),
        errors.DescriptorModeError,
        ["sixteens"],
    ),
    ("trn2", lambda: nisa.dma_compute(tile(8, 4), [tile(8, 4)] * 17, "add"), errors.OperandValueError, ["17", "16"]),
    (
        "trn2",
        lambda: nisa.dma_compute(tile(8, 4), [tile(8, 4)] * 2, "add", scales=[1.0, 0.5]),
        errors.OperandValueError,
        ["scales"],
    ),
    ("trn2", lambda: nisa.dma_compute(tile(8, 4), [tile(8, 4)] * 2, "multiply"), errors.OperatorError, ["reduce_op"]),
    (
        "trn2",
        lambda: nisa.dma_compute(tile(8, 4), [tile(8, 4), moving(hbm(8, 4), "vector")], "add"),
        errors.DescriptorModeError,
        ["dst itself"],
    ),
    # GpSimd, search and selection.
    ("trn2", lambda: nisa.memset(i32(8, 4), 2.0), errors.OperandValueError, ["int32", "integer"]),
    ("trn2", lambda: nisa.memset(u8(8, 4), 256), errors.OperandValueError, ["0 to 255"]),
    ("trn3", lambda: nisa.memset(tile(8, 4, dtype="float8_e5m2_x4"), 1), errors.OperandValueError, ["0 only"]),
    ("trn2", lambda: nisa.iota(psum(8, 4), [[1, 4]]), errors.WrongBufferError, ["psum", "sbuf"]),
    ("trn2", lambda: nisa.iota(i32(8, 4), [[1, 5]]), errors.PatternError, ["5", "4"]),
    ("trn2", lambda: nisa.iota(i32(8, 4), [[1, 4]] + [[0, 1]] * 4), errors.PatternError, ["5 dimensions"]),
    ("trn2", lambda: nisa.iota(i32(8, 4), [1, 4]), errors.PatternError, ["[step, count]"]),
    ("trn2", lambda: nisa.iota(i32(8, 4), [[1, 4]], offset=2**31), errors.OperandValueError, ["offset", "32 bits"]),
    (
        "trn2",
        lambda: nisa.affine_select(tile(8, 4), [[1, 4]], 1, tile(8, 4), 0.0, "add"),
        errors.OperatorError,
        ["cmp_op"],
    ),
    (
        "trn2",
        lambda: nisa.local_gather(tile(8, 64), tile(8, 64), tile(8, 8, dtype="uint16")),
        errors.OperandShapeError,
        ["multiples of 16"],
    ),
    (
        "trn2",
        lambda: nisa.local_gather(tile(16, 3), tile(16, 64), tile(16, 1, dtype="uint16"), 3, 1),
        errors.OperandValueError,
        ["num_elem_per_idx"],
    ),
    ("trn2", lambda: nisa.nc_n_gather(tile(8, 4), tile(8, 9), i32(8, 4)), errors.OperandDtypeError, ["uint32"]),
    ("trn2", lambda: nisa.sequence_bounds(i32(2, 2, 4), i32(2, 4)), errors.OperandShapeError, ["one partition"]),
    (
        "trn2",
        lambda: nisa.topk(bf16(16, 8), tile(16, 8, dtype="uint32"), bf16(16, 3), 49),
        errors.OperandValueError,
        ["48"],
    ),
    ("trn2", lambda: nisa.max8(tile(8, 8), tile(8, 7)), errors.FreeSizeError, ["7", "8 to 16384"]),
    (
        "trn2",
        lambda: nisa.nc_find_index8(i32(8, 8), tile(8, 16), tile(8, 8)),
        errors.OperandDtypeError,
        ["uint16, uint32"],
    ),
    (
        "trn2",
        lambda: nisa.nc_stream_shuffle(tile(32, 4), tile(32, 4), [32] * 32),
        errors.OperandValueError,
        ["0 to 31"],
    ),
    (
        "trn2",
        lambda: nisa.nc_stream_shuffle(tile(32, 4), tile(32, 4), [0] * 31),
        errors.OperandValueError,
        ["32 numbers"],
    ),
    (
        "trn2",
        lambda: nisa.range_select(tile(8, 4), tile(8, 4), "less", "less", tile(8, 1), tile(8, 1), on_false_value=0.0),
        errors.OperandValueError,
        ["-3.4028235e+38"],
    ),
    (
        "trn2",
        lambda: nisa.select_reduce(tile(8, 4), i32(8, 4), tile(8, 4), 0.0),
        errors.OperandDtypeError,
        ["predicate"],
    ),
    (
        "trn2",
        lambda: nisa.tensor_copy_predicated(tile(8, 4), bf16(8, 4), u8(8, 4)),
        errors.DtypeMismatchError,
        ["src", "dst"],
    ),
    (
        "trn2",
        lambda: nisa.tensor_copy_predicated(tile(8, 4), tile(8, 4), tile(8, 4)),
        errors.OperandDtypeError,
        ["predicate", "uint8"],
    ),
    ("trn2", lambda: nisa.dropout(i32(8, 4), i32(8, 4), bf16(8, 1)), errors.OperandDtypeError, ["prob"]),
    ("trn2", lambda: nisa.rng(tile(8, 4)), errors.OperandDtypeError, ["float32"]),
    (
        "trn2",
        lambda: nisa.rand_set_state(tile(8, 24, dtype="uint32"), engine=E.vector),
        errors.GenerationError,
        ["engine.vector"],
    ),
    ("trn2", lambda: nisa.rand_get_state(tile(8, 7, dtype="uint32")), errors.OperandShapeError, ["6 elements"]),
    # Two cores.
    ("trn2", lambda: nisa.sendrecv(tile(8, 4), tile(8, 4), 1, 1, 0), errors.NoOtherCoreError, ["kernel[2]"]),
    ("trn2", lambda: nisa.core_barrier(hbm(8, 4), (0, 1)), errors.NoOtherCoreError, ["(0, 1)"]),
    ("trn1", lambda: nisa.core_barrier(hbm(8, 4), (0, 1)), errors.GenerationError, ["core_barrier"]),
]


@pytest.mark.parametrize(("target", "call", "mistake", "names"), CASES)
def test_mistake(target: str, call: Callable[[], Any], mistake: type[errors.NkiError], names: list[str]) -> None:
    provoke(target, call, mistake, names)


def test_dma_reaches_any_partition() -> None:
    with tracing(Trace("trn2")):
        nisa.dma_copy(hbm(3, 4), rows(tile(128, 4), 77, 80))


def test_matmul_into_the_second_bank() -> None:
    with tracing(Trace("trn2")):
        nisa.nc_matmul(columns(psum(8, 1024), 512, 1024), bf16(4, 8), bf16(4, 512))


def test_transpose_of_the_oldest_generation_may_write_fp32() -> None:
    with tracing(Trace("trn1")):
        nisa.nc_transpose(psum(4, 8), bf16(8, 4))
