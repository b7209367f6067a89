"""Parts of tensors: what `tensor[...]`, `slice` and `select` make of the indices that they get."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from .tensor_errors import (
    AssignmentError,
    DimensionError,
    DynamicViewError,
    IndexKindError,
    IndexOutOfBoundsError,
    IndirectionError,
    PartitionViewError,
    TooManyIndicesError,
)
from .trace import Register, source_line

if TYPE_CHECKING:
    from .tensor import Dynamic, NkiTensor

__all__ = [
    "DynamicSlice", "assign", "check_width", "dimension", "ds", "index", "runtime_index", "select", "slice_dim",
    "without_dropped"
]  # fmt: skip


class DynamicSlice:
    """`size` elements from `start` on, which is known only when the kernel runs."""

    __slots__ = ("size", "start")

    def __init__(self, start: Any, size: int) -> None:
        self.start = start
        self.size = size


def ds(start: Any, size: int) -> Any:
    """`size` elements from `start` on, as an index: `tensor[nl.ds(i * 128, 128), :]`.

    Args:
        start: an integer, or a register or scalar whose value is known only when the kernel runs.
        size: number of elements.
    """
    if isinstance(start, int):
        return slice(start, start + size)
    if runtime_index(start) is not None:
        return DynamicSlice(start, operator.index(size))
    start = operator.index(start)
    return slice(start, start + operator.index(size))


def runtime_index(value: Any) -> Any:
    """`value` if it is a register or a tensor, whose value is known only when the kernel runs; None for any other."""
    return value if isinstance(value, Register) or hasattr(value, "storage") else None


def check_width(tensor: NkiTensor, value: Any) -> None:
    """Offsets within memories on chip have 32 bits.

    Raises:
        IndirectionError: `value` has 64.
    """
    if tensor.storage.on_chip and getattr(value, "dtype", None) == "int64":
        raise IndirectionError(
            tensor=tensor, why="offsets on chip have 32 bits, and this one has 64", line=source_line()
        )


def dimension(tensor: NkiTensor, dim: int, *, end: int = 0) -> int:
    """`dim` counted from the front.

    Raises:
        DimensionError: the tensor has no such dimension.
    """
    number = operator.index(dim)
    count = len(tensor.shape) + end
    if not -count <= number < count:
        raise DimensionError(tensor=tensor, dim=dim, count=count, line=source_line())
    return number % count


def index(tensor: NkiTensor, key: Any) -> NkiTensor:
    """The view that `tensor[key]` is."""
    shape, strides, offset, dynamic = tensor.shape, tensor.strides, tensor.offset, tensor.dynamic
    keys = _expand(tensor, key if type(key) is tuple else (key,))
    on_chip = tensor.storage.on_chip
    sizes: list[int] = []
    steps: list[int] = []
    for dim, (k, n, stride) in enumerate(zip(keys, shape, strides, strict=True)):
        if isinstance(k, slice):
            start, stop, step = _bounds(tensor, dim, k)
            if dynamic is not None and (start, stop, step) != (0, n, 1):
                _check_not_indexed(tensor, dim)
            if step != 1 and dim == 0 and on_chip:
                raise PartitionViewError(tensor=tensor, what=f"a step of {step} over partitions", line=source_line())
            offset += start * stride
            sizes.append(-((start - stop) // step))
            steps.append(stride * step)
            continue
        if isinstance(k, DynamicSlice):
            dynamic = _runtime(tensor, dim, k.start, n - k.size + 1)
            if not 0 < k.size <= n:
                raise IndexOutOfBoundsError(
                    tensor=tensor, dim=dim, size=n, index=f"{k.size} elements", line=source_line()
                )
            sizes.append(k.size)
            steps.append(stride)
            continue
        if runtime_index(k) is not None:
            dynamic = _runtime(tensor, dim, k, n)
            continue
        position = _position(tensor, dim, k, n)
        if dynamic is not None:
            _check_not_indexed(tensor, dim)
        offset += position * stride
        if dim == 0 and on_chip:
            sizes.append(1)
            steps.append(stride)
    if len(sizes) < 1 + on_chip:  # integers for all free dimensions: the last one stays
        sizes.append(1)
        steps.append(strides[-1])
    return type(tensor)(tensor.storage, tensor.dtype, tuple(sizes), tuple(steps), offset, dynamic)


def without_dropped(tensor: NkiTensor, sizes: list[int], offset: int) -> NkiTensor:
    """The view whose dimensions of size 0 were indexed with integers: they go, as far as tensors may lose them."""
    strides = tensor.strides
    on_chip = tensor.storage.region in ("sbuf", "psum")
    if on_chip and not sizes[0]:
        sizes[0] = 1
    steps = [stride for n, stride in zip(sizes, strides, strict=True) if n]
    sizes = [n for n in sizes if n]
    if len(sizes) < 1 + on_chip:
        sizes.append(1)
        steps.append(strides[-1])
    return type(tensor)(tensor.storage, tensor.dtype, tuple(sizes), tuple(steps), offset)


def _expand(tensor: NkiTensor, keys: tuple[Any, ...]) -> list[Any]:
    """One key per dimension."""
    count = len(tensor.shape)
    given = [k for k in keys if k is not Ellipsis]
    if len(given) > count or len(keys) - len(given) > 1:
        raise TooManyIndicesError(tensor=tensor, given=len(given), count=count, line=source_line())
    rest = [slice(None)] * (count - len(given))
    for place, k in enumerate(keys):
        if k is Ellipsis:
            return [*keys[:place], *rest, *keys[place + 1 :]]
    return [*keys, *rest]


def _bounds(tensor: NkiTensor, dim: int, key: slice) -> tuple[int, int, int]:
    """Start, stop and step of a slice, which must lie within the dimension."""
    n = tensor.shape[dim]
    try:
        step = 1 if key.step is None else operator.index(key.step)
        start = 0 if key.start is None else operator.index(key.start)
        stop = n if key.stop is None else operator.index(key.stop)
    except TypeError as error:
        raise IndexKindError(tensor=tensor, dim=dim, index=key, line=source_line()) from error
    if start < 0:
        start += n
    if stop < 0:
        stop += n
    if step < 1 or not 0 <= start < stop <= n:
        text = f"{_text(key.start)}:{_text(key.stop)}" + ("" if key.step is None else f":{key.step}")
        raise IndexOutOfBoundsError(tensor=tensor, dim=dim, size=n, index=text, line=source_line())
    return start, stop, step


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _position(tensor: NkiTensor, dim: int, key: Any, n: int) -> int:
    if isinstance(key, bool):
        raise IndexKindError(tensor=tensor, dim=dim, index=key, line=source_line())
    try:
        position = operator.index(key)
    except TypeError as error:
        raise IndexKindError(tensor=tensor, dim=dim, index=key, line=source_line()) from error
    if not -n <= position < n:
        raise IndexOutOfBoundsError(tensor=tensor, dim=dim, size=n, index=position, line=source_line())
    return position + n if position < 0 else position


def _check_not_indexed(tensor: NkiTensor, dim: int) -> None:
    """A dimension whose elements a run-time index chooses cannot be cut further."""
    dynamic = tensor.dynamic
    if dynamic is not None and (dynamic.kind == "indirect" or (dynamic.kind == "vector" and dim == 0)):
        raise DynamicViewError(
            tensor=tensor, what=f"dimension {dim}, whose elements the index chooses, is cut", line=source_line()
        )


def _runtime(tensor: NkiTensor, dim: int, value: Any, limit: int) -> Dynamic:
    from .tensor import Dynamic

    found = runtime_index(value)
    if tensor.dynamic is not None:
        raise DynamicViewError(tensor=tensor, what="another run-time index is applied to it", line=source_line())
    if dim == 0 and tensor.storage.on_chip:
        raise PartitionViewError(tensor=tensor, what="a run-time index of the partition", line=source_line())
    if found is None or (hasattr(found, "size") and found.size != 1):
        raise IndexKindError(tensor=tensor, dim=dim, index=value, line=source_line())
    check_width(tensor, found)
    return Dynamic("scalar", found, tensor.strides[dim], limit)


def slice_dim(self: NkiTensor, dim: int, start: int, end: int, step: int = 1) -> NkiTensor:
    """A range of one dimension: elements start, start + step, ... below `end`, with 0 <= start < end <= size.

    Raises:
        IndexOutOfBoundsError: not so.
        PartitionViewError: a step over partitions.
    """
    keys: list[Any] = [slice(None)] * len(self.shape)
    keys[dimension(self, dim)] = slice(start, end, step)
    return index(self, tuple(keys))


def select(self: NkiTensor, dim: int, index: Any) -> NkiTensor:
    """One element of a dimension, which goes; on chip the partition stays with size 1, and so do two dimensions.

    Args:
        dim: the dimension.
        index: its element: an integer, or what is known when the kernel runs: a tensor of one element in SBUF, or a
            register. Only one such index per view, and not of the partition.
    """
    keys: list[Any] = [slice(None)] * len(self.shape)
    keys[dimension(self, dim)] = index
    return _index(self, tuple(keys))


_index = index  # `select` has a parameter of that name


def assign(target: NkiTensor, value: Any) -> None:
    """Copies `value` into the view `target`."""
    from . import isa

    on_chip = target.storage.on_chip
    if hasattr(value, "storage"):
        if on_chip and value.storage.on_chip:
            isa.tensor_copy(dst=target, src=value)
        else:
            isa.dma_copy(dst=target, src=value)
    elif on_chip and isinstance(value, (int, float)):
        isa.memset(dst=target, value=value)
    else:
        raise AssignmentError(tensor=target, value=type(value).__name__, line=source_line())
