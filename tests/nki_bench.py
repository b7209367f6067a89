"""A bench for single instructions: tiles are loaded, instructions written down by hand and run, results stored."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from nki import _engines
from nki.element_types import DType, of
from nki.instruction import Instruction
from nki.storage import Storage
from nki.tensor import NkiTensor

_LINE = ("bench", 1, "bench")


def view(tile: NkiTensor, shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0) -> NkiTensor:
    """Other elements of the storage of `tile`, in elements of its type."""
    return NkiTensor(tile.storage, tile.dtype, shape, strides, offset)


def free_slice(tile: NkiTensor, start: int, stop: int, step: int = 1) -> NkiTensor:
    """Elements [start, stop) of a tile of two dimensions."""
    rows, row = tile.shape[0], tile.strides[0]
    return view(tile, (rows, -(-(stop - start) // step)), (row, step), tile.offset + start)


class Bench:
    """One program under construction."""

    def __init__(self) -> None:
        self._storages: list[Storage] = []
        self._instructions: list[Instruction] = []
        self._addresses: list[int] = []
        self._alive: list[Any] = []

    def _allocate(self, region: str, shape: tuple[int, ...], dtype: DType) -> NkiTensor:
        storage = Storage(len(self._storages), region, shape, dtype, line=_LINE)
        self._storages.append(storage)
        self._addresses.append(0)
        strides = tuple(prod(shape[i + 1 :]) for i in range(len(shape)))
        return NkiTensor(storage, dtype, shape, strides)

    def tile(self, shape: tuple[int, ...], dtype: Any = "float32", region: str = "sbuf") -> NkiTensor:
        """A tile of which nothing has been written."""
        return self._allocate(region, shape, of(dtype))

    def load(self, array: Any, dtype: Any = None) -> NkiTensor:
        """A tile with the elements of `array`."""
        array = np.ascontiguousarray(array if dtype is None else np.asarray(array).astype(of(dtype).numpy))
        kind = of(array.dtype if dtype is None else dtype)
        source, tile = self._allocate("shared_hbm", array.shape, kind), self.tile(array.shape, kind)
        self._addresses[source.storage.number] = array.ctypes.data
        self._alive.append(array)
        self.emit("dma_copy", (tile,), (source,), (False,), engine="dma")
        return tile

    def emit(self, op: str, out: tuple[Any, ...], args: tuple[Any, ...], attrs: tuple[Any, ...] = (),
             engine: str = "vector") -> None:  # fmt: skip
        instruction = Instruction(op, engine, out, args, attrs, _LINE)
        instruction.index = len(self._instructions)
        self._instructions.append(instruction)

    def run(self, *tiles: NkiTensor, repeat: int = 1) -> Any:
        """The elements of `tiles` at the end: one array, or a list of them."""
        results = []
        for tile in tiles:
            result = np.zeros(tile.shape, tile.dtype.numpy)
            target = self._allocate("shared_hbm", tile.shape, tile.dtype)
            self._addresses[target.storage.number] = result.ctypes.data
            self.emit("dma_copy", (target,), (tile,), (False,), engine="dma")
            results.append(result)
        program = _engines.Program(self._instructions, self._storages, 0, True)
        for _ in range(repeat):
            in_hbm = [a for a, s in zip(self._addresses, self._storages, strict=True) if not s.on_chip]
            _engines.run([program], [in_hbm])
        return results[0] if len(results) == 1 else results
