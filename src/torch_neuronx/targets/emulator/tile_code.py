"""From the graphs of score_mod, mask_mod and their gradient to kernels for a tile of scores.

What the graphs say about one score, the kernel does for a tile: it has two dimensions, queries and keys; where the tile
lies comes in its first integers; captured tensors are gathered from. See TileCode in csrc/engines/flex_attention.h.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule, Node

from torch_neuronx.jit.kernel import Instruction, Kernel, Operand, Variable
from torch_neuronx.jit.stage import Dtype, Lane
from torch_neuronx.targets import graph as g
from torch_neuronx.targets.graph import Size

from .elements import DTYPES, ELEMENTS, Value, is_element, lane
from .instructions import InstructionWriter

__all__ = ["TileKernel", "TileWriter", "UnsupportedError"]

aten = torch.ops.aten

# The first integers of a call.
_POSITIONS = ("batch", "head", "first query", "first key", "rows", "columns", "width")
_SCORES, _GRADIENTS, _RESULT = range(3)
_NEW: dict[Any, Any] = {
    aten.new_ones.default: 1,
    aten.new_zeros.default: 0,
    aten.new_full.default: None,
    aten.lift_fresh_copy.default: None,
}


class UnsupportedError(Exception):
    """A graph that tiles cannot do; say why."""


@dataclass(frozen=True)
class TileKernel:
    """`captured` stand behind the operands after the first three, `ints` behind the variables after the positions."""

    kernel: Kernel
    captured: tuple[Node, ...]
    ints: tuple[Size, ...]


@dataclass(frozen=True)
class _Captured:
    """A tensor from outside, or what is left of it after some indices."""

    tensor: Node
    offset: Value | None = None
    indexed: int = 0  # dimensions, from the first one on


class TileWriter(InstructionWriter):
    """Writes one kernel. `sizes`: how many batches, heads, queries and keys there are."""

    def __init__(self, sizes: Sequence[Size]) -> None:
        super().__init__()
        self._ints = list(_POSITIONS)
        self._tensors: list[Node] = []
        # A position is an int32 in the graphs. As an index it is taken as it was before that, so that LLVM sees that
        # neighbours lie next to each other; and it needs no check where the dimension is long enough.
        self._raw: dict[int, tuple[Value, Size]] = {}
        first = [self._emit(Instruction("constant", Lane.I64, constant=Variable(k)), torch.int64) for k in range(4)]
        inside = [self._emit(Instruction("index", Lane.I64, dim=k), torch.int64) for k in range(2)]
        raw = [*first[:2], *(self.op("add", [a, b], torch.int64) for a, b in zip(first[2:], inside, strict=True))]
        self.positions: list[Value] = []
        for value, size in zip(raw, sizes, strict=True):
            position = self.convert(value, torch.int32)
            self._raw[position.place] = (value, size)
            self.positions.append(position)

    # -- Tiles ---------------------------------------------------------------------------------------------------------
    def scores(self, dtype: torch.dtype) -> Value:
        """The scores, which the graph takes for values of `dtype`."""
        return Value(self._emit(Instruction("load", Lane.F32, operand=_SCORES), torch.float32).place, dtype)

    def gradients(self, dtype: torch.dtype) -> Value:
        """The gradients of changed scores."""
        return Value(self._emit(Instruction("load", Lane.F32, operand=_GRADIENTS), torch.float32).place, dtype)

    def masked(self, mask: Value, value: Value, other: float) -> Value:
        """`value`, or a number where the mask is false."""
        value = self.convert(value, torch.float32)
        return self.op(
            "select", [self.convert(mask, torch.bool), value, self.constant(other, torch.float32)], torch.float32
        )

    def is_true(self, mask: Value) -> bool:
        """Whether a mask leaves everything."""
        instruction = self._code[mask.place]
        return instruction.op == "constant" and instruction.constant is True

    def is_unchanged(self, value: Value, gradient: bool) -> bool:
        """Whether a value is the score, or the gradient, that came in."""
        instruction = self._code[value.place]
        return instruction.op == "load" and instruction.operand == (_GRADIENTS if gradient else _SCORES)

    def finished(self, value: Value) -> TileKernel:
        """The kernel that stores `value`."""
        value = self.convert(value, torch.float32)
        tile = Operand(Dtype.F32, (Variable(_POSITIONS.index("width")), 1))
        captured = [Operand(DTYPES[g.value(tensor).dtype], (0, 0)) for tensor in self._tensors]
        code = (*self._code, Instruction("store", Lane.F32, (value.place,), operand=_RESULT))
        sizes = (Variable(_POSITIONS.index("rows")), Variable(_POSITIONS.index("columns")))
        kernel = Kernel(sizes, (tile, tile, tile, *captured), code)
        return TileKernel(kernel, tuple(self._tensors), tuple(self._ints[len(_POSITIONS) :]))

    # -- Graphs --------------------------------------------------------------------------------------------------------
    def run(self, module: GraphModule, arguments: Sequence[Any]) -> Any:
        """What a graph gives for these arguments: values, and nodes of the graph around it for captured tensors.

        Raises:
            UnsupportedError: it does something that tiles cannot do.
        """
        given = iter([_Captured(a) if g.is_tensor(a) else g.value(a) if isinstance(a, Node) else a for a in arguments])
        values: dict[Node, Any] = {}
        for node in module.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(given)
            elif node.op == "get_attr":
                values[node] = self._attribute(module, node)
            elif node.op == "call_function":
                values[node] = self._call(node, values)
            else:
                results = torch.fx.node.map_arg(node.args[0], lambda n: self._value(values[n]))
                return results if isinstance(results, (list, tuple)) else [results]
        raise UnsupportedError("a graph without results")

    def _attribute(self, module: GraphModule, node: Node) -> Any:
        constant = getattr(module, str(node.target), None)
        if not isinstance(constant, torch.Tensor) or constant.ndim or constant.dtype not in DTYPES:
            raise UnsupportedError(f"the constant {node.target}")
        with unset_fake_temporarily():
            return self.constant(constant.item(), constant.dtype)

    def _call(self, node: Node, values: dict[Node, Any]) -> Any:
        if g.is_number(node):
            return g.value(node)
        if not g.is_tensor(node):
            raise UnsupportedError(f"{node.target}")
        if node.target is aten.index.Tensor:
            return self._indexed(values[node.args[0]], [values[n] for n in node.args[1]])  # type: ignore[index, union-attr]
        if node.target is aten.select.int and node.args[1] == 0:
            return self._indexed(values[node.args[0]], [node.args[2]])  # type: ignore[index]
        if g.value(node).ndim:
            raise UnsupportedError(f"{node.target} with more than one element")
        if node.target in _NEW:
            return self._new(node, values)
        if g.is_virtual_view(node):
            return self._value(values[node.args[0]])  # type: ignore[index]
        if not is_element(node):
            raise UnsupportedError(f"{node.target}")
        args = [self._value(values[a]) if isinstance(a, Node) else a for a in node.args]
        return ELEMENTS[node.target](self, node, args)

    def _new(self, node: Node, values: dict[Node, Any]) -> Any:
        if node.target is aten.lift_fresh_copy.default:
            return self._value(values[node.args[0]])  # type: ignore[index]
        number = _NEW[node.target]
        return self.constant(node.args[2] if number is None else number, g.value(node).dtype)

    # -- Captured tensors ----------------------------------------------------------------------------------------------
    def _indexed(self, captured: Any, indices: Sequence[Any]) -> _Captured:
        if not isinstance(captured, _Captured):
            raise UnsupportedError("an index into something computed")
        sizes, strides = g.sizes(captured.tensor), g.strides(captured.tensor)
        offset = captured.offset
        for dim, index in enumerate(indices, start=captured.indexed):
            index = self._value(index)
            if isinstance(index, int):
                index = self.constant(index, torch.int64)
            if not isinstance(index, Value) or index.dtype.is_floating_point or index.dtype == torch.bool:
                raise UnsupportedError("an index that is no integer")
            if sizes[dim] == 0:
                raise UnsupportedError("an index into nothing")
            place = self.op("mul", [self._inside(index, sizes[dim]), self.constant_size(strides[dim])], torch.int64)
            offset = place if offset is None else self.op("add", [offset, place], torch.int64)
        return replace(captured, offset=offset, indexed=captured.indexed + len(indices))

    def _inside(self, index: Value, size: Size) -> Value:
        """An index counted from the front. What is beyond the tensor, an error on the CPU, becomes its last element."""
        if index.place in self._raw:
            index, positions = self._raw[index.place]
            if isinstance(size, int) and isinstance(positions, int) and positions <= size:
                return index
        index = self.convert(index, torch.int64)
        zero, length = self.constant(0, torch.int64), self.constant_size(size)
        from_end = self.op("add", [index, length], torch.int64)
        index = self.op("select", [self.op("lt", [index, zero], torch.bool), from_end, index], torch.int64)
        last = self.op("sub", [length, self.constant(1, torch.int64)], torch.int64)
        return self.op("max", [self.op("min", [index, last], torch.int64), zero], torch.int64)

    def _value(self, value: Any) -> Any:
        """An argument of a rule: captured tensors with one element left are read."""
        if not isinstance(value, _Captured):
            return value
        tensor = g.value(value.tensor)
        if value.indexed != tensor.ndim:
            raise UnsupportedError("a captured tensor with more than one element")
        if tensor.dtype not in DTYPES or tensor.device.type != "neuron":
            raise UnsupportedError(f"a captured tensor of {tensor.dtype} on {tensor.device}")
        if value.tensor not in self._tensors:
            self._tensors.append(value.tensor)
        offset = value.offset or self.constant(0, torch.int64)
        operand = len((_SCORES, _GRADIENTS, _RESULT)) + self._tensors.index(value.tensor)
        return self._emit(Instruction("gather", lane(tensor.dtype), (offset.place,), operand=operand), tensor.dtype)

    def index(self, size_of: Node) -> Value:
        raise UnsupportedError(f"{size_of.target}")
