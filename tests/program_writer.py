"""Small programs written by hand, for tests of the executor: sizes as plain numbers or by name."""

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import torch

from torch_neuronx import _C

Size = int | str  # a name stands for a number that each binding gives


class Writer:
    """Writes one program. Numbers become entries of its table of integers.

    Tensors are contiguous unless told otherwise; `where` is a buffer, as the methods for buffers return it.
    """

    def __init__(
        self, arguments: Sequence[torch.Tensor | torch.dtype | None], synchronous: bool = False, name: str = "test"
    ) -> None:
        self.table: dict[Size, int] = {}
        self._arena = 0
        described: list[tuple[torch.dtype, str] | None] = []
        for argument in arguments:
            if isinstance(argument, torch.Tensor):
                described.append((argument.dtype, argument.device.type))
            else:
                described.append(None if argument is None else (argument, "neuron"))
        self.builder = _C.ProgramBuilder(name, 0, described, synchronous)

    def ref(self, value: Size) -> int:
        return self.table.setdefault(value, len(self.table))

    def refs(self, values: Sequence[Size]) -> list[int]:
        return [self.ref(value) for value in values]

    def tensor(
        self,
        where: int,
        sizes: Sequence[Size],
        dtype: torch.dtype = torch.float32,
        strides: Sequence[Size] | None = None,
        offset: Size = 0,
    ) -> int:
        if strides is None:
            strides = [math.prod(int(s) for s in sizes[i + 1 :]) for i in range(len(sizes))]
        return self.builder.tensor(where, dtype, self.refs(sizes), self.refs(strides), self.ref(offset))

    def like(self, where: int, tensor: torch.Tensor) -> int:
        return self.tensor(where, tensor.shape, tensor.dtype, tensor.stride())

    def output(self, sizes: Sequence[int], dtype: torch.dtype = torch.float32) -> int:
        """A contiguous tensor in a fresh block of its own."""
        return self.tensor(self.builder.output(self.ref(math.prod(sizes) * dtype.itemsize)), sizes, dtype)

    def temporary(self, sizes: Sequence[int], dtype: torch.dtype = torch.float32) -> int:
        """A contiguous tensor in a part of the arena of its own."""
        place = self.builder.arena(self.ref(self._arena))
        self._arena += (math.prod(sizes) * dtype.itemsize + 63) // 64 * 64
        return self.tensor(place, sizes, dtype)

    def call(
        self, op: str, args: Sequence[Any], results: Sequence[int | None] = (), label: str = "", **kwargs: Any
    ) -> None:
        """Calls `op` ("add.Tensor") of aten; integers that are tensors of the program are `t(number)`."""
        name, _, overload = op.partition(".")
        self.builder.call(f"aten::{name}", overload, list(args), kwargs, list(results), label)

    def bind(self, outputs: Sequence[tuple[str, int] | int | None], **sizes: int) -> _C.Binding:
        """Plain numbers among `outputs` are tensors."""
        described = [("tensor", out) if isinstance(out, int) else out for out in outputs]
        return self.bind_program(self.builder.build(described), **sizes)

    def bind_program(self, program: _C.Program, **sizes: int) -> _C.Binding:
        return program.bind([sizes[key] if isinstance(key, str) else key for key in self.table])


def on_device(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [tensor.to("neuron") for tensor in tensors]


def t(tensor: int) -> tuple[str, int]:
    return ("tensor", tensor)


KERNEL = ctypes.CFUNCTYPE(
    None,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_int64),
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_int64,
)


def address_of(function: Any) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address
    return address
