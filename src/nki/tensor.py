"""Tensors of a kernel: strided views of storages."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn

from . import indexing, patterns, views
from .element_types import DType
from .regions import MemoryRegion
from .storage import Storage
from .tensor_errors import OperatorNotInDialectError
from .trace import source_line

if TYPE_CHECKING:
    from .trace import Register

__all__ = ["Dynamic", "NkiTensor"]

_REGIONS = {region.value: region for region in MemoryRegion}


@dataclass(frozen=True, slots=True)
class Dynamic:
    """Where a view moves with a value that is known only when the kernel runs.

    Attributes:
        kind: "scalar": the whole view, by `step * value`; `index` is a register or a view of one element.
            "vector": row p of dimension 0, whose stride is not used, starts at `offset + step * index[p]`.
            "indirect": the elements of the free dimensions are those that `index` names, in snake order of `group`
            partitions.
        index: register or view.
        step: elements per unit of the value.
        limit: values outside [0, limit) are out of bounds.
        group: partitions that share a list of indices ("indirect").
    """

    kind: str
    index: NkiTensor | Register
    step: int
    limit: int
    group: int = 0


def _missing(symbol: str, function: str) -> Any:
    def operator(self: NkiTensor, *_: Any) -> NoReturn:
        raise OperatorNotInDialectError(symbol=symbol, tensor=self, function=function, line=source_line())

    return operator


class NkiTensor:
    """A view of a storage: element (i0, i1, ...) has the number `offset + sum(strides[k] * ik)` in it.

    Tensors come from :func:`nki.language.ndarray` and its relatives, and as arguments of kernels. Every method makes
    another view of the same memory; none copies or costs anything when the kernel runs. On chip, dimension 0 is the
    partition: it stays where it is, whole or as a range, and tensors keep at least 2 dimensions.

    Attributes:
        storage: memory that the view looks at, never copied.
        dtype: element type of the view; numbers count elements of it.
        shape: sizes of up to 5 dimensions (6 in HBM); on chip the first is the partition, and there are at least 2.
        strides: in elements; on chip strides[0] is the number of elements per partition of the storage.
        offset: number of the first element.
        dynamic: run-time offset, or None.
    """

    __slots__ = ("dtype", "dynamic", "offset", "shape", "storage", "strides")

    def __init__(
        self,
        storage: Storage,
        dtype: DType,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        offset: int = 0,
        dynamic: Dynamic | None = None,
    ) -> None:
        self.storage = storage
        self.dtype = dtype
        self.shape = shape
        self.strides = strides
        self.offset = offset
        self.dynamic = dynamic

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def name(self) -> str:
        return self.storage.name

    @property
    def buffer(self) -> MemoryRegion:
        return _REGIONS[self.storage.region]

    @property
    def data(self) -> NkiTensor:
        """The tensor itself: what a tile of a grid and a tensor have in common as operands."""
        return self

    def __getitem__(self, key: Any) -> NkiTensor:
        """A view of a part: integers (also negative), slices, `...` and :func:`nki.language.ds`, one per dimension.

        In HBM an integer drops its dimension, at least one stays. On chip an integer keeps dimension 0 at size 1 and
        drops a free one, at least two stay. A register as start of `ds` or as an integer makes the view dynamic.

        Raises:
            IndexOutOfBoundsError: outside of the dimension, or empty.
            IndexKindError: what is no index.
            TooManyIndicesError: more of them than dimensions.
            PartitionViewError: a step over partitions.
            DynamicViewError: a second run-time index.
        """
        # Ranges and integers for all dimensions are most of the indexing that kernels do.
        shape = self.shape
        if type(key) is tuple and len(key) == len(shape) and self.dynamic is None:
            strides = self.strides
            offset = self.offset
            sizes = []
            dropped = False
            for k, n, stride in zip(key, shape, strides):  # noqa: B905 - equal lengths; the keyword costs time here
                if type(k) is slice:
                    if k.step is not None:
                        break
                    start, stop = k.start, k.stop
                    if start is None:
                        start = 0
                    if stop is None:
                        stop = n
                    if type(start) is not int or type(stop) is not int or not 0 <= start < stop <= n:
                        break
                    if start:
                        offset += start * stride
                    sizes.append(stop - start)
                elif type(k) is int and 0 <= k < n:
                    offset += k * stride
                    sizes.append(0)
                    dropped = True
                else:
                    break
            else:
                if dropped:
                    return indexing.without_dropped(self, sizes, offset)
                return NkiTensor(self.storage, self.dtype, tuple(sizes), strides, offset)
        return self if key is Ellipsis else indexing.index(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Copies a tile, or a number, into a part: `tensor_copy` on chip, `dma_copy` where HBM is concerned."""
        indexing.assign(self[key], value)

    select = indexing.select
    slice = indexing.slice_dim
    vector_select = patterns.vector_select
    ap = patterns.ap
    indirect = patterns.indirect
    get_pattern = patterns.get_pattern
    is_indirect = patterns.is_indirect
    is_contiguous = views.is_contiguous
    permute = views.permute
    broadcast = views.broadcast
    expand_dim = views.expand_dim
    squeeze_dim = views.squeeze_dim
    reshape_dim = views.reshape_dim
    flatten_dims = views.flatten_dims
    reshape = views.reshape
    rearrange = views.rearrange
    view = views.view
    reinterpret_cast = views.view

    __add__ = __radd__ = __iadd__ = _missing("+", "add")
    __sub__ = __rsub__ = __isub__ = _missing("-", "subtract")
    __mul__ = __rmul__ = __imul__ = _missing("*", "multiply")
    __truediv__ = __rtruediv__ = __itruediv__ = _missing("/", "reciprocal and nl.multiply")
    __pow__ = __rpow__ = _missing("**", "power")
    __matmul__ = __rmatmul__ = _missing("@", "matmul")
    __and__ = __rand__ = __iand__ = _missing("&", "bitwise_and")
    __or__ = __ror__ = __ior__ = _missing("|", "bitwise_or")
    __xor__ = __rxor__ = __ixor__ = _missing("^", "bitwise_xor")
    __lshift__ = _missing("<<", "left_shift")
    __rshift__ = _missing(">>", "right_shift")
    __neg__ = _missing("-", "negative")
    __invert__ = _missing("~", "invert")
    __abs__ = _missing("abs()", "abs")
    __lt__ = _missing("<", "less")
    __le__ = _missing("<=", "less_equal")
    __gt__ = _missing(">", "greater")
    __ge__ = _missing(">=", "greater_equal")

    def __repr__(self) -> str:
        name = f" {self.storage.name!r}" if self.storage.name else ""
        moves = f", moves by a {self.dynamic.kind} index" if self.dynamic is not None else ""
        return f"<{self.storage.region} tensor{name} {self.dtype}{list(self.shape)}{moves}>"
