"""Access patterns and run-time indices: the methods of :class:`~nki.tensor.NkiTensor` nearest to the hardware."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .element_types import of
from .indexing import check_width, dimension, runtime_index
from .tensor_errors import (
    AccessPatternError,
    AccessPatternOutOfBoundsError,
    DynamicViewError,
    IndirectionError,
    PartitionViewError,
    TooManyDimensionsError,
)
from .trace import active, source_line

if TYPE_CHECKING:
    from .tensor import Dynamic, NkiTensor

__all__ = ["ap", "get_pattern", "indirect", "is_indirect", "vector_select"]

# Partitions that share a list of indices: those of one core of GpSimd, which Vector and Scalar follow. The Tensor
# engine takes 32; instructions for it say so themselves.
_GROUP = 16


def get_pattern(self: NkiTensor) -> list[list[int]]:
    """[[stride, size], ...] of the view, outermost first, in elements: what :meth:`ap` takes."""
    return [[stride, n] for stride, n in zip(self.strides, self.shape, strict=True)]


def is_indirect(self: NkiTensor) -> bool:
    """Whether the view has an index whose value is known only when the kernel runs."""
    return self.dynamic is not None


def vector_select(self: NkiTensor, dim: int, vector_offset: NkiTensor) -> NkiTensor:
    """Rows of a tensor in HBM by a list of numbers: row p of the result is `self[vector_offset[p]]`.

    Args:
        dim: 0.
        vector_offset: integers (n, 1) in SBUF.

    Returns:
        A view with size n in dimension 0, which can be neither cut nor moved nor indexed again.

    Raises:
        DynamicViewError: on chip, of another dimension, or of a view with a run-time index.
    """
    from .tensor import Dynamic

    if self.dynamic is not None:
        raise DynamicViewError(tensor=self, what="another run-time index is applied to it", line=source_line())
    if self.storage.on_chip or dimension(self, dim) != 0:
        raise DynamicViewError(
            tensor=self, what="vector_select takes dimension 0 of tensors in HBM only", line=source_line()
        )
    _check_index(self, vector_offset, vector_offset.shape[0])
    return type(self)(
        self.storage,
        self.dtype,
        (vector_offset.shape[0], *self.shape[1:]),
        self.strides,
        self.offset,
        Dynamic("vector", vector_offset, self.strides[0], self.shape[0]),
    )


def _check_index(tensor: NkiTensor, index: Any, count: int) -> None:
    """An index tensor: integers, in SBUF, enough of them."""
    wrong = None
    if not hasattr(index, "storage"):
        wrong = f"{type(index).__name__} is no tensor"
    elif not index.dtype.is_integer:
        wrong = f"it has the type {index.dtype}, not an integer one"
    elif index.size < count:
        wrong = f"it has {index.size} elements for {count} rows"
    if wrong is not None:
        raise IndirectionError(tensor=tensor, why=wrong, line=source_line())


def ap(
    self: NkiTensor,
    pattern: Sequence[Sequence[int]],
    offset: int | None = None,
    scalar_offset: Any = None,
    vector_offset: NkiTensor | None = None,
    indirect_dim: int = 0,
    dtype: Any = None,
) -> NkiTensor:
    """An access pattern on the memory under the view, whatever the view itself looks like.

    Args:
        pattern: [[stride, size], ...], outermost first. On chip the first pair is the partition, and its stride is the
            number of elements that the memory has per partition.
        offset: number of the first element in the memory; None is that of the view.
        scalar_offset: what the pattern moves by when the kernel runs, in steps of dimension `indirect_dim` of this
            view: a tensor of one element in SBUF, or a register. Not the partition.
        vector_offset: numbers of rows, for tensors in HBM: row p of the pattern starts at row `vector_offset[p]`. The
            stride of the first pair has no effect.
        indirect_dim: dimension of this view (not of the pattern) that a run-time offset counts; 0 for vectors.
        dtype: type to read the memory as; strides, sizes and `offset` count elements of it.

    Raises:
        AccessPatternError: not pairs of integers, a wrong stride of the partition, or both run-time offsets.
        AccessPatternOutOfBoundsError: the pattern leaves the memory.
        DynamicViewError: the view has a run-time index already, or vectors are used on chip.
    """
    storage = self.storage
    on_chip = storage.region in ("sbuf", "psum")
    if self.dynamic is not None:
        raise DynamicViewError(tensor=self, what="an access pattern is asked of it", line=source_line())
    shape: list[int] = []
    strides: list[int] = []
    low = high = 0  # what the dimensions reach to, before and after the first element
    partition = on_chip or vector_offset is not None  # the first pair names partitions, or rows that an index chooses
    try:
        for stride, n in pattern:
            if type(stride) is not int or type(n) is not int:
                stride, n = operator.index(stride), operator.index(n)
            strides.append(stride)
            shape.append(n)
            if partition:
                partition = False
            elif stride >= 0:
                high += stride * (n - 1)
            else:
                low += stride * (n - 1)
    except (TypeError, ValueError) as error:
        raise AccessPatternError(
            tensor=self, pattern=pattern, why="a pattern is a list of pairs of integers", line=source_line()
        ) from error
    if not 0 < len(shape) <= (5 if on_chip else 6):
        raise TooManyDimensionsError(tensor=self, shape=tuple(shape), limit=5 if on_chip else 6, line=source_line())
    target = self.dtype if dtype is None else of(dtype)
    start = self.offset if offset is None else operator.index(offset)
    free = storage.free
    if target is not self.dtype:
        start = _rescale(self, start, target.itemsize) if offset is None else start
    if target is not storage.dtype:
        free = free * storage.dtype.itemsize // target.itemsize
    row, at = divmod(start, free) if on_chip else (0, start)
    if on_chip:
        if strides[0] != free:
            if shape[0] != 1:
                raise AccessPatternError(
                    tensor=self,
                    pattern=pattern,
                    why=f"the partition's stride must be {free}, the elements per partition",
                    line=source_line(),
                )
            strides[0] = free
        if len(shape) == 1:
            shape.append(1)
            strides.append(1)
    if min(shape) < 1 or at + low < 0 or at + high >= free or (on_chip and not 0 <= row <= storage.shape[0] - shape[0]):
        raise AccessPatternOutOfBoundsError(
            tensor=self, pattern=pattern, offset=start, free=free, partitions=storage.partitions, line=source_line()
        )
    dynamic = None
    if scalar_offset is not None or vector_offset is not None:
        if scalar_offset is not None and vector_offset is not None:
            raise AccessPatternError(
                tensor=self,
                pattern=pattern,
                why="scalar_offset and vector_offset exclude each other",
                line=source_line(),
            )
        dim = dimension(self, indirect_dim)
        step = _rescale(self, self.strides[dim], target.itemsize)
        limit = (free - 1 - at - high) // step + 1 if step > 0 else 1 << 31
        if vector_offset is not None:
            dynamic = _rows(self, vector_offset, dim, shape[0], step, limit)
        else:
            dynamic = _moved(self, scalar_offset, dim, step, limit)
    return type(self)(storage, target, tuple(shape), tuple(strides), start, dynamic)


def _rows(tensor: NkiTensor, index: NkiTensor, dim: int, count: int, step: int, limit: int) -> Dynamic:
    """Rows of an access pattern by a list of numbers."""
    from .tensor import Dynamic

    if tensor.storage.on_chip or dim != 0:
        raise DynamicViewError(
            tensor=tensor, what="vector_offset takes dimension 0 of tensors in HBM only", line=source_line()
        )
    _check_index(tensor, index, count)
    return Dynamic("vector", index, step, limit)


def _moved(tensor: NkiTensor, index: Any, dim: int, step: int, limit: int) -> Dynamic:
    """A whole access pattern moved by one number."""
    from .tensor import Dynamic

    if tensor.storage.on_chip and dim == 0:
        raise PartitionViewError(
            tensor=tensor, what="a run-time offset of the partition (indirect_dim=0)", line=source_line()
        )
    found = runtime_index(index)
    why = None
    if found is None:
        why = f"scalar_offset is a {type(index).__name__}, not a register or a tensor"
    elif hasattr(found, "storage") and (found.size != 1 or not found.dtype.is_integer):
        why = f"scalar_offset is {found}, not one integer"
    if why is not None:
        raise IndirectionError(tensor=tensor, why=why, line=source_line())
    check_width(tensor, found)
    return Dynamic("scalar", found, step, limit)


def _rescale(tensor: NkiTensor, elements: int, itemsize: int) -> int:
    """A number of elements of the view as a number of elements of another size."""
    old = tensor.dtype.itemsize
    if old == itemsize:
        return elements
    count, rest = divmod(elements * old, itemsize)
    if rest:
        raise AccessPatternError(
            tensor=tensor,
            pattern=f"dtype of {itemsize} bytes",
            why=f"{elements * old} bytes are no whole number of elements",
            line=source_line(),
        )
    return count


def indirect(self: NkiTensor, index: NkiTensor, num_elem: int | None = None) -> NkiTensor:
    """Elements of each partition by a list of numbers (NeuronCore-v4, trn3): reads gather, writes scatter.

    Partitions share a list in groups of 16 (32 on the Tensor engine). Number i of a group is
    `index[i % 16, i // 16]` of it, and counts elements of the free dimensions.

    Args:
        index: integers (P, k) in SBUF, of as many partitions as the tensor.
        num_elem: how many numbers are used; all by default.

    Returns:
        A view of shape (P, num_elem).

    Raises:
        IndirectionError: no such indexing on this chip, or the index does not fit.
        DynamicViewError: the view has a run-time index already.
        PartitionViewError: a tensor in HBM.
    """
    from .tensor import Dynamic

    if self.dynamic is not None:
        raise DynamicViewError(tensor=self, what="another run-time index is applied to it", line=source_line())
    trace = active()
    if trace is not None and trace.target != "trn3":
        raise IndirectionError(
            tensor=self, why=f"{trace.target} has no indirection of tiles, trn3 does", line=source_line()
        )
    if not self.storage.on_chip:
        raise IndirectionError(tensor=self, why="a tensor in HBM is gathered with vector_select", line=source_line())
    _check_index(self, index, 1)
    if index.shape[0] != self.shape[0]:
        raise IndirectionError(tensor=self, why=f"the index has {index.shape[0]} partitions", line=source_line())
    flat = self if len(self.shape) == 2 else self.flatten_dims(1, len(self.shape) - 1)
    available = min(_GROUP, index.shape[0]) * (index.size // index.shape[0])
    count = available if num_elem is None else operator.index(num_elem)
    # The Tensor engine's groups have twice as many numbers.
    if not 0 < count <= 2 * available:
        raise IndirectionError(
            tensor=self, why=f"{count} elements are asked of an index that has {available}", line=source_line()
        )
    return type(self)(
        self.storage,
        self.dtype,
        (self.shape[0], count),
        (flat.strides[0], flat.strides[1]),
        flat.offset,
        Dynamic("indirect", index, flat.strides[1], flat.shape[1], _GROUP),
    )
