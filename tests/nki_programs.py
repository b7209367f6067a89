"""Programs for the simulated core, put together by hand: no part of nki.isa or nki.language is in the way."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from nki import _engines
from nki.element_types import TYPES, DType, of
from nki.instruction import Instruction
from nki.storage import Storage
from nki.tensor import Dynamic, NkiTensor
from nki.trace import Register, Trace

ENGINES = {"dma": "dma", "mat": "tensor", "reg": "sync", "loo": "sync", "whi": "sync", "bar": "sync"}


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(shape[d + 1 :]) for d in range(len(shape)))


def view(
    whole: NkiTensor,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None = None,
    offset: int = 0,
    dtype: str | None = None,
    dynamic: Dynamic | None = None,
) -> NkiTensor:
    """A view of the storage of `whole`."""
    kind = whole.dtype if dtype is None else TYPES[dtype]
    return NkiTensor(whole.storage, kind, shape, strides or contiguous(shape), offset, dynamic)


def columns(whole: NkiTensor, start: int, stop: int, step: int = 1) -> NkiTensor:
    """whole[:, start:stop:step]"""
    shape = (whole.shape[0], len(range(start, stop, step)))
    return view(whole, shape, (whole.strides[0], step * whole.strides[1]), whole.offset + start * whole.strides[1])


def rows(whole: NkiTensor, start: int, stop: int) -> NkiTensor:
    return view(whole, (stop - start, *whole.shape[1:]), whole.strides, whole.offset + start * whole.strides[0])


class ProgramBuilder:
    """Storages and instructions of one program, and the arrays that its tensors in HBM are."""

    def __init__(self) -> None:
        self.trace = Trace("trn2")
        self.arrays: dict[int, np.ndarray[Any, Any]] = {}

    def _storage(self, region: str, shape: tuple[int, ...], dtype: Any, **more: Any) -> NkiTensor:
        kind: DType = of(dtype) if not isinstance(dtype, str) else TYPES[dtype]
        storage = Storage(len(self.trace.storages), region, shape, kind, **more)
        self.trace.storages.append(storage)
        return NkiTensor(storage, kind, shape, contiguous(shape))

    def sbuf(self, *shape: int, dtype: Any = "float32", **more: Any) -> NkiTensor:
        return self._storage("sbuf", shape, dtype, **more)

    def psum(self, *shape: int, dtype: Any = "float32", **more: Any) -> NkiTensor:
        return self._storage("psum", shape, dtype, **more)

    def scratch(self, *shape: int, dtype: Any = "float32") -> NkiTensor:
        return self._storage("private_hbm", shape, dtype)

    def given(self, array: np.ndarray[Any, Any], dtype: str | None = None) -> NkiTensor:
        """An argument; the array itself is its memory."""
        tensor = self._storage("shared_hbm", array.shape, dtype or array.dtype, role="argument")
        self.arrays[tensor.storage.number] = array
        return tensor

    def output(self, *shape: int, dtype: Any = "float32") -> NkiTensor:
        tensor = self._storage("shared_hbm", shape, dtype, role="output")
        self.arrays[tensor.storage.number] = np.zeros(shape, tensor.dtype.numpy)
        return tensor

    def register(self) -> Register:
        return Register(self.trace)

    def emit(self, op: str, out: Any, args: Any, *attrs: Any, engine: str | None = None) -> Instruction:
        out = out if isinstance(out, tuple) else (out,)
        args = args if isinstance(args, tuple) else (args,)
        place = ("test", len(self.trace.instructions), "")
        return self.trace.add(Instruction(op, engine or ENGINES.get(op[:3], "vector"), out, args, attrs, place))

    def copy(self, out: NkiTensor, src: NkiTensor, skip: bool = False) -> Instruction:
        return self.emit("dma_copy", out, src, skip)

    def stored(self, tensor: NkiTensor) -> NkiTensor:
        """An output that gets all of `tensor`."""
        out = self.output(*tensor.shape, dtype=tensor.dtype)
        self.copy(out, tensor)
        return out

    def program(self, precise: bool = True) -> _engines.Program:
        return _engines.Program(self.trace.instructions, self.trace.storages, self.trace.registers, precise)

    def addresses(self) -> list[int]:
        in_hbm = [s.number for s in self.trace.storages if not s.on_chip]
        return [self.arrays[number].ctypes.data if number in self.arrays else 0 for number in in_hbm]

    def array(self, tensor: NkiTensor) -> np.ndarray[Any, Any]:
        return self.arrays[tensor.storage.number]

    def run(self, **more: Any) -> None:
        run_together(self, **more)


def run_together(*builders: ProgramBuilder, precise: bool = True, **more: Any) -> None:
    _engines.run([b.program(precise) for b in builders], [b.addresses() for b in builders], **more)
