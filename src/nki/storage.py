"""Memory of one tensor: what an allocation makes and views look at."""

from __future__ import annotations

from math import prod
from typing import Any

from .element_types import DType
from .instruction import Line

__all__ = ["Storage"]


class Storage:
    """One allocation.

    On chip the first dimension is the partition; the elements of a partition follow each other. Element numbers count
    through all partitions in order, as if the tensor were contiguous: element f of partition p has the number
    `p * free + f`. Where it really lies is decided when the program is made.

    Attributes:
        number: place in the trace's list.
        region: "sbuf", "psum", "private_hbm" or "shared_hbm".
        shape, dtype: as allocated.
        free: elements per partition (on chip), or of the whole tensor (HBM).
        address: (partition, byte within the partition) that the kernel asked for, or None.
        role: "argument" (with `position`, its place among the tensor arguments), "constant" (with `data`), "output"
            once the kernel has returned it, or "" for what lives only inside.
        name: given by the kernel, or of the argument.
        line: where it was allocated.
        loops: dynamic loops around the allocation.
    """

    __slots__ = (
        "address", "data", "dtype", "free", "line", "loops", "name", "number", "position", "region", "role", "shape"
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        region: str,
        shape: tuple[int, ...],
        dtype: DType,
        *,
        name: str = "",
        line: Line = ("", 0, ""),
        address: tuple[int, int] | None = None,
        role: str = "",
        position: int = -1,
        data: Any = None,
        loops: tuple[int, ...] = (),
    ) -> None:
        self.number = number
        self.region = region
        self.shape = shape
        self.dtype = dtype
        self.free = prod(shape[1:]) if region in ("sbuf", "psum") else prod(shape)
        self.address = address
        self.role = role
        self.position = position
        self.data = data
        self.name = name
        self.line = line
        self.loops = loops

    @property
    def on_chip(self) -> bool:
        return self.region in ("sbuf", "psum")

    @property
    def partitions(self) -> int:
        return self.shape[0] if self.on_chip else 1

    @property
    def bytes_per_partition(self) -> int:
        return self.free * self.dtype.itemsize

    def __repr__(self) -> str:
        return f"{self.name or self.region}#{self.number}"
