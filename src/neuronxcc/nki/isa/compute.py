"""Instructions of the Vector, Scalar and GpSimd engines that compute element by element or reduce (Beta 1)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import nki.isa as hardware
from nki.element_types import of
from nki.errors import MissingOperandError
from nki.isa.enums import engine as Engine
from nki.isa.enums import reduce_cmd as ReduceCommand
from nki.language.promotion import promote
from nki.operators import BITWISE, name_of
from nki.trace import source_line

from ..emission import (
    as_tile,
    column,
    cropped_box,
    each,
    elementwise,
    fresh,
    in_sbuf,
    on_engine,
    plain,
    rest_mask,
)
from ..indices import Mask
from ..tile import Tile

__all__ = [
    "activation", "activation_reduce", "bn_aggr", "bn_stats", "reciprocal", "scalar_tensor_tensor", "tensor_copy",
    "tensor_copy_dynamic_dst", "tensor_copy_dynamic_src", "tensor_copy_predicated", "tensor_partition_reduce",
    "tensor_reduce", "tensor_scalar", "tensor_scalar_cumulative", "tensor_scalar_reduce", "tensor_tensor",
    "tensor_tensor_scan"
]  # fmt: skip

UNKNOWN = Engine.unknown
IDLE = ReduceCommand.idle


def _target(value: Any) -> Any:
    """A tile that an instruction writes beside its result, as the instruction takes it."""
    return None if value is None else next(each(as_tile(value)))[0]


def activation(
    op: Any,
    data: Any,
    *,
    bias: Any = None,
    scale: Any = 1.0,
    reduce_op: Any = None,
    reduce_res: Any = None,
    reduce_cmd: ReduceCommand = IDLE,
    mask: Any = None,
    dtype: Any = None,
    name: str | None = None,
    **_: Any,
) -> Tile:
    """`op(data * scale + bias)` on the Scalar Engine, with sums of the results on request.

    Args:
        bias, scale: a number, or a tile of one element per partition.
        reduce_op, reduce_res, reduce_cmd: what happens to the engine's accumulators, and where they are written.

    Returns:
        A tile of the shape of `data`, in `dtype` or its type.
    """
    tile = as_tile(data, "activation")
    result = _target(reduce_res)

    def emitter(dst: Any, src: Any, shift: Any, factor: Any) -> None:
        hardware.activation(
            dst, op, src, bias=shift, scale=factor, reduce_op=reduce_op, reduce_res=result, reduce_cmd=reduce_cmd,
            name=name,
        )  # fmt: skip

    return elementwise(emitter, [tile], dtype or tile.dtype, mask, columns=(bias, scale))


def activation_reduce(
    op: Any,
    data: Any,
    *,
    reduce_op: Any,
    reduce_res: Any,
    bias: Any = None,
    scale: Any = 1.0,
    mask: Any = None,
    dtype: Any = None,
    name: str | None = None,
    **_: Any,
) -> Tile:
    """:func:`activation`, whose results are also reduced along the free dimensions into `reduce_res`."""
    tile = as_tile(data, "activation_reduce")
    result = _target(reduce_res)

    def emitter(dst: Any, src: Any, shift: Any, factor: Any) -> None:
        hardware.activation_reduce(dst, op, src, reduce_op, result, bias=shift, scale=factor, name=name)

    return elementwise(emitter, [tile], dtype or tile.dtype, mask, columns=(bias, scale))


def reciprocal(data: Any, *, dtype: Any = None, mask: Any = None, name: str | None = None, **_: Any) -> Tile:
    """`1 / data` on the Vector Engine."""
    tile = as_tile(data, "reciprocal")
    return elementwise(lambda dst, src: hardware.reciprocal(dst, src, name=name), [tile], dtype or tile.dtype, mask)


def tensor_copy(
    src: Any, *, mask: Any = None, dtype: Any = None, engine: Engine = UNKNOWN, name: str | None = None, **_: Any
) -> Tile:
    """A copy of a tile in SBUF or PSUM, in SBUF."""
    tile = as_tile(src, "tensor_copy")
    return elementwise(
        lambda dst, data: hardware.tensor_copy(dst, data, engine=engine, name=name), [tile], dtype or tile.dtype, mask
    )


tensor_copy_dynamic_src = tensor_copy


def tensor_copy_dynamic_dst(
    *, dst: Any, src: Any, mask: Any = None, dtype: Any = None, engine: Engine = UNKNOWN, name: str | None = None,
    **_: Any
) -> None:  # fmt: skip
    """A copy to a place in SBUF or PSUM that is known only when the kernel runs."""
    target, source = cropped_box("tensor_copy_dynamic_dst", mask, as_tile(dst), as_tile(src))
    hardware.tensor_copy(plain(target), plain(on_engine(source)), engine=engine, name=name)


def predicate_of(value: Any) -> Tile:
    """A predicate as engines take it: booleans are read as bytes."""
    tile = as_tile(value)
    if tile.dtype.kind == "bool" or tile.dtype == "int8":
        return Tile(tile.storage, of("uint8"), tile.shape, tile.strides, tile.offset, tile.dynamic, tile.table)
    return tile


def tensor_copy_predicated(
    *, src: Any, dst: Any, predicate: Any, reverse_pred: bool = False, mask: Any = None, name: str | None = None,
    **_: Any
) -> None:  # fmt: skip
    """Copies elements of `src` (a tile or a number) to `dst` where `predicate` is not 0."""
    target = as_tile(dst)
    operands = [predicate_of(predicate)]
    if not isinstance(src, (int, float)):
        operands.append(as_tile(src))

    def emitter(to: Any, chosen: Any, *source: Any) -> None:
        hardware.tensor_copy_predicated(to, source[0] if source else src, chosen, reverse_pred=reverse_pred, name=name)

    elementwise(emitter, operands, target.dtype, mask, target.shape, into=target.again())


def tensor_tensor(
    data1: Any,
    data2: Any,
    op: Any,
    *,
    dtype: Any = None,
    mask: Any = None,
    engine: Engine = UNKNOWN,
    name: str | None = None,
    **_: Any,
) -> Tile:
    """`data1 <op> data2`, element by element, for tiles that are broadcast to each other.

    Returns:
        A tile in `dtype`, or in the type that the operands' types give together.
    """
    first, second = as_tile(data1, "tensor_tensor"), as_tile(data2, "tensor_tensor")
    if first.storage.region == second.storage.region == "psum":
        second = in_sbuf(second)

    def emitter(dst: Any, a: Any, b: Any) -> None:
        hardware.tensor_tensor(dst, a, b, op, engine=engine, name=name)

    return elementwise(emitter, [first, second], dtype or promote(first.dtype, second.dtype), mask)


def column_dtype(*ops: Any) -> str:
    """The type of per-partition operands: fp32, except for operators on bits."""
    return "" if any(o is not None and name_of(o, "tensor_scalar", "op") in BITWISE for o in ops) else "float32"


def tensor_scalar(
    data: Any,
    op0: Any,
    operand0: Any,
    reverse0: bool = False,
    op1: Any = None,
    operand1: Any = None,
    reverse1: bool = False,
    *,
    dtype: Any = None,
    mask: Any = None,
    engine: Engine = UNKNOWN,
    name: str | None = None,
    **_: Any,
) -> Tile:
    """`(data <op0> operand0) <op1> operand1`; operands are numbers or tiles of one element per partition."""
    tile = as_tile(data, "tensor_scalar")

    def emitter(dst: Any, src: Any, a: Any, b: Any) -> None:
        hardware.tensor_scalar(dst, src, op0, a, reverse0, op1, b, reverse1, engine=engine, name=name)

    kind = column_dtype(op0, op1)
    return elementwise(
        emitter, [tile], dtype or tile.dtype, mask, columns=(operand0, operand1), column_dtype=kind
    )  # fmt: skip


def scalar_tensor_tensor(
    *,
    data: Any,
    op0: Any,
    operand0: Any,
    op1: Any,
    operand1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
    dtype: Any = None,
    mask: Any = None,
    name: str | None = None,
    **_: Any,
) -> Tile:
    """`(data <op0> operand0) <op1> operand1` with a number or column, and a tile."""
    tile, other = as_tile(data, "scalar_tensor_tensor"), as_tile(operand1, "scalar_tensor_tensor")
    if tile.storage.region == other.storage.region == "psum":
        other = in_sbuf(other)

    def emitter(dst: Any, src: Any, second: Any, first: Any) -> None:
        hardware.scalar_tensor_tensor(dst, src, op0, first, op1, second, reverse0, reverse1, name=name)

    return elementwise(
        emitter, [tile, other], dtype or promote(tile.dtype, other.dtype), mask, columns=(operand0,)
    )  # fmt: skip


def tensor_scalar_reduce(
    *,
    data: Any,
    op0: Any,
    operand0: Any,
    reduce_op: Any,
    reduce_res: Any,
    reverse0: bool = False,
    dtype: Any = None,
    mask: Any = None,
    name: str | None = None,
    **_: Any,
) -> Tile:
    """`data <op0> operand0`, whose results are also reduced along the free dimensions into `reduce_res`."""
    tile = as_tile(data, "tensor_scalar_reduce")
    result = _target(reduce_res)

    def emitter(dst: Any, src: Any, a: Any) -> None:
        hardware.tensor_scalar_reduce(dst, src, op0, a, reduce_op, result, reverse0, name=name)

    return elementwise(emitter, [tile], dtype or tile.dtype, mask, columns=(operand0,))


def tensor_scalar_cumulative(
    *,
    dst: Any,
    src: Any,
    op0: Any,
    op1: Any,
    imm0: Any,
    imm1: Any = None,
    reduce_cmd: ReduceCommand = ReduceCommand.reset_reduce,
    mask: Any = None,
    name: str | None = None,
    **_: Any,
) -> None:
    """Running results of `op1` over `src <op0> imm0`, written to `dst` element by element."""
    target, source = cropped_box("tensor_scalar_cumulative", mask, as_tile(dst), as_tile(src))
    partitions = target.shape[0]
    # Only one command reads it; this dialect lets others be given one.
    initial = imm1 if reduce_cmd is ReduceCommand.load_reduce else None
    hardware.tensor_scalar_cumulative(
        next(each(target))[0], next(each(on_engine(source)))[0], op0, op1, column(imm0, partitions),
        column(initial, partitions), reduce_cmd=reduce_cmd, name=name,
    )  # fmt: skip


def tensor_tensor_scan(
    data0: Any,
    data1: Any,
    initial: Any,
    op0: Any,
    op1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
    *,
    dtype: Any = None,
    mask: Any = None,
    name: str | None = None,
    **_: Any,
) -> Tile:
    """`r[i] = (data0[i] <op0> r[i - 1]) <op1> data1[i]` along the free dimensions, from `initial` on."""
    first, second = as_tile(data0, "tensor_tensor_scan"), as_tile(data1, "tensor_tensor_scan")
    if first.storage.region == second.storage.region == "psum":
        second = in_sbuf(second)

    def emitter(dst: Any, a: Any, b: Any, start: Any) -> None:
        hardware.tensor_tensor_scan(dst, a, b, start, op0, op1, reverse0, reverse1, name=name)

    return elementwise(
        emitter, [first, second], dtype or promote(first.dtype, second.dtype), mask, columns=(initial,)
    )  # fmt: skip


def tensor_reduce(
    op: Any,
    data: Any,
    axis: Any,
    *,
    mask: Any = None,
    dtype: Any = None,
    negate: bool = False,
    keepdims: bool = False,
    name: str | None = None,
    **_: Any,
) -> Tile:
    """Reduces free dimensions, wherever they stand, on the Vector Engine.

    Returns:
        A tile without these dimensions (with size 1 where `keepdims`); at least one free dimension stays.
    """
    whole = as_tile(data, "tensor_reduce")
    wanted = tuple(axis) if isinstance(axis, Sequence) else (axis,)
    axes = sorted(a + whole.ndim if a < 0 else a for a in wanted)
    chosen = Mask.of(mask)
    (tile,) = cropped_box("tensor_reduce", chosen, whole)
    tile = on_engine(tile)
    kept = [d for d in range(whole.ndim) if d not in axes]
    sizes = [1 if d in axes else n for d, n in enumerate(whole.shape)] if keepdims else [whole.shape[d] for d in kept]
    result = fresh(tuple(sizes) if len(sizes) > 1 else (*sizes, 1), dtype or tile.dtype)
    part = result
    if chosen is not None:
        box = chosen.box(whole.shape)
        flat = list(kept) if not keepdims else list(range(whole.ndim))
        ranges = [(0, 1) if d in axes else b for d, b in enumerate(box or [])]
        result.mask = rest_mask(ranges, flat, result.shape)
        (part,) = cropped_box("tensor_reduce", result.mask, result)
        part = part.again()
    order = [*kept, *axes]
    moved = Tile(
        tile.storage, tile.dtype, tuple(tile.shape[d] for d in order), tuple(tile.strides[d] for d in order),
        tile.offset, tile.dynamic,
    )  # fmt: skip
    count = len(axes)
    source = plain(moved)
    last = tuple(range(len(order) - count, len(order)))
    # Dimensions that lie in one piece count as one, so that a pattern has room for them.
    if source.ndim > 5:
        source = _joined(moved, count)
        last = (source.ndim - 1,)
    hardware.tensor_reduce(next(each(part))[0], op, source, last, negate=negate, name=name)
    return result


def _joined(tile: Tile, reduced: int) -> Any:
    """A view whose last dimension is all of the reduced ones.

    Raises:
        MissingOperandError: they do not lie so that one stride reaches them.
    """
    place = tile.ndim - reduced
    shape, strides = tile.shape[place:], tile.strides[place:]
    if any(strides[d] != strides[d + 1] * shape[d + 1] for d in range(reduced - 1)):
        raise MissingOperandError(
            op="tensor_reduce",
            operand=f"data {tile.shape}",
            problem="has more dimensions than a pattern of the engine",
            line=source_line(),
        )
    sizes, steps = (*tile.shape[:place], prod(shape)), (*tile.strides[:place], strides[-1])
    return plain(Tile(tile.storage, tile.dtype, sizes, steps, tile.offset, tile.dynamic))


def tensor_partition_reduce(
    op: Any, data: Any, *, mask: Any = None, dtype: Any = None, name: str | None = None, **_: Any
) -> Tile:
    """Reduces over partitions, on the GpSimd Engine; the result has one partition."""
    (tile,) = cropped_box("tensor_partition_reduce", mask, as_tile(data, "tensor_partition_reduce"))
    source = on_engine(in_sbuf(tile))
    result = fresh((1, *source.shape[1:]), dtype or source.dtype)
    hardware.tensor_partition_reduce(next(each(result))[0], op, next(each(source))[0], name=name)
    return result


def bn_stats(data: Any, *, mask: Any = None, dtype: Any = None, name: str | None = None, **_: Any) -> Tile:
    """Count, mean and variance times count of even and of odd elements: a tile (P, 6)."""
    (tile,) = cropped_box("bn_stats", mask, as_tile(data, "bn_stats"))
    result = fresh((tile.shape[0], 6), dtype or tile.dtype)
    hardware.bn_stats(plain(result), next(each(on_engine(tile)))[0], name=name)
    return result


def bn_aggr(data: Any, *, mask: Any = None, dtype: Any = None, name: str | None = None, **_: Any) -> Tile:
    """Mean and variance of what several :func:`bn_stats` have seen: a tile (P, 2)."""
    (tile,) = cropped_box("bn_aggr", mask, as_tile(data, "bn_aggr"))
    result = fresh((tile.shape[0], 2), dtype or tile.dtype)
    hardware.bn_aggr(plain(result), next(each(on_engine(tile)))[0], name=name)
    return result
