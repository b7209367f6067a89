"""Which ops share a kernel.

Nodes are taken in the order of the graph. A node that a kernel can compute joins the regions of its operands where
their loops are the same and no other unit stands between; else those that read the same tensor. A region has one space
of loops; its reductions all go over the same of them. Values per kept index may be used beside values of the whole
space, but for the column form, where the innermost loop is not reduced (see jit/kernel.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, Node

from torch_neuronx.targets import graph as g

from .elements import SOURCES, is_element
from .reductions import PLACES, along_columns, is_long, is_reduction, reduced_dims
from .space import Axis, Layout, MismatchError, Spaces, is_one

__all__ = ["Region", "Unit", "Units"]

aten = torch.ops.aten

# Instructions that LLVM handles well in one loop body, and registers' worth of addresses.
_MAX_NODES = 96
_MAX_OPERANDS = 40
# Regions tried that only read the same tensor.
_MAX_NEIGHBOURS = 2


@dataclass(eq=False)
class Unit:
    """What runs in one step: a call of an op, or a region."""

    nodes: list[Node]
    members: int = 0  # bits: places of its nodes in the graph
    needs: int = 0  # bits: places of all nodes that must have run before


@dataclass(eq=False)
class Region(Unit):
    """Nodes of one kernel."""

    full: tuple[Axis, ...] = ()  # the whole space
    reduced: tuple[Axis, ...] = ()
    columns: bool = False
    one_way: bool = False  # results of reductions cannot be used for the whole space again
    operands: dict[Node, Layout] = field(default_factory=dict)  # read from memory


class Units:
    """The units of a graph; :meth:`ordered` gives an order in which they can run."""

    def __init__(self, graph: Graph) -> None:
        self.spaces = Spaces()
        self.layouts: dict[Node, Layout] = {}  # of nodes in regions, and of views that only rename their loops
        self.operand_layouts: dict[Node, Layout] = {}  # of what reductions reduce
        self.unit_of: dict[Node, Unit] = {}
        self._units: list[Unit] = []
        self._place = {node: k for k, node in enumerate(graph.nodes)}
        self._touched: dict[Node, int] = {}  # bits: who has read or written an input's or a result's memory
        self._readers: dict[Node, list[Region]] = {}
        self._last_draw = 0  # bits: all ops so far that draw random numbers, each before the next
        for node in graph.nodes:
            self._take(node)

    def ordered(self) -> list[Unit]:
        """All units, each after those that it needs, otherwise as in the graph."""
        waiting = sorted(self._units, key=lambda unit: unit.members.bit_length())
        done, order = 0, []
        everything = 0
        for unit in waiting:
            everything |= unit.members
        while waiting:
            unit = next(unit for unit in waiting if not unit.needs & everything & ~done)
            waiting.remove(unit)
            done |= unit.members
            order.append(unit)
        return order

    def maker(self, node: Node) -> Unit | None:
        """The unit that makes what `node` is, or is a view of; None for inputs and sources."""
        return self.unit_of.get(g.made_as(node))

    def place(self, node: Node) -> int:
        """Its place in the graph."""
        return self._place[node]

    def is_kept(self, region: Region, node: Node) -> bool:
        """Whether the region has one value of this node for each kept index."""
        reduced = set(self.spaces.resolve(region.reduced))
        return not any(axis in reduced for axes in self.layouts[node] for axis in self.spaces.resolve(axes))

    def counted(self, region: Region) -> tuple[Axis, ...] | None:
        """The reduced loops, outermost first, as places are counted along them; None where nobody counts.

        Raises:
            MismatchError: two reductions count in another order.
        """
        order: tuple[Axis, ...] | None = None
        for node in region.nodes:
            if node.target in PLACES:
                layout = self.operand_layouts[node]
                own = self.spaces.resolve(axis for dim in reduced_dims(node) for axis in layout[dim])
                if order is not None and own != order:
                    raise MismatchError("places in another order")
                order = own
        return order

    # -- One node ------------------------------------------------------------------------------------------------------
    def _take(self, node: Node) -> None:
        if node.op != "call_function" or g.is_number(node):
            return
        if g.is_view(node):
            self._take_view(node)
        elif is_element(node):
            if node.target in SOURCES:
                return
            self._open(node, self.spaces.fresh(g.sizes(node)))
            self._join(node)
        elif is_reduction(node):
            self._open_reduction(node)
            self._join(node)
        elif g.is_call(node):
            self._add(Unit([node]), node)
        elif (unit := self.maker(node.args[0])) is not None:  # type: ignore[arg-type]
            self._take_item(node, unit)

    def _take_view(self, node: Node) -> None:
        operand = node.args[0]
        assert isinstance(operand, Node)
        if operand in self.layouts and g.is_virtual_view(node):
            mark = self.spaces.mark()
            try:
                self.layouts[node] = self.through_view(node, self.layouts[operand])
            except MismatchError:
                self.spaces.undo(mark)

    def through_view(self, node: Node, layout: Layout) -> Layout:
        """The layout of a view of what has `layout`.

        Raises:
            MismatchError: it is not only another name of the same loops.
        """
        target, operand = node.target, node.args[0]
        assert isinstance(operand, Node)
        order = list(range(len(layout)))
        if target is aten.permute.default:
            order = [int(d) % len(layout) for d in node.args[1]]  # type: ignore[union-attr, arg-type]
        elif target in (aten.transpose.int, aten.t.default):
            a, b = node.args[1:3] if target is aten.transpose.int else (0, -1)
            if layout:
                order[a], order[b] = order[b], order[a]  # type: ignore[index]
        elif target is aten.expand.default:
            if any(not is_one(new) for _, new in self._repeated(node)):
                raise MismatchError("the loop of a repeated dimension is its reader's")
            return ((),) * (len(g.sizes(node)) - len(layout)) + layout
        else:
            return self.spaces.reshape(layout, g.sizes(node))
        return tuple(layout[d] for d in order)

    @staticmethod
    def _repeated(node: Node) -> Iterator[tuple[int, Any]]:
        """Dimensions of an expanded view that its operand has not, or has with size 1; and their sizes."""
        new, old = g.sizes(node), g.sizes(node.args[0])  # type: ignore[arg-type]
        missing = len(new) - len(old)
        for d, size in enumerate(new):
            if d < missing or (is_one(old[d - missing]) and not is_one(size)):
                yield d, size

    def _take_item(self, node: Node, unit: Unit) -> None:
        unit.nodes.append(node)
        unit.members |= 1 << self._place[node]
        self.unit_of[node] = unit
        if isinstance(unit, Region):
            self.layouts[node] = self.layouts[node.args[0]]  # type: ignore[index]

    # -- New units -----------------------------------------------------------------------------------------------------
    def _open(self, node: Node, layout: Layout) -> None:
        region = Region([node], full=tuple(axis for axes in layout for axis in axes))
        self.layouts[node] = layout
        for operand in operand_nodes(node):
            region.operands[operand] = operand_layout(operand, layout)
        self._add(region, node)

    def _open_reduction(self, node: Node) -> None:
        operand, dims = node.args[0], reduced_dims(node)
        assert isinstance(operand, Node)
        layout = self.operand_layouts[node] = self.spaces.fresh(g.sizes(operand))
        value = g.value(node)
        keeps = (value[0] if isinstance(value, tuple) else value).ndim == len(layout)
        if keeps:
            self.layouts[node] = tuple(() if d in dims else axes for d, axes in enumerate(layout))
        else:
            self.layouts[node] = tuple(axes for d, axes in enumerate(layout) if d not in dims)
        region = Region(
            [node],
            full=tuple(axis for axes in layout for axis in axes),
            reduced=tuple(axis for d in dims for axis in layout[d]),
            columns=along_columns(node),
            one_way=along_columns(node) or is_long(node),
            operands={operand: layout},
        )
        self._add(region, node)

    def _add(self, unit: Unit, node: Node) -> None:
        unit.members = 1 << self._place[node]
        before = 0
        for operand in operand_nodes(node):
            if (maker := self.maker(operand)) is not None:
                unit.needs |= maker.members | maker.needs
            if is_written(node, operand):  # whoever has touched the memory came before
                before |= self._touched.get(g.base_of(operand), 0)
        if is_draw(node):
            before |= self._last_draw
            self._last_draw |= unit.members
        for other in self._units:
            if other.members & before:
                unit.needs |= other.members | other.needs
        for operand in operand_nodes(node):
            base = g.base_of(operand)
            self._touched[base] = self._touched.get(base, 0) | unit.members
        self._units.append(unit)
        self.unit_of[node] = unit

    # -- Merging -------------------------------------------------------------------------------------------------------
    def _join(self, node: Node) -> None:
        makers: list[Region] = []
        neighbours: list[Region] = []
        for operand in operand_nodes(node):
            maker = self.maker(operand)
            if isinstance(maker, Region):
                makers.append(maker)
            else:
                neighbours += reversed(self._readers.get(operand, []))
        makers.sort(key=lambda region: -region.members)
        for other in makers:
            self._try_merge(node, other, by_results=True)
        if all(self.unit_of[node] is not maker for maker in makers):
            for other in neighbours[:_MAX_NEIGHBOURS]:
                self._try_merge(node, other, by_results=False)
        region = self.unit_of[node]
        assert isinstance(region, Region)
        for operand in region.operands:
            readers = self._readers.setdefault(operand, [])
            if region not in readers:
                readers.append(region)

    def _try_merge(self, node: Node, other: Region, by_results: bool) -> None:
        region = self.unit_of[node]
        current = self.unit_of[other.nodes[0]]
        assert isinstance(region, Region)
        assert isinstance(current, Region)
        if region is current or not self._may_merge(region, current):
            return
        mark = self.spaces.mark()
        try:
            self._share_loops(region, current, by_results)
            merged = self._merged(region, current)
            self._check(merged)
        except MismatchError:
            self.spaces.undo(mark)
            return
        self._replace(region, current, merged)

    def _may_merge(self, a: Region, b: Region) -> bool:
        if len(a.nodes) + len(b.nodes) > _MAX_NODES or len(a.operands) + len(b.operands) > _MAX_OPERANDS:
            return False
        if not (a.needs & b.members or b.needs & a.members):
            return True
        both, needs = a.members | b.members, a.needs | b.needs
        return not any(
            unit.members & needs and unit.needs & both for unit in self._units if unit is not a and unit is not b
        )

    def _share_loops(self, a: Region, b: Region, by_results: bool) -> None:
        """Makes the loops the same with which one makes and the other reads a tensor, or with which both read one."""
        shared = 0
        for reader, maker in ((a, b), (b, a)):
            for operand, layout in reader.operands.items():
                if self.maker(operand) is maker:
                    self._same(layout, self._made(operand, layout))
                    shared += 1
                elif not by_results and reader is a and operand in b.operands:
                    self._same(layout, b.operands[operand])
                    shared += 1
        if not shared:
            raise MismatchError("nothing in common")

    def _made(self, operand: Node, layout: Layout) -> Layout:
        """How the unit that makes it lays out an operand that is read with `layout`."""
        if operand in self.layouts:
            return self.layouts[operand]
        source = operand.args[0] if operand.target is aten.expand.default else None
        if not isinstance(source, Node) or source not in self.layouts:
            raise MismatchError("not another name of the same loops")
        repeated = {d for d, _ in self._repeated(operand)}
        inner = self.layouts[source]
        inner = ((),) * (len(layout) - len(inner)) + inner
        return tuple(layout[d] if d in repeated else axes for d, axes in enumerate(inner))

    def _same(self, a: Layout, b: Layout) -> None:
        for x, y in zip(a, b, strict=True):
            self.spaces.unify(x, y)

    def _merged(self, a: Region, b: Region) -> Region:
        full_a, full_b = self.spaces.resolve(a.full), self.spaces.resolve(b.full)
        reduced_a, reduced_b = set(self.spaces.resolve(a.reduced)), set(self.spaces.resolve(b.reduced))
        set_a, set_b = set(full_a), set(full_b)
        if len(set_a) != len(full_a) or len(set_b) != len(full_b):
            raise MismatchError("two loops would become one")
        if set_a == set_b:
            if reduced_a and reduced_b and (reduced_a != reduced_b or a.columns != b.columns):
                raise MismatchError("reductions over other loops")
            full = full_b if len(b.nodes) >= len(a.nodes) else full_a
        elif reduced_b and not reduced_a and set_a == set_b - reduced_b:
            full = full_b
        elif reduced_a and not reduced_b and set_b == set_a - reduced_a:
            full = full_a
        else:
            raise MismatchError("other spaces")
        reduced = reduced_a or reduced_b
        return Region(
            b.nodes + a.nodes,
            members=a.members | b.members,
            needs=(a.needs | b.needs) & ~(a.members | b.members),
            full=full,
            reduced=tuple(axis for axis in full if axis in reduced),
            columns=a.columns if reduced_a else b.columns,
            one_way=a.one_way or b.one_way,
            operands={
                operand: layout
                for part in (b, a)
                for operand, layout in part.operands.items()
                if self.maker(operand) not in (a, b)
            },
        )

    def _check(self, region: Region) -> None:
        """What kernels cannot do, after all.

        Raises:
            MismatchError: say what.
        """
        members = set(region.nodes)
        self.counted(region)
        for node in region.nodes:
            if g.is_update(node):
                self._check_update(region, node)
            if not region.one_way:
                continue
            for operand in operand_nodes(node):
                source = g.made_as(operand)
                if source not in members or not self.is_kept(region, source):
                    continue
                if is_reduction(node) or not self.is_kept(region, node):
                    raise MismatchError("there is no way back to the whole space")

    def _check_update(self, region: Region, update: Node) -> None:
        """In place only where an element is read and written by the same turn of a loop, and not before others do."""
        target = update.args[0]
        assert isinstance(target, Node)
        base = g.base_of(target)
        wanted = self.spaces.layout(self.layouts[update])
        for node in region.nodes:
            for operand in operand_nodes(node):
                if g.base_of(operand) is not base or (node is update and operand is target):
                    continue
                same = (
                    not region.reduced
                    and not is_reduction(node)
                    and g.sizes(operand) == g.sizes(target)
                    and g.strides(operand) == g.strides(target)
                    and self.spaces.layout(operand_layout(operand, self.layouts[node])) == wanted
                )
                if not same:
                    raise MismatchError("reads other elements of what is updated")

    def _replace(self, a: Region, b: Region, merged: Region) -> None:
        self._units.remove(a)
        self._units[self._units.index(b)] = merged
        for node in merged.nodes:
            self.unit_of[node] = merged
        for unit in self._units:
            if unit is not merged and unit.needs & merged.members:
                unit.needs |= merged.members | merged.needs
        for readers in self._readers.values():
            if a in readers or b in readers:
                readers[:] = [r for r in readers if r is not a and r is not b] + [merged]


def is_draw(node: Node) -> bool:
    """Whether an op draws random numbers."""
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


def operand_nodes(node: Node) -> list[Node]:
    """Arguments that are tensors, or lists of them."""
    return [n for n in node.all_input_nodes if not g.is_number(n)]


def operand_layout(operand: Node, layout: Layout) -> Layout:
    """The layout of an operand that is broadcast to `layout`."""
    own = g.sizes(operand)
    aligned = layout[len(layout) - len(own) :]
    return tuple(() if is_one(size) else axes for size, axes in zip(own, aligned, strict=True))


def is_written(node: Node, operand: Node) -> bool:
    """Whether an op writes into this argument."""
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.is_mutable:
        return False

    def within(value: Any) -> Iterable[Any]:
        return value if isinstance(value, (list, tuple)) else (value,)

    for place, argument in enumerate(node.target._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
            if operand in within(value):
                return True
    return False
