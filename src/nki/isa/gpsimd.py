"""Instructions of the GpSimd engine: patterns of indices, gathers, searches; and memset, which it shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import errors
from ..limits import GATHER_INDICES, TOPK_ELEMENTS
from ..operators import COMPARISONS, name_of
from ..tensor import NkiTensor
from ..trace import current
from .enums import engine as Engine
from .instruction_handle import NkiInstruction
from .registers import offset_of
from .validation import (
    UNKNOWN,
    choose,
    emit,
    extent,
    fail,
    integer,
    no_gpsimd_in_psum,
    number,
    refuse,
    require_dtype,
    require_generation,
    require_region,
    require_same_dtype,
    require_shape,
    require_size,
)

__all__ = [
    "affine_select", "iota", "local_gather", "memset", "nc_n_gather", "nonzero_with_count", "sequence_bounds", "topk"
]  # fmt: skip

_CORE = 16  # partitions that one core of the engine reaches
_SEGMENTS = frozenset({"float32", "int32"})
_INT32 = frozenset({"int32"})
_LOW, _HIGH = -(2**31), 2**31 - 1


def _sbuf(op: str, *operands: tuple[str, Any]) -> list[tuple[int, int]]:
    """Sizes of operands, all of which lie in SBUF."""
    sizes = []
    for operand, view in operands:
        sizes.append(extent(view, op, operand))
        if view.storage.region != "sbuf":
            require_region(view, op, operand, "sbuf")
    return sizes


def _affine(op: str, pattern: Any, elements: int, view: NkiTensor) -> tuple[tuple[int, int], ...]:
    """The pattern of an affine expression: up to 4 pairs of step and count, as many in all as `view` has elements."""
    reason = ""
    pairs: tuple[tuple[int, int], ...] = ()
    try:
        pairs = tuple((integer(step, op, "pattern"), integer(count, op, "pattern")) for step, count in pattern)
    except (TypeError, ValueError) as e:
        if isinstance(e, errors.NkiError):
            raise
        reason = "it is a list of [step, count], the last dimension last"
    total = 1
    for _, count in pairs:
        total *= count
    if not reason:
        if not 1 <= len(pairs) <= 4:
            reason = f"it has {len(pairs)} dimensions, of 1 to 4"
        elif any(count < 1 for _, count in pairs):
            reason = "counts are at least 1"
        elif total != elements:
            reason = f"it counts {total} elements, but dst {view.shape} has {elements} per partition"
    if reason:
        refuse(errors.PatternError, op=op, pattern=pattern, reason=reason)
    return pairs


def _int32(value: Any, op: str, operand: str) -> int:
    result = integer(value, op, operand)
    if not _LOW <= result <= _HIGH:
        fail(errors.OperandValueError, op=op, operand=operand, value=result, allowed="integers of 32 bits")
    return result


def memset(dst: NkiTensor, value: Any, engine: Engine = UNKNOWN, name: str | None = None) -> NkiInstruction:
    """Fills `dst` with a number.

    Args:
        value: an integer where `dst` holds integers; 0 where it holds packed MX elements.
        engine: vector (the default) or gpsimd (SBUF only).

    Raises:
        OperandValueError: a float in integers, or a number that they do not hold.
    """
    trace = current()
    extent(dst, "memset", "dst")
    value = number(value, "memset", "value")
    dtype = dst.dtype
    if dtype.kind != "float":
        _require_value(dst, value)
    chosen = "vector"
    if engine is not UNKNOWN:
        chosen = choose(engine, ("vector", "gpsimd"), "memset")
        no_gpsimd_in_psum(chosen, "memset", ("dst", dst))
    return emit(trace, "fill", chosen, (dst,), (), (value,), name)


def _require_value(dst: NkiTensor, value: float) -> None:
    dtype = dst.dtype
    allowed = ""
    if dtype.kind == "packed":
        allowed = "" if value == 0 else f"0 only, as an element of {dtype} packs four"
    elif isinstance(value, float):
        allowed = f"integers, as dst is {dtype}: write {value:g} as an integer" if value == int(value) else "integers"
    elif dtype.kind != "bool":
        bits = 8 * dtype.itemsize
        low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if dtype.kind == "int" else (0, (1 << bits) - 1)
        allowed = "" if low <= value <= high else f"{low} to {high}, as dst is {dtype}"
    if allowed:
        fail(errors.OperandValueError, op="memset", operand="value", value=value, allowed=allowed)


def iota(
    dst: NkiTensor,
    pattern: Sequence[Sequence[int]],
    offset: Any = 0,
    channel_multiplier: int = 0,
    name: str | None = None,
) -> NkiInstruction:
    """`offset + partition * channel_multiplier + step0 * i0 + step1 * i1 + ...`, in integers of 32 bits.

    Args:
        dst: in SBUF, of any type.
        pattern: up to 4 [step, count], the last dimension last; as many elements in all as `dst` has per partition.
        offset: an integer or a register.

    Raises:
        PatternError: the pattern does not fit `dst`.
    """
    trace = current()
    size = _sbuf("iota", ("dst", dst))[0]
    pairs = _affine("iota", pattern, size[1], dst)
    return emit(
        trace,
        "iota",
        "gpsimd",
        (dst,),
        (offset_of(offset, "iota"),),
        (pairs, _int32(channel_multiplier, "iota", "channel_multiplier")),
        name,
    )


def affine_select(
    dst: NkiTensor,
    pattern: Sequence[Sequence[int]],
    channel_multiplier: int,
    on_true_tile: NkiTensor,
    on_false_value: Any,
    cmp_op: Any = "equal",
    offset: Any = 0,
    name: str | None = None,
) -> NkiInstruction:
    """`on_true_tile` where the affine value (see nisa.iota) compares with 0, else `on_false_value`.

    Args:
        dst, on_true_tile: in SBUF, with as many elements as the pattern.
        on_false_value: a number, in fp32.
        cmp_op: a comparison, as nl.greater_equal.
        offset: an integer or a register.
    """
    op = "affine_select"
    trace = current()
    size, like = _sbuf(op, ("dst", dst), ("on_true_tile", on_true_tile))
    if like != size:
        require_size(on_true_tile, like, size, op, "on_true_tile", dst, "dst")
    operator = name_of(cmp_op, op, "cmp_op")
    if operator not in COMPARISONS:
        fail(errors.OperatorError, op=op, operand="cmp_op", name=operator, allowed=", ".join(sorted(COMPARISONS)))
    pairs = _affine(op, pattern, size[1], dst)
    return emit(
        trace,
        op,
        "gpsimd",
        (dst,),
        (on_true_tile, offset_of(offset, op)),
        (
            pairs,
            _int32(channel_multiplier, op, "channel_multiplier"),
            float(number(on_false_value, op, "on_false_value")),
            operator,
        ),
        name,
    )


def local_gather(
    dst: NkiTensor,
    src_buffer: NkiTensor,
    index: NkiTensor,
    num_elem_per_idx: int = 1,
    num_valid_indices: int | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """Each core of the GpSimd engine gathers from its 16 partitions with the indices that lie in them.

    Args:
        dst: as many elements per partition as valid indices times `num_elem_per_idx`; of the type of `src_buffer`.
        src_buffer, index: in SBUF, with the same number of partitions, a multiple of 16.
        index: uint16; those of 16 partitions are read partition after partition, column by column.
        num_elem_per_idx: elements that follow each index: 1, 2, 4, 8, 16 or 32.
        num_valid_indices: per 16 partitions, at most 4096; None: all that are there.
    """
    op = "local_gather"
    trace = current()
    size, like, indices = _sbuf(op, ("dst", dst), ("src_buffer", src_buffer), ("index", index))
    require_dtype(index, frozenset({"uint16"}), op, "index", "Write it with a uint16 destination.")
    require_same_dtype(dst, src_buffer, op, "dst", "src_buffer")
    if indices[0] != like[0] or like[0] % _CORE:
        fail(
            errors.OperandShapeError,
            op=op,
            operand="index",
            shape=index.shape,
            expected=f"as many partitions as src_buffer {src_buffer.shape}, in multiples of 16",
        )
    each = integer(num_elem_per_idx, op, "num_elem_per_idx")
    if each not in (1, 2, 4, 8, 16, 32):
        fail(errors.OperandValueError, op=op, operand="num_elem_per_idx", value=each, allowed="1, 2, 4, 8, 16 and 32")
    there = indices[1] * _CORE
    valid = there if num_valid_indices is None else integer(num_valid_indices, op, "num_valid_indices")
    if not 1 <= valid <= min(there, GATHER_INDICES):
        fail(
            errors.OperandValueError,
            op=op,
            operand="num_valid_indices",
            value=valid,
            allowed=f"1 to {min(there, GATHER_INDICES)}",
        )
    require_shape(dst, size, (like[0], valid * each), op, "dst")
    return emit(trace, op, "gpsimd", (dst,), (src_buffer, index), (each, valid), name)


def nc_n_gather(dst: NkiTensor, data: NkiTensor, indices: NkiTensor, name: str | None = None) -> NkiInstruction:
    """`dst[p, i] = data[p, indices[p, i]]`, free dimensions flattened.

    Args:
        dst, data: in SBUF, of the same type.
        indices: uint32 in SBUF, as many per partition as `dst` has elements.
    """
    op = "nc_n_gather"
    trace = current()
    size, like, count = _sbuf(op, ("dst", dst), ("data", data), ("indices", indices))
    if like[0] != size[0]:
        require_size(data, (like[0], 1), (size[0], 1), op, "data", dst, "dst")
    if count != size:
        require_size(indices, count, size, op, "indices", dst, "dst")
    require_dtype(indices, frozenset({"uint32"}), op, "indices", "Write them with a uint32 destination.")
    require_same_dtype(dst, data, op, "dst", "data")
    return emit(trace, "n_gather", "gpsimd", (dst,), (data, indices), (), name)


def nonzero_with_count(
    dst: NkiTensor, src: NkiTensor, index_offset: int = 0, padding_val: int = -1, name: str | None = None
) -> NkiInstruction:
    """Indices of the elements that are not 0, then padding, then their count; NeuronCore-v3 and later.

    Only partitions 0, 16, 32, ... are read and written.

    Args:
        dst: int32 in SBUF, one element per partition more than `src`.
        src: fp32 or int32 in SBUF.
        index_offset: added to the indices.
        padding_val: where there are fewer indices than elements.
    """
    op = "nonzero_with_count"
    trace = current()
    require_generation(trace, 3, op)
    size, like = _sbuf(op, ("dst", dst), ("src", src))
    require_shape(dst, size, (like[0], like[1] + 1), op, "dst")
    require_dtype(dst, _INT32, op, "dst")
    require_dtype(src, _SEGMENTS, op, "src", "Convert it with nisa.tensor_copy.")
    return emit(
        trace,
        op,
        "gpsimd",
        (dst,),
        (src,),
        (_int32(index_offset, op, "index_offset"), _int32(padding_val, op, "padding_val")),
        name,
    )


def sequence_bounds(dst: NkiTensor, segment_ids: NkiTensor, name: str | None = None) -> NkiInstruction:
    """Where the segment of each element begins and ends; elements of segment 0 are padding: n and -1.

    Args:
        dst: (1, 2, n): beginnings, then ends; fp32 or int32.
        segment_ids: (1, n), fp32 or int32.
    """
    op = "sequence_bounds"
    trace = current()
    size, like = _sbuf(op, ("dst", dst), ("segment_ids", segment_ids))
    if like[0] != 1:
        fail(errors.OperandShapeError, op=op, operand="segment_ids", shape=segment_ids.shape, expected="one partition")
    require_shape(dst, size, (1, 2 * like[1]), op, "dst")
    for operand, view in (("dst", dst), ("segment_ids", segment_ids)):
        require_dtype(view, _SEGMENTS, op, operand)
    return emit(trace, op, "gpsimd", (dst,), (segment_ids,), (), name)


def topk(val_dst: NkiTensor, idx_dst: NkiTensor, src: NkiTensor, n: int, name: str | None = None) -> NkiInstruction:
    """The K largest of the first `n` elements of each 16 partitions, smallest of them first, and their numbers.

    Args:
        val_dst: bf16 in SBUF; K is its number of elements per partition, at most `n` and below 32768.
        idx_dst: uint32 in SBUF, of the same size.
        src: bf16 in SBUF, a multiple of 16 partitions; element i of a group lies in its partition i % 16, column
            i // 16.
        n: 8 to 65535.
    """
    op = "topk"
    trace = current()
    size, indices, like = _sbuf(op, ("val_dst", val_dst), ("idx_dst", idx_dst), ("src", src))
    require_dtype(val_dst, frozenset({"bfloat16"}), op, "val_dst")
    require_dtype(idx_dst, frozenset({"uint32"}), op, "idx_dst")
    require_dtype(src, frozenset({"bfloat16"}), op, "src", "Convert it with nisa.tensor_copy.")
    if indices != size:
        require_size(idx_dst, indices, size, op, "idx_dst", val_dst, "val_dst")
    if like[0] != size[0] or like[0] % _CORE:
        fail(
            errors.OperandShapeError,
            op=op,
            operand="src",
            shape=src.shape,
            expected=f"as many partitions as val_dst {val_dst.shape}, in multiples of 16",
        )
    count = integer(n, op, "n")
    low, high = TOPK_ELEMENTS
    if not low <= count <= high or count > like[1] * _CORE:
        fail(
            errors.OperandValueError,
            op=op,
            operand="n",
            value=count,
            allowed=f"{low} to {min(high, like[1] * _CORE)}, as 16 partitions of src {src.shape} hold",
        )
    if not 1 <= size[1] <= min(count, 32767):
        fail(
            errors.FreeSizeError,
            op=op,
            operand="val_dst",
            shape=val_dst.shape,
            count=size[1],
            allowed=f"1 to {min(count, 32767)}",
            cure="There are no more elements to choose from.",
        )
    return emit(trace, op, "gpsimd", (val_dst, idx_dst), (src,), (count,), name)
