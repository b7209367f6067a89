"""Other shapes of the same memory: methods of NkiTensor that reorder, split and merge dimensions."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from .element_types import of
from .indexing import dimension
from .tensor_errors import (
    BroadcastError,
    DynamicViewError,
    NotContiguousError,
    PartitionViewError,
    RearrangePatternError,
    ReinterpretError,
    ReshapeError,
    SqueezeError,
    TooManyDimensionsError,
)
from .trace import source_line

if TYPE_CHECKING:
    from .tensor import NkiTensor

__all__ = [
    "broadcast", "expand_dim", "flatten_dims", "is_contiguous", "make", "permute", "rearrange", "reshape",
    "reshape_dim", "squeeze_dim", "view",
]  # fmt: skip

# Access patterns have a partition and four free dimensions; descriptors of DMA have one more.
MAX_ON_CHIP, MAX_HBM = 5, 6


def make(tensor: NkiTensor, shape: Sequence[int], strides: Sequence[int]) -> NkiTensor:
    """Another view of the same elements.

    Raises:
        TooManyDimensionsError: no access pattern has so many.
    """
    limit = MAX_ON_CHIP if tensor.storage.on_chip else MAX_HBM
    if len(shape) > limit:
        raise TooManyDimensionsError(tensor=tensor, shape=tuple(shape), limit=limit, line=source_line())
    return type(tensor)(tensor.storage, tensor.dtype, tuple(shape), tuple(strides), tensor.offset, tensor.dynamic)


def _first_is_fixed(tensor: NkiTensor) -> bool:
    """Whether dimension 0 has a meaning of its own: the partition, or rows that an index chooses."""
    return tensor.storage.on_chip or (tensor.dynamic is not None and tensor.dynamic.kind != "scalar")


def _refuse(tensor: NkiTensor, what: str) -> None:
    raise PartitionViewError(tensor=tensor, what=what, line=source_line())


def is_contiguous(self: NkiTensor) -> bool:
    """Whether the elements follow each other in row-major order; on chip, those of each partition."""
    expected = 1
    first = 1 if self.storage.on_chip else 0
    for n, stride in zip(reversed(self.shape[first:]), reversed(self.strides[first:]), strict=True):
        if n != 1 and stride != expected:
            return False
        expected *= n
    return True


def permute(self: NkiTensor, dims: Sequence[int]) -> NkiTensor:
    """The dimensions in another order: dimension k of the result is dimension `dims[k]`.

    Raises:
        ReshapeError: `dims` is no order of all dimensions.
        PartitionViewError: dimension 0 of a tensor on chip would move.
    """
    order = [dimension(self, d) for d in dims]
    if sorted(order) != list(range(len(self.shape))):
        raise ReshapeError(tensor=self, shape=f"the order {tuple(dims)}", why="each dimension must be named once",
                           line=source_line())  # fmt: skip
    if order[0] != 0 and _first_is_fixed(self):
        _refuse(self, f"permute({tuple(dims)})")
    return make(self, [self.shape[d] for d in order], [self.strides[d] for d in order])


def broadcast(self: NkiTensor, dim: int, size: int) -> NkiTensor:
    """A dimension of size 1 repeated `size` times.

    Raises:
        BroadcastError: the dimension has another size.
        PartitionViewError: it is the partition.
    """
    dim = dimension(self, dim)
    if dim == 0 and _first_is_fixed(self):
        _refuse(self, f"broadcast(0, {size})")
    if self.shape[dim] != 1 or size < 1:
        raise BroadcastError(tensor=self, dim=dim, size=size, line=source_line())
    shape, strides = list(self.shape), list(self.strides)
    shape[dim], strides[dim] = operator.index(size), 0
    return make(self, shape, strides)


def expand_dim(self: NkiTensor, dim: int) -> NkiTensor:
    """A new dimension of size 1 at place `dim`; on chip not at 0."""
    dim = dimension(self, dim, end=1)
    if dim == 0 and _first_is_fixed(self):
        _refuse(self, "expand_dim(0)")
    shape, strides = list(self.shape), list(self.strides)
    strides.insert(dim, shape[dim] * strides[dim] if dim < len(shape) else 1)
    shape.insert(dim, 1)
    return make(self, shape, strides)


def squeeze_dim(self: NkiTensor, dim: int) -> NkiTensor:
    """Without dimension `dim`, which must have size 1; on chip two dimensions stay, in HBM one.

    Raises:
        SqueezeError: another size, or the last that may go.
        PartitionViewError: it is the partition.
    """
    dim = dimension(self, dim)
    if dim == 0 and _first_is_fixed(self):
        _refuse(self, "squeeze_dim(0)")
    if self.shape[dim] != 1 or len(self.shape) <= 1 + self.storage.on_chip:
        raise SqueezeError(tensor=self, dim=dim, line=source_line())
    return make(self, self.shape[:dim] + self.shape[dim + 1 :], self.strides[:dim] + self.strides[dim + 1 :])


def _sizes(tensor: NkiTensor, shape: Sequence[int], count: int) -> list[int]:
    """`shape` with its -1, if there is one, replaced by what makes the product `count`."""
    sizes = [operator.index(n) for n in shape]
    known = prod(n for n in sizes if n != -1)
    if sizes.count(-1) == 1 and known > 0 and count % known == 0:
        sizes[sizes.index(-1)] = count // known
    if prod(sizes) != count or min(sizes, default=1) < 1:
        raise ReshapeError(tensor=tensor, shape=tuple(shape), why=f"its product is not {count}", line=source_line())
    return sizes


def reshape_dim(self: NkiTensor, dim: int, shape: Sequence[int]) -> NkiTensor:
    """Dimension `dim` split into dimensions of sizes `shape`, one of which may be -1; on chip not dimension 0.

    Raises:
        ReshapeError: the sizes do not multiply to the dimension's.
        PartitionViewError: it is the partition, and would be split.
    """
    dim = dimension(self, dim)
    sizes = _sizes(self, shape, self.shape[dim])
    if dim == 0 and len(sizes) > 1 and _first_is_fixed(self):
        _refuse(self, f"reshape_dim(0, {tuple(shape)})")
    steps = []
    stride = self.strides[dim]
    for n in reversed(sizes):
        steps.append(stride)
        stride *= n
    return make(
        self,
        [*self.shape[:dim], *sizes, *self.shape[dim + 1 :]],
        [*self.strides[:dim], *reversed(steps), *self.strides[dim + 1 :]],
    )


def _merged(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int] | None:
    """Size and stride of the one dimension that dimensions make together, if they do."""
    size, step = 1, 0
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        if n == 1:
            continue
        if size == 1:
            step = stride
        elif stride != step * size:
            return None
        size *= n
    return size, step if size > 1 else strides[-1]


def flatten_dims(self: NkiTensor, start_dim: int, end_dim: int) -> NkiTensor:
    """Dimensions `start_dim` to `end_dim`, both included, as one; they must follow each other in memory.

    Raises:
        NotContiguousError: they do not.
        PartitionViewError: the partition is among them.
    """
    start, end = dimension(self, start_dim), dimension(self, end_dim)
    if start == 0 and end > 0 and _first_is_fixed(self):
        _refuse(self, f"flatten_dims({start_dim}, {end_dim})")
    merged = _merged(self.shape[start : end + 1], self.strides[start : end + 1]) if start <= end else None
    if merged is None:
        raise NotContiguousError(
            tensor=self, what=f"dimensions {start} to {end} as one", strides=self.strides, line=source_line()
        )
    shape = [*self.shape[:start], merged[0], *self.shape[end + 1 :]]
    strides = [*self.strides[:start], merged[1], *self.strides[end + 1 :]]
    if len(shape) <= self.storage.on_chip:
        shape.append(1)
        strides.append(1)
    return make(self, shape, strides)


def reshape(self: NkiTensor, shape: Sequence[int]) -> NkiTensor:
    """The same elements in another shape; one size may be -1. On chip `shape[0]` is the number of partitions.

    Raises:
        ReshapeError: another number of elements, or fewer than two dimensions on chip.
        PartitionViewError: another number of partitions.
        NotContiguousError: the elements do not lie so that strides can say it.
    """
    sizes = _sizes(self, shape if isinstance(shape, Sequence) else (shape,), self.size)
    fixed = _first_is_fixed(self)
    if fixed and (not sizes or sizes[0] != self.shape[0]):
        _refuse(self, f"reshape({tuple(shape)})")
    if len(sizes) < 1 + self.storage.on_chip:
        raise ReshapeError(tensor=self, shape=tuple(shape), why="tensors on chip have at least two dimensions",
                           line=source_line())  # fmt: skip
    first = 1 if fixed else 0
    steps = _restride(self.shape[first:], self.strides[first:], sizes[first:])
    if steps is None:
        raise NotContiguousError(tensor=self, what=f"shape {tuple(sizes)}", strides=self.strides, line=source_line())
    return make(self, sizes, [*self.strides[:first], *steps])


def _restride(shape: Sequence[int], strides: Sequence[int], sizes: Sequence[int]) -> list[int] | None:
    """Strides with which `sizes` sees the elements of (shape, strides) in their order; None where there are none."""
    old = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    steps: list[int] = []
    left = 1  # elements of the run of old dimensions that new ones have not taken yet
    stride = 1  # of a new dimension that takes all that is left, times `left`
    for n in reversed(sizes):
        if n == 1:
            steps.append(stride)
            continue
        if left == 1:
            if not old:
                return None
            left, step = old.pop()
            # As many old dimensions as lie in one piece.
            while old and old[-1][1] == step * left:
                left *= old.pop()[0]
            stride = step
        if left % n:
            return None
        steps.append(stride)
        stride *= n
        left //= n
    return steps[::-1]


def rearrange(
    self: NkiTensor,
    src_pattern: Sequence[Any],
    dst_pattern: Sequence[Any],
    fixed_sizes: Mapping[str, int] | None = None,
) -> NkiTensor:
    """Splits, reorders and merges dimensions by name: `t.rearrange(("p", ("h", "w")), ("p", "w", "h"), {"h": 4})`.

    Args:
        src_pattern: for each dimension a name, or a tuple of names that it is made of, outermost first.
        dst_pattern: the result's dimensions, of the same names.
        fixed_sizes: sizes of names; in each tuple all but one must be known.

    Raises:
        RearrangePatternError: the patterns do not fit the tensor or each other.
        NotContiguousError: names that are merged do not follow each other in memory.
        PartitionViewError: dimension 0 of a tensor on chip is split, merged or moved.
    """
    sizes = dict(fixed_sizes or {})
    groups = [(g,) if isinstance(g, str) else tuple(g) for g in src_pattern]
    wanted = [(g,) if isinstance(g, str) else tuple(g) for g in dst_pattern]
    names = [name for group in groups for name in group]
    order = [name for group in wanted for name in group]
    if len(groups) != len(self.shape) or sorted(names) != sorted(order) or len(set(names)) != len(names):
        raise RearrangePatternError(tensor=self, source=src_pattern, target=dst_pattern, line=source_line())
    result = self
    # The last dimension first, so that the places of those before it stay.
    for dim in reversed(range(len(groups))):
        if len(groups[dim]) > 1:
            if sum(name not in sizes for name in groups[dim]) > 1:
                raise RearrangePatternError(tensor=self, source=src_pattern, target=dst_pattern, line=source_line())
            result = _split(result, dim, [sizes.get(name, -1) for name in groups[dim]])
        elif sizes.get(groups[dim][0], self.shape[dim]) != self.shape[dim]:
            raise RearrangePatternError(tensor=self, source=src_pattern, target=dst_pattern, line=source_line())
    places = [names.index(name) for name in order]
    if places[0] != 0 and _first_is_fixed(self):
        _refuse(self, f"rearrange to {tuple(dst_pattern)}")
    shape = [result.shape[i] for i in places]
    strides = [result.strides[i] for i in places]
    merged_shape: list[int] = []
    merged_strides: list[int] = []
    at = 0
    for group in wanted:
        if not merged_shape and len(group) > 1 and _first_is_fixed(self):
            _refuse(self, f"rearrange to {tuple(dst_pattern)}")
        merged = _merged(shape[at : at + len(group)], strides[at : at + len(group)])
        if merged is None:
            raise NotContiguousError(
                tensor=self, what=f"{group} as one dimension", strides=tuple(strides), line=source_line()
            )
        merged_shape.append(merged[0])
        merged_strides.append(merged[1])
        at += len(group)
    return make(self, merged_shape, merged_strides)


def _split(tensor: NkiTensor, dim: int, shape: list[int]) -> NkiTensor:
    """`reshape_dim` without the limit of dimensions, which counts for the result only."""
    sizes = _sizes(tensor, shape, tensor.shape[dim])
    if dim == 0 and _first_is_fixed(tensor):
        _refuse(tensor, f"a split of dimension 0 into {tuple(shape)}")
    steps = []
    stride = tensor.strides[dim]
    for n in reversed(sizes):
        steps.append(stride)
        stride *= n
    return type(tensor)(
        tensor.storage,
        tensor.dtype,
        (*tensor.shape[:dim], *sizes, *tensor.shape[dim + 1 :]),
        (*tensor.strides[:dim], *reversed(steps), *tensor.strides[dim + 1 :]),
        tensor.offset,
        tensor.dynamic,
    )


def view(self: NkiTensor, dtype: Any) -> NkiTensor:
    """The same bytes as elements of another type; the last dimension grows or shrinks with the sizes of the types.

    Raises:
        ReinterpretError: the last dimension is not contiguous, or bytes do not divide into whole elements.
        DynamicViewError: the view has a run-time index.
    """
    target = of(dtype)
    old, new = self.dtype.itemsize, target.itemsize
    if self.dynamic is not None:
        raise DynamicViewError(tensor=self, what="another type is asked of it", line=source_line())
    if old == new:
        return type(self)(self.storage, target, self.shape, self.strides, self.offset)
    last = self.shape[-1] * old
    numbers = [stride * old for stride in self.strides[:-1]] + [self.offset * old, last]
    if (self.strides[-1] != 1 and self.shape[-1] != 1) or any(n % new for n in numbers):
        raise ReinterpretError(tensor=self, dtype=target, line=source_line())
    if self.storage.on_chip and len(self.shape) == 1:
        _refuse(self, f"view({target})")
    return type(self)(
        self.storage,
        target,
        (*self.shape[:-1], last // new),
        (*(stride * old // new for stride in self.strides[:-1]), 1),
        self.offset * old // new,
    )
