"""A program as data: what is pickled into caches, printed into listings, and handed to csrc/program.

All sizes are places in a table of integers, `ints`: numbers, or expressions of the symbols that dynamic shapes bring.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from torch_neuronx.jit.kernel import Kernel
from torch_neuronx.targets.graph import Size

__all__ = [
    "Buffer",
    "CallStep",
    "FlexStep",
    "IntRef",
    "KernelStep",
    "Output",
    "ProgramSpec",
    "SymbolSource",
    "Tensor",
    "TensorRef",
    "TileCode",
    "tensors_of",
]


@dataclass(frozen=True)
class Buffer:
    """Memory. Kinds: `input` (of argument `index`), `output` (a block of its own), `arena` (part of the one block that
    small intermediate results share, alive during steps `first` to `last`), `block` (one of its own for these steps),
    `constant` (tensor `index` of the program), `none` (its tensors have been placed in another one)."""

    kind: str
    index: int = -1
    nbytes: int = -1  # place in ints
    first: int = -1
    last: int = -1


@dataclass(frozen=True)
class Tensor:
    """Elements of a buffer; offsets count from its first one. Sizes, strides and offset are places in ints."""

    buffer: int
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    on_cpu: bool = False


@dataclass(frozen=True)
class TensorRef:
    """An argument that is tensor `index`."""

    index: int


@dataclass(frozen=True)
class IntRef:
    """An argument that is entry `index` of ints."""

    index: int


@dataclass(frozen=True)
class CallStep:
    """An ATen op. `args` are those by position and those by name: refs, constants, lists of these. `outs` receive its
    results."""

    op: str  # "aten::mm"
    overload: str
    args: tuple[Any, ...]
    outs: tuple[int | None, ...]
    label: str


@dataclass(frozen=True)
class KernelStep:
    """Kernel number `kernel` on some tensors, with the numbers behind its variables."""

    kernel: int
    tensors: tuple[int, ...]
    ints: tuple[int, ...]
    stored: int  # the last so many tensors are written
    label: str


@dataclass(frozen=True)
class TileCode:
    """Kernel number `kernel` for tiles of scores, with the tensors and the numbers that it needs besides them."""

    kernel: int
    captured: tuple[int, ...]
    ints: tuple[int, ...]


@dataclass(frozen=True)
class FlexStep:
    """FlexAttention or its gradient, see flex.py. `tensors` by role; `blocks` are places in ints."""

    backward: bool
    tensors: tuple[int | None, ...]
    scale: float
    blocks: tuple[int, int]
    codes: tuple[TileCode | None, ...]
    stored: tuple[int, ...]  # of the tensors, those that are written
    label: str


@dataclass(frozen=True)
class Output:
    """A result: argument `argument` as it came, or tensor `tensor`, or None, or entry `number` of ints."""

    argument: int = -1
    tensor: int = -1
    number: int = -1


@dataclass(frozen=True)
class SymbolSource:
    """Where the value of a symbol is found: argument `argument` itself, or its size or stride in dimension `dim`."""

    name: str
    argument: int
    what: str = "value"  # or "size", "stride"
    dim: int = 0


@dataclass
class ProgramSpec:
    """A whole program for `device` (an index)."""

    device: int = 0
    inputs: int = 0
    ints: list[Size] = field(default_factory=list)
    symbols: list[SymbolSource] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    work: list[float] = field(default_factory=list)  # per kernel: of an element
    steps: list[CallStep | KernelStep | FlexStep] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    constants: list[torch.Tensor] = field(default_factory=list)
    donated: list[tuple[int, int]] = field(default_factory=list)  # arguments nobody else has, their last steps
    synchronous: bool = False

    @property
    def dynamic(self) -> bool:
        """Whether sizes depend on the arguments."""
        return bool(self.symbols)


def tensors_of(step: CallStep | KernelStep | FlexStep) -> Iterator[int]:
    """All tensors that a step reads or writes."""
    if isinstance(step, KernelStep):
        yield from step.tensors
        return
    if isinstance(step, FlexStep):
        yield from (tensor for tensor in step.tensors if tensor is not None)
        yield from (tensor for code in step.codes if code is not None for tensor in code.captured)
        return
    yield from (out for out in step.outs if out is not None)
    args, kwargs = step.args
    stack = [*args, *kwargs.values()]
    while stack:
        item = stack.pop()
        if isinstance(item, TensorRef):
            yield item.index
        elif isinstance(item, (list, tuple)):
            stack.extend(item)
