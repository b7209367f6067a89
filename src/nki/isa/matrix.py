"""Instructions of the Tensor engine: matrix products and transposes."""

from __future__ import annotations

from typing import Any

from .. import errors
from ..limits import ALL, DVE_TRANSPOSE, PE_TRANSPOSE, PSUM_BANK_BYTES, QUADRANT, STATIONARY_COLUMNS, Limits
from ..targets import GENERATIONS
from ..tensor import NkiTensor
from ..trace import Trace, current
from .enums import engine as Engine
from .enums import matmul_perf_mode as PerformanceMode
from .instruction_handle import NkiInstruction
from .validation import (
    SCALES,
    UNKNOWN,
    choose,
    emit,
    extent,
    fail,
    integer,
    require_dtype,
    require_generation,
    require_member,
    require_region,
    require_same_dtype,
    tensor,
)

__all__ = ["nc_matmul", "nc_matmul_mx", "nc_transpose"]

NONE = PerformanceMode.none
_WIDE = frozenset({"float32", "tfloat32"})
_FP8 = frozenset({"float8_e4m3", "float8_e4m3fn", "float8_e5m2"})
_MX = frozenset({"float8_e4m3fn_x4", "float8_e5m2_x4", "float4_e2m1fn_x4"})
_MX_RESULTS = frozenset({"float32", "bfloat16"})


def _require_bank(dst: NkiTensor, op: str) -> None:
    """A result of NeuronCore-v2 and -v3 lies in one bank. Tensors without an address begin with one."""
    pitch = dst.strides[0]
    first = dst.offset % pitch if pitch else 0
    last = first
    for length, stride in zip(dst.shape[1:], dst.strides[1:], strict=True):
        last += (length - 1) * stride
    size = dst.dtype.itemsize
    begin, end = first * size, (last + 1) * size - 1
    if dst.storage.address is not None:
        begin += dst.storage.address[1]
        end += dst.storage.address[1]
    if begin // PSUM_BANK_BYTES != end // PSUM_BANK_BYTES:
        fail(errors.PsumBankError, op=op, operand="dst", shape=dst.shape, first=begin, last=end, bank=PSUM_BANK_BYTES)


def _require_columns(
    stationary: NkiTensor, columns: int, moving: NkiTensor, n: int, dst: NkiTensor, limit: Limits, op: str
) -> None:
    if columns > STATIONARY_COLUMNS:
        fail(
            errors.FreeSizeError,
            op=op,
            operand="stationary",
            shape=stationary.shape,
            count=columns,
            allowed=f"at most {STATIONARY_COLUMNS}",
            cure="Cut the rows of the product into tiles.",
        )
    most = limit.moving_columns.get(dst.dtype, 512)
    if n > most:
        fail(
            errors.FreeSizeError,
            op=op,
            operand="moving",
            shape=moving.shape,
            count=n,
            allowed=f"at most {most} on this chip",
            cure="Cut the columns of the product into tiles.",
        )


def _require_product(
    dst: NkiTensor, size: tuple[int, int], stationary: NkiTensor, columns: int, moving: NkiTensor, n: int, op: str
) -> None:
    if size != (columns, n):
        fail(
            errors.OperandShapeError,
            op=op,
            operand="dst",
            shape=dst.shape,
            expected=f"{columns} partitions (columns of stationary {stationary.shape}) of {n} elements (columns of "
            f"moving {moving.shape})",
        )


def _tile(
    position: Any, size: Any, rows: int, columns: int, limit: Limits, op: str, row_tiles_only: bool, indirect: bool
) -> dict[str, Any]:
    """tile_position and tile_size as hints, where they are given."""
    position = tuple(integer(value, op, "tile_position") for value in position or ())
    size = tuple(integer(value, op, "tile_size") for value in size or ())
    if not position and not size:
        return {}
    reason = ""
    if len(position) != 2 or len(size) != 2:
        reason = "both are needed, each (row, column)"
    elif size[0] not in limit.row_tiles or size[1] not in limit.row_tiles:
        reason = f"rows and columns of a tile are {', '.join(str(n) for n in sorted(limit.row_tiles))} on this chip"
    elif any(start % step or not 0 <= start < 128 for start, step in zip(position, size, strict=True)):
        reason = "a position is a multiple of the size, below 128"
    elif rows > size[0] or columns > size[1]:
        reason = f"the stationary operand has {rows} rows and {columns} columns, more than the tile"
    elif row_tiles_only and (position[1] or size[1] != 128):
        reason = "only rows can be tiled here: the columns are position 0, size 128"
    elif indirect and position != (0, 0):
        reason = ".indirect() operands work at position (0, 0) only"
    if reason:
        fail(errors.TensorEngineTilingError, op=op, position=position, size=size, reason=reason)
    return {"tile_position": position, "tile_size": size}


def _require_types(stationary: NkiTensor, moving: NkiTensor, limit: Limits, op: str) -> None:
    first, second = stationary.dtype, moving.dtype
    allowed = limit.matmul_dtypes
    if first not in allowed:
        require_dtype(stationary, allowed, op, "stationary", "Convert it with nisa.tensor_copy.")
    if first is second:
        return
    require_dtype(moving, allowed, op, "moving", "Convert it with nisa.tensor_copy.")
    if (first in _WIDE) != (second in _WIDE):
        require_same_dtype(
            stationary, moving, op, "stationary", "moving", "fp32 and tf32 multiply only with each other"
        )
    if {first, second} == {"float8_e4m3", "float8_e4m3fn"}:
        require_same_dtype(
            stationary, moving, op, "stationary", "moving", "the two kinds of float8_e4m3 do not go together"
        )


def nc_matmul(
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    accumulate: bool | None = None,
    tile_position: Any = (),
    tile_size: Any = (),
    perf_mode: PerformanceMode = NONE,
    name: str | None = None,
) -> NkiInstruction:
    """`stationary.T @ moving` on the Tensor engine, with fp32 sums.

    Args:
        dst: [M, N] in PSUM, within one bank on NeuronCore-v2 and -v3: fp32, on NeuronCore-v4 also bf16; with
            `is_transpose` of the operands' type.
        stationary: [K, M] in SBUF, K and M at most 128; further free dimensions are flattened.
        moving: [K, N] in SBUF, N at most 512 (NeuronCore-v4: 4096, or 8192 with a bf16 `dst`).
        is_stationary_onezero, is_moving_onezero: the operand holds ones and zeros only; fp32 is faster then.
        is_transpose: `moving` is the identity: the bits of `stationary` are transposed (NeuronCore-v3 and later).
        accumulate: add to `dst` (True), overwrite it (False), or overwrite what no matmul wrote before (None).
        tile_position, tile_size: (row, column) of the part of the array to use; several parts work at once.
        perf_mode: double_row multiplies fp8 operands [K, 2, M] and [K, 2, N], contracted over both first dimensions.

    Raises:
        WrongBufferError, OperandShapeError, FreeSizeError, PsumBankError, OperandDtypeError, DtypeMismatchError,
        DoubleRowError, TensorEngineTilingError.
    """
    op = "nc_matmul"
    trace = current()
    limit = ALL[trace.target]
    size = extent(dst, op, "dst")
    rows, columns = extent(stationary, op, "stationary")
    depth, n = extent(moving, op, "moving")
    if dst.storage.region != "psum":
        require_region(dst, op, "dst", "psum")
    if stationary.storage.region != "sbuf":
        require_region(stationary, op, "stationary", "sbuf")
    if moving.storage.region != "sbuf":
        require_region(moving, op, "moving", "sbuf")
    double_row = False
    if perf_mode is not NONE:
        require_member(perf_mode, PerformanceMode, op, "perf_mode")
        double_row = True
        _require_double_row(trace, stationary, moving, is_transpose, tile_size)
        columns, n = columns // 2, n // 2
    if depth != rows:
        fail(
            errors.PartitionMismatchError,
            op=op,
            operand="moving",
            shape=moving.shape,
            partitions=depth,
            other="stationary",
            other_shape=stationary.shape,
            expected=rows,
        )
    if columns > STATIONARY_COLUMNS or n > 512:
        _require_columns(stationary, columns, moving, n, dst, limit, op)
    storage = dst.storage
    if size != (columns, n):
        _require_product(dst, size, stationary, columns, moving, n, op)
    elif limit.generation < 4 and (storage.address or storage.free * storage.dtype.itemsize > PSUM_BANK_BYTES):
        _require_bank(dst, op)
    transposes = is_transpose and limit.generation >= 3
    if stationary.dtype is not moving.dtype or stationary.dtype not in limit.matmul_dtypes:
        _require_types(stationary, moving, limit, op)
    if transposes:
        require_same_dtype(dst, stationary, op, "dst", "stationary", "a transpose does not convert")
    elif dst.dtype not in limit.psum_dtypes:
        require_dtype(dst, limit.psum_dtypes, op, "dst", "Convert the sums when you copy them to SBUF.")
    hints: dict[str, Any] | None = None
    if is_stationary_onezero or is_moving_onezero or is_transpose or tile_position or tile_size:
        indirect = any(
            view.dynamic is not None and view.dynamic.kind == "indirect" for view in (dst, stationary, moving)
        )
        hints = {
            "is_stationary_onezero": bool(is_stationary_onezero),
            "is_moving_onezero": bool(is_moving_onezero),
            "is_transpose": bool(is_transpose),
            **_tile(tile_position, tile_size, rows, columns, limit, op, False, indirect),
        }
    if accumulate is not None:
        accumulate = bool(accumulate)
    return emit(
        trace, "matmul", "tensor", (dst,), (stationary, moving), (accumulate, double_row, transposes), name, hints
    )


def _require_double_row(
    trace: Trace, stationary: NkiTensor, moving: NkiTensor, is_transpose: bool, tile_size: Any
) -> None:
    require_generation(trace, 3, "nc_matmul", "perf_mode=double_row")
    reason = ""
    for operand, view in (("stationary", stationary), ("moving", moving)):
        if len(view.shape) < 3 or view.shape[1] != 2:
            reason = f"{operand} {view.shape} needs the shape (K, 2, columns): its second dimension is contracted too"
        elif view.dtype not in _FP8:
            reason = f"{operand} is {view.dtype}; both operands have to be fp8"
    if is_transpose:
        reason = "it cannot be combined with is_transpose"
    elif tile_size and tuple(tile_size)[1:] != (128,):
        reason = "it cannot be combined with tiles of fewer than 128 columns"
    if reason:
        fail(errors.DoubleRowError, op="nc_matmul", reason=reason)


def nc_matmul_mx(
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    stationary_scale: NkiTensor,
    moving_scale: NkiTensor,
    tile_position: Any = None,
    tile_size: Any = None,
    accumulate: bool | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """Product of MXFP8 or MXFP4 matrices on NeuronCore-v4, contracted over partitions and the 4 values of an element.

    Args:
        dst: [M, N] in PSUM, fp32 or bf16.
        stationary: [P, M] in SBUF of an _x4 type; P is 32, 64, 96 or 128, M even and at most 128.
        moving: [P, N] in SBUF of an _x4 type, N at most 4096, or 8192 with a bf16 `dst`.
        stationary_scale, moving_scale: float8_e8m0fnu or uint8 in SBUF; the scales of 8 partitions lie in one, those of
            each 32 partitions in the first 4 of them, as nisa.quantize_mx writes them.
        accumulate: as of nisa.nc_matmul.
    """
    op = "nc_matmul_mx"
    trace = current()
    require_generation(trace, 4, op)
    limit = ALL[trace.target]
    size = extent(dst, op, "dst")
    rows, columns = extent(stationary, op, "stationary")
    depth, n = extent(moving, op, "moving")
    require_region(dst, op, "dst", "psum")
    require_dtype(dst, _MX_RESULTS, op, "dst", "Convert the sums when you copy them to SBUF.")
    for operand, view in (("stationary", stationary), ("moving", moving)):
        require_region(view, op, operand, "sbuf")
        require_dtype(view, _MX, op, operand, "Quantise it with nisa.quantize_mx, or .view() packed data.")
    if depth != rows:
        fail(
            errors.PartitionMismatchError,
            op=op,
            operand="moving",
            shape=moving.shape,
            partitions=depth,
            other="stationary",
            other_shape=stationary.shape,
            expected=rows,
        )
    if rows % QUADRANT:
        fail(
            errors.OperandShapeError,
            op=op,
            operand="stationary",
            shape=stationary.shape,
            expected="a multiple of 32 partitions",
        )
    if columns % 2:
        fail(
            errors.FreeSizeError,
            op=op,
            operand="stationary",
            shape=stationary.shape,
            count=columns,
            allowed="even numbers",
            cure="Add a column.",
        )
    _require_columns(stationary, columns, moving, n, dst, limit, op)
    _require_product(dst, size, stationary, columns, moving, n, op)
    for operand, scale, elements in (
        ("stationary_scale", stationary_scale, columns),
        ("moving_scale", moving_scale, n),
    ):
        require_scales(scale, rows, elements, op, operand)
    indirect = any(view.dynamic is not None and view.dynamic.kind == "indirect" for view in (dst, stationary, moving))
    for operand, view, scale in (("stationary", stationary, stationary_scale), ("moving", moving, moving_scale)):
        kinds = [other.dynamic.kind if other.dynamic else "" for other in (view, scale)]
        if kinds[0] != kinds[1]:
            fail(
                errors.DynamicOperandError,
                op=op,
                operand=operand,
                shape=view.shape,
                kind="indirect",
                reason="its data and its scales are one matrix: index both with the same .indirect(), or none",
            )
    tile = _tile(tile_position, tile_size, rows, columns, limit, op, True, indirect)
    if accumulate is not None:
        accumulate = bool(accumulate)
    return emit(
        trace,
        "matmul_mx",
        "tensor",
        (dst,),
        (stationary, moving, stationary_scale, moving_scale),
        (accumulate,),
        name,
        tile or None,
    )


def require_scales(scale: NkiTensor, rows: int, elements: int, op: str, operand: str) -> None:
    """Scales of an MX operand of `rows` partitions: 4 partitions of each 32, the rest is not used.

    They may begin at any partition, as several operands share the 32 partitions.
    """
    view = tensor(scale, op, operand)
    require_region(view, op, operand, "sbuf")
    require_dtype(view, SCALES, op, operand)
    count = 1
    for length in view.shape[1:]:
        count *= length
    least = rows - QUADRANT + 4
    if view.shape[0] < least or count != elements:
        fail(
            errors.OperandShapeError,
            op=op,
            operand=operand,
            shape=view.shape,
            expected=f"at least {least} partitions of {elements} elements: 4 in each 32 partitions hold scales",
        )


def nc_transpose(dst: NkiTensor, data: NkiTensor, engine: Engine = UNKNOWN, name: str | None = None) -> NkiInstruction:
    """Exchanges partitions and free elements; further free dimensions are flattened.

    Args:
        dst: [F, P] of the type of `data`; on NeuronCore-v2 the Tensor engine writes fp32 as well.
        data: [P, F]: at most 128 x 128 from SBUF to PSUM (Tensor engine), or 32 x 32 from anywhere to anywhere (Vector
            engine).
        engine: tensor or vector; where none is named, `dst` in PSUM and `data` in SBUF mean tensor.

    Raises:
        FreeSizeError, PartitionLimitError: more than the engine transposes.
    """
    op = "nc_transpose"
    trace = current()
    size = extent(dst, op, "dst")
    partitions, elements = extent(data, op, "data")
    generation = GENERATIONS[trace.target]
    if engine is UNKNOWN:
        chosen = "tensor" if dst.storage.region == "psum" and data.storage.region == "sbuf" else "vector"
    else:
        chosen = choose(engine, ("tensor", "vector"), op)
    limit = PE_TRANSPOSE if chosen == "tensor" else DVE_TRANSPOSE
    if partitions > limit or elements > limit:
        cure = (
            "Cut it into tiles."
            if chosen == "tensor"
            else "Cut it into tiles, or let the Tensor engine do up to 128 x 128 from SBUF into a PSUM tile."
        )
        if partitions > limit:
            fail(
                errors.PartitionLimitError,
                op=f"{op} on engine.{chosen}",
                operand="data",
                shape=data.shape,
                partitions=partitions,
                limit=limit,
            )
        if elements > limit:
            fail(
                errors.FreeSizeError,
                op=f"{op} on engine.{chosen}",
                operand="data",
                shape=data.shape,
                count=elements,
                allowed=f"at most {limit}",
                cure=cure,
            )
    if size != (elements, partitions):
        fail(
            errors.OperandShapeError,
            op=op,
            operand="dst",
            shape=dst.shape,
            expected=f"{elements} partitions of {partitions} elements, as data is {data.shape}",
        )
    if chosen == "tensor":
        require_region(data, op, "data", "sbuf")
        require_region(dst, op, "dst", "psum")
        if generation < 4:
            _require_bank(dst, op)
    if not (generation == 2 and chosen == "tensor" and dst.dtype == "float32" and data.dtype.is_float):
        require_same_dtype(dst, data, op, "dst", "data", "a transpose does not convert")
    return emit(trace, "transpose", chosen, (dst,), (data,), (), name)
