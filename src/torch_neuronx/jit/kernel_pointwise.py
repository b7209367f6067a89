"""Kernels without reductions: which loops there are, and what is done in which of them.

An operand that lies along another dimension than the innermost one, a transposed matrix say, is read in square tiles:
each is copied to the stack by rows of memory, and taken from there by columns. So every line of the cache is loaded
once, however the strides divide the cache.
"""

from __future__ import annotations

from collections import Counter

from .kernel import Int, Kernel
from .kernel_loops import Function
from .kernel_passes import passes
from .kernel_values import Place
from .values import MEMORY_TYPES, SIZES

__all__ = ["POINTWISE_BLOCK", "TILE", "Pointwise"]

POINTWISE_BLOCK = 8192
TILE = 32

# See :mod:`.codegen` for why.
_MAX_INTERLEAVE_FLAT, _MAX_INTERLEAVE_NESTED = 4, 2


class Pointwise(Function):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        ((self.all,), _) = passes(kernel)
        self.last = len(kernel.sizes) - 1
        self.inner = [place for place in self.all.body if self.last in self.varies[place]]
        self.operands = self.operands_of(self.all.body, self.all.stores)
        self.turned_dim, self.turned = self._turned()
        # Sizes that make units whole, and those that make them in blocks.
        self.outer = [dim for dim in range(self.last) if dim != self.turned_dim]
        self.blocked: list[tuple[Int, int]] = []
        if self.turned:
            self.blocked.append((kernel.sizes[self.turned_dim], TILE))
        if self.last > 0:
            self.blocked.append((kernel.sizes[self.last], POINTWISE_BLOCK))

    def _turned(self) -> tuple[int, list[int]]:
        """The dimension, not the last one, along which most operands lie, and these; -1 for none."""
        stored = {self.base[self.kernel.code[place].operand] for place in self.all.stores}
        loaded = {i.operand for i in self.kernel.code if i.op == "load"}
        found: dict[int, int] = {}
        for k in sorted(loaded):
            strides = self.kernel.operands[self.base[k]].strides
            if self.base[k] in stored or strides[self.last] in (0, 1) or 1 not in strides:
                continue
            dim = strides.index(1)
            if all(not isinstance(size := self.kernel.sizes[d], int) or size >= TILE // 2 for d in (dim, self.last)):
                found[k] = dim
        if not found:
            return -1, []
        dim = Counter(found.values()).most_common(1)[0][0]
        return dim, [k for k, d in found.items() if d == dim and self.base[k] == k]

    def work(self, at: Place) -> None:
        for place in self.all.body:
            if not self.varies[place]:
                self.instruction(place, at)
        if self.last == 0:
            self._innermost(at, "%begin", "%end", _MAX_INTERLEAVE_FLAT)
            return
        buffers = {k: self._buffer(k) for k in self.turned}

        def unit(indices: list[str]) -> None:
            here = at.copy()
            for dim, index in zip(self.outer, indices, strict=False):
                self.enter(here, dim, index, self.operands)
            indices = indices[len(self.outer) :]
            if self.turned:
                first, end = self.block(self.kernel.sizes[self.turned_dim], indices[:1], TILE)
                self._tiles(here, buffers, first, end, *self.block(self.kernel.sizes[-1], indices[1:], POINTWISE_BLOCK))
                return
            self._between(here, self.outer)
            self._innermost(here, *self.block(self.kernel.sizes[-1], indices, POINTWISE_BLOCK), _MAX_INTERLEAVE_NESTED)

        sizes = [self.number(self.kernel.sizes[dim]) for dim in self.outer]
        if self.turned:
            sizes += self.blocks(self.kernel.sizes[self.turned_dim], TILE) or ["1"]
        self.over_units([*sizes, *self.blocks(self.kernel.sizes[-1], POINTWISE_BLOCK)], unit)

    def _between(self, at: Place, dims: list[int]) -> None:
        """What varies along `dims`, and may vary along those before, but not along the last dimension."""
        for place in self.all.body:
            if place not in at.values and self.varies[place] <= {*dims, *self.outer}:
                self.instruction(place, at)

    def _innermost(self, at: Place, start: str, end: str, interleave: int) -> None:
        loop = self.begin_loop(start, end)
        self.enter(at, self.last, loop.index, self.operands)
        self._element(at)
        self.end_loop(loop, hints=self.hints(self.inner, interleave))

    def _element(self, at: Place) -> None:
        for place in self.inner:
            self.instruction(place, at)
        for place in self.all.stores:
            self.store(place, at)

    # -- Tiles --------------------------------------------------------------------------------------------------------

    def _buffer(self, operand: int) -> str:
        name = f"%tile{operand}"
        type_ = MEMORY_TYPES[self.kernel.operands[operand].dtype]
        self.stack.append(f"  {name} = alloca [{TILE * TILE} x {type_}], align 64")
        return name

    def _tiles(self, at: Place, buffers: dict[int, str], first: str, end: str, start: str, stop: str) -> None:
        """[first, end) of the turned dimension, at most a tile, by [start, stop) of the last one."""
        straight = [k for k in self.operands if self.base[k] not in buffers]
        self._between(at, [])
        height = self.difference(end, first)
        tiles = self.begin_loop(start, stop, step=TILE)
        size = self.kernel.sizes[-1]
        width = str(TILE)
        if not isinstance(size, int) or size % TILE:
            width = self.int_operation("min", "i64", [self.difference(stop, tiles.index), width])
        for k, buffer in buffers.items():
            self._copy(k, buffer, at.addresses[k], first, height, tiles.index, width)
        rows = self.begin_loop("0", height)
        row = at.copy()
        self.enter(row, self.turned_dim, self.total(first, rows.index), straight)
        self._between(row, [self.turned_dim])
        columns = self.begin_loop("0", width)
        self.enter(row, self.last, self.total(tiles.index, columns.index), straight)
        for k in self.operands:
            if self.base[k] in buffers:
                place = self.total(self.product(columns.index, str(TILE)), rows.index)
                type_ = MEMORY_TYPES[self.kernel.operands[k].dtype]
                buffer = buffers[self.base[k]]
                row.addresses[k] = self.emit(f"getelementptr inbounds {type_}, ptr {buffer}, i64 {place}")
        self._element(row)
        self.end_loop(columns, hints=self.hints(self.inner, _MAX_INTERLEAVE_NESTED))
        self.end_loop(rows)
        self.end_loop(tiles)

    def _copy(self, k: int, buffer: str, address: str, first: str, height: str, start: str, width: str) -> None:
        """A tile of an operand to its buffer; both have the operand's scope, which later loads name."""
        type_ = MEMORY_TYPES[self.kernel.operands[k].dtype]
        scopes = self.operand_scopes(k)
        lines = self.begin_loop("0", width)
        stride = self.number(self.kernel.operands[k].strides[self.last])
        source = self.moved(k, self.moved(k, address, first, "1"), self.total(start, lines.index), stride)
        line = self.product(lines.index, str(TILE))
        elements = self.begin_loop("0", height)
        value = self.emit(
            f"load {type_}, ptr {self.moved(k, source, elements.index, '1')}, align {SIZES[type_]}, {scopes}"
        )
        place = self.total(line, elements.index)
        target = self.emit(f"getelementptr inbounds {type_}, ptr {buffer}, i64 {place}")
        self.lines.append(f"  store {type_} {value}, ptr {target}, align {SIZES[type_]}, {scopes}")
        self.end_loop(elements)
        self.end_loop(lines)
