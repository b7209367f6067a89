"""From a region to the kernel that computes it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from torch_neuronx.jit.kernel import Instruction, Kernel, Operand
from torch_neuronx.jit.stage import Lane
from torch_neuronx.targets import graph as g
from torch_neuronx.targets.graph import Size

from .elements import DTYPES, ELEMENTS, SOURCES, Value, is_element, lane
from .instructions import NARROW, InstructionWriter
from .reductions import REDUCTIONS, is_reduction
from .regions import Region, Units, operand_layout
from .space import Axis, Layout, MismatchError, product

__all__ = ["WrittenKernel", "pull", "write_kernel"]

aten = torch.ops.aten

# Work of an instruction in loads or additions, for the choice of a grain.
_COSTLY = frozenset(
    {
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log10",
        "log1p",
        "sin",
        "cos",
        "tan",
        "tanh",
        "erf",
        "erfc",
        "sigmoid",
        "pow",
        "gather",
    }
)
# For comparing strides that are expressions.
_TYPICAL = 97


@dataclass(frozen=True)
class WrittenKernel:
    """`tensors` stand behind the operands of `kernel`, `ints` behind its variables. The last `stored` tensors are
    results."""

    kernel: Kernel
    tensors: tuple[Node, ...]
    stored: int
    ints: tuple[Size, ...]
    work: float  # of one element of the whole space


def write_kernel(units: Units, region: Region, stored: Sequence[Node]) -> WrittenKernel:
    """The kernel of a region that leaves the values of `stored` in memory."""
    # Views of sources may split loops while they are written; the second time all loops are known.
    _Writer(units, region, stored).write()
    return _Writer(units, region, stored).write()


def pull(view: Node, layout: Layout, units: Units) -> Layout:
    """The layout of a view's operand, given that of the view.

    Raises:
        MismatchError: an element of the operand has no place in the loops.
    """
    operand = view.args[0]
    assert isinstance(operand, Node)
    sizes = g.sizes(operand)
    if view.target in (aten.permute.default, aten.transpose.int, aten.t.default):
        names: Layout = tuple((Axis(k),) for k in range(len(layout)))
        order = [axes[0].size for axes in units.through_view(view, names)]
        result: list[tuple[Axis, ...]] = [()] * len(layout)
        for d, source in enumerate(order):
            result[source] = layout[d]
        return tuple(result)
    if view.target is aten.expand.default:
        return operand_layout(operand, layout)
    if g.is_virtual_view(view):
        return units.spaces.reshape(layout, sizes)
    raise MismatchError("not only other names of loops")


@dataclass(frozen=True)
class _Access:
    """A tensor and the axes of its dimensions."""

    tensor: Node
    layout: Layout


class _Writer(InstructionWriter):
    """See :class:`.elements.Writer` and :class:`.reductions.RowWriter`."""

    def __init__(self, units: Units, region: Region, stored: Sequence[Node]) -> None:
        super().__init__()
        self._units, self._region, self._stored = units, region, stored
        self._spaces = units.spaces
        self._axes: list[Axis | None] = []  # of `index` instructions
        self._accesses: list[_Access] = []
        self._values: dict[Node, Value] = {}

    def write(self) -> WrittenKernel:
        """Everything, in the order of the graph."""
        members = set(self._region.nodes)
        for node in sorted(members, key=self._place):
            if node.target in REDUCTIONS and is_reduction(node):
                self._reduction(node)
            elif is_element(node):
                self._values[node] = self._element(node)
        loads = len(self._accesses)
        for node in self._stored:
            self._store(node)
        return self._finished(len(self._accesses) - loads)

    def _place(self, node: Node) -> int:
        return self._units.place(node)

    # -- Nodes ---------------------------------------------------------------------------------------------------------
    def _element(self, node: Node) -> Value:
        layout = self._units.layouts[node]
        first = 1 if node.target in (aten.copy_.default, aten.copy.default) else 0
        args = [None] * first + [self._argument(a, layout) for a in node.args[first:]]
        self._source_layout = layout
        return ELEMENTS[node.target](self, node, args)

    def _argument(self, argument: Any, layout: Layout) -> Any:
        if not isinstance(argument, Node):
            return argument
        if g.is_number(argument):
            return g.value(argument)
        return self._operand(argument, operand_layout(argument, layout))

    def _operand(self, operand: Node, layout: Layout) -> Value:
        source = g.made_as(operand)
        if source in self._values:
            return self._values[source]
        if source.target in SOURCES and is_element(source):
            try:
                return self._source(operand, layout)
            except MismatchError:
                pass  # it has memory of its own then: see `needs_memory` of the builder
        return self._load(operand, layout)

    def _source(self, operand: Node, layout: Layout) -> Value:
        while g.is_view(operand):
            layout = pull(operand, layout, self._units)
            operand = operand.args[0]  # type: ignore[assignment]
        self._source_layout = layout
        args = [g.value(a) if isinstance(a, Node) else a for a in operand.args]
        return ELEMENTS[operand.target](self, operand, args)

    def _reduction(self, node: Node) -> None:
        operand = node.args[0]
        assert isinstance(operand, Node)
        layout = self._units.operand_layouts[node]
        results = REDUCTIONS[node.target].write(self, node, self._operand(operand, layout))
        if len(results) == 1:
            self._values[node] = results[0]
            return
        for user in node.users:
            self._values[user] = results[user.args[1]]  # type: ignore[index]

    # -- Instructions --------------------------------------------------------------------------------------------------
    def _append(self, instruction: Instruction, key: Any) -> None:
        super()._append(instruction, key)
        self._axes.append(key[1] if instruction.op == "index" else None)

    def index(self, size_of: Node) -> Value:
        (axes,) = self._source_layout or ((),)
        value = self.constant(0, torch.int64)
        for k, axis in enumerate(self._spaces.resolve(axes)):
            own = self._emit(Instruction("index", Lane.I64, dim=0), torch.int64, key=axis)
            if k:
                value = self.op(
                    "add", [self.op("mul", [value, self.constant_size(axis.size)], torch.int64), own], torch.int64
                )
            else:
                value = own
        return value

    def reduce(self, name: str, value: Value, dtype: torch.dtype) -> Value:
        if value.dtype == torch.bool:
            name = {"max": "any", "min": "all"}.get(name, name)
        source = lane(value.dtype) if lane(value.dtype) != lane(dtype) else None
        result = self._emit(Instruction(f"reduce_{name}", lane(dtype), (value.place,), source=source), dtype)
        return self.rounded(result) if dtype in NARROW and name in ("sum", "prod") else result

    def count(self, dtype: torch.dtype) -> Value:
        size = product(axis.size for axis in self._spaces.resolve(self._region.reduced))
        return (
            self.convert(self.constant_size(size), dtype) if not isinstance(size, int) else self.constant(size, dtype)
        )

    # -- Memory --------------------------------------------------------------------------------------------------------
    def _load(self, tensor: Node, layout: Layout) -> Value:
        dtype = g.value(tensor).dtype
        access = _Access(tensor, self._spaces.layout(layout))
        if access not in self._accesses:
            self._accesses.append(access)
        return self._emit(Instruction("load", lane(dtype), operand=self._accesses.index(access)), dtype)

    def _store(self, node: Node) -> None:
        value = self._values[node]
        dtype = g.value(node).dtype
        value = self.convert(value, dtype)
        self._accesses.append(_Access(node, self._spaces.layout(self._units.layouts[node])))
        self._code.append(Instruction("store", lane(dtype), (value.place,), operand=len(self._accesses) - 1))
        self._axes.append(None)

    # -- Loops ---------------------------------------------------------------------------------------------------------
    def _finished(self, stored: int) -> WrittenKernel:
        full = self._spaces.resolve(self._region.full)
        reduced = set(self._spaces.resolve(self._region.reduced))
        strides = [self._strides(access) for access in self._accesses]
        order = self._order(full, strides, stored)
        kept = [axis for axis in order if axis not in reduced]
        inner = list(self._units.counted(self._region) or (axis for axis in order if axis in reduced))
        columns = self._region.columns and reduced
        segments = [kept[:-1], inner, kept[-1:]] if columns else [kept, inner]
        indexed = {axis for axis in self._axes if axis is not None}
        loops = [
            (number, group)
            for number, segment in enumerate(segments)
            for group in self._collapsed(segment, strides, indexed)
        ]
        if not loops:  # one element
            loops = [(0, [Axis(1)])]
        sizes = tuple(self._int(product(axis.size for axis in group)) for _, group in loops)
        operands = tuple(
            Operand(DTYPES[g.value(access.tensor).dtype], tuple(self._int(own.get(group[-1], 0)) for _, group in loops))
            for access, own in zip(self._accesses, strides, strict=True)
        )
        dims = {axis: k for k, (_, group) in enumerate(loops) for axis in group}
        code = tuple(
            Instruction("index", Lane.I64, dim=dims[axis]) if axis is not None else instruction
            for instruction, axis in zip(self._code, self._axes, strict=True)
        )
        work = sum(5.0 if i.op in _COSTLY else 1.0 if i.op in ("load", "store", "div", "sqrt") else 0.3 for i in code)
        return WrittenKernel(
            Kernel(sizes, operands, code, tuple(k for k, (number, _) in enumerate(loops) if reduced and number == 1)),
            tuple(access.tensor for access in self._accesses),
            stored,
            tuple(self._ints),
            work,
        )

    def _strides(self, access: _Access) -> dict[Axis, Size]:
        result: dict[Axis, Size] = {}
        for stride, axes in zip(g.strides(access.tensor), access.layout, strict=True):
            for axis in reversed(self._spaces.resolve(axes)):
                # A dimension may go along the same loop as another one: its diagonal.
                result[axis] = result.get(axis, 0) + stride
                stride = stride * axis.size
        return result

    def _order(self, full: tuple[Axis, ...], strides: list[dict[Axis, Size]], stored: int) -> list[Axis]:
        """Outermost first: as the results lie in memory, or what has most of the loops."""
        best = max(
            range(len(strides)),
            key=lambda k: (
                sum(_typical(strides[k].get(axis, 0)) != 0 for axis in full),
                k >= len(strides) - stored,
                -k,
            ),
        )
        return sorted(full, key=lambda axis: -_typical(strides[best].get(axis, 0)))

    @staticmethod
    def _collapsed(segment: list[Axis], strides: list[dict[Axis, Size]], indexed: set[Axis]) -> Iterable[list[Axis]]:
        """Groups of neighbours that are one loop for all operands."""
        groups: list[list[Axis]] = []
        for axis in segment:
            last = groups[-1][-1] if groups else None
            if (
                last is not None
                and last not in indexed
                and axis not in indexed
                and all(own.get(last, 0) == own.get(axis, 0) * axis.size for own in strides)
            ):
                groups[-1].append(axis)
            else:
                groups.append([axis])
        return groups


def _typical(size: Size) -> int:
    return size if isinstance(size, int) else int(size.subs(dict.fromkeys(size.free_symbols, _TYPICAL)))
