"""From an FX graph of ATen ops to a program: units become steps, results get memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sympy
import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule, Node

from torch_neuronx.jit.kernel import Kernel
from torch_neuronx.jit.kernel_check import check
from torch_neuronx.jit.stage import Dtype
from torch_neuronx.targets import graph as g
from torch_neuronx.targets.graph import Size

from .elements import DTYPES, SOURCES, is_element
from .flex import is_attention, lowered
from .kernels import WrittenKernel, write_kernel
from .regions import Region, Unit, Units, operand_nodes
from .space import is_one
from .spec import (
    Buffer,
    CallStep,
    FlexStep,
    IntRef,
    KernelStep,
    Output,
    ProgramSpec,
    SymbolSource,
    Tensor,
    TensorRef,
    TileCode,
    tensors_of,
)
from .split import split
from .tile_code import TileKernel

__all__ = ["build_program"]

aten = torch.ops.aten

# Memory whose contents nobody asked for.
_UNINITIALIZED = frozenset(
    {aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default, aten.empty_strided.default}
)


def build_program(module: GraphModule) -> ProgramSpec:
    """The program of a graph whose nodes carry fake tensors (`meta["val"]`) and run on one device."""
    return _Builder(module).build()


class _Builder:
    def __init__(self, module: GraphModule) -> None:
        self._module = module
        self._graph = module.graph
        self._units = Units(self._graph)
        self._spec = ProgramSpec()
        self._ints: dict[Size, int] = {}
        self._kernels: dict[Kernel, int] = {}
        self._buffers: dict[Node, int] = {}  # by the node that owns the memory
        self._tensors: dict[Any, int] = {}
        self._lives: dict[int, list[int]] = {}  # of arena buffers: first and last step
        self._placeholders = [node for node in self._graph.nodes if node.op == "placeholder"]
        (self._output,) = [node for node in self._graph.nodes if node.op == "output"]

    def build(self) -> ProgramSpec:
        spec = self._spec
        spec.inputs = len(self._placeholders)
        spec.device = (g.devices(self._graph.nodes) or [0])[0]
        self._take_inputs()
        self._mark_outputs()
        in_memory = self._in_memory()
        for unit in self._units.ordered():
            try:
                self._steps_of(unit, in_memory)
            except Exception as reason:
                reason.node = unit.nodes[-1]  # type: ignore[attr-defined] # for the error that users see
                raise
        spec.outputs = [self._output_of(o) for o in self._outputs()]
        spec.ints = list(self._ints)
        spec.kernels = list(self._kernels)
        # A source that was given memory for a step has come in front of it, and others in between.
        for k, step in enumerate(spec.steps):
            for tensor in tensors_of(step):
                if (life := self._lives.get(spec.tensors[tensor].buffer)) is not None:
                    life[1] = max(life[1], k)
        for buffer, (first, last) in self._lives.items():
            old = spec.buffers[buffer]
            spec.buffers[buffer] = Buffer(old.kind, old.index, old.nbytes, first, last)
        return spec

    def _steps_of(self, unit: Unit, in_memory: set[Node]) -> None:
        first = unit.nodes[0]
        if isinstance(unit, Region):
            stored = [n for n in unit.nodes if n in in_memory or g.is_update(n)]
            if stored:
                self._region_step(unit, sorted(stored, key=self._units.place))
        elif first.target in _UNINITIALIZED or (first.target is aten.cat.default and self._is_placed(first)):
            return  # no work, only memory
        elif is_attention(first):
            self._flex_step(first)
        else:
            self._call_step(unit)

    # -- Inputs and outputs --------------------------------------------------------------------------------------------
    def _take_inputs(self) -> None:
        spec = self._spec
        known: set[sympy.Symbol] = set()
        tensors = []
        for k, node in enumerate(self._placeholders):
            value = g.value(node)
            spec.buffers.append(Buffer("input", k))
            self._buffers[node] = k
            if isinstance(value, torch.SymInt) and value.node.expr.is_Symbol:
                if value.node.expr not in known:
                    known.add(value.node.expr)
                    spec.symbols.append(SymbolSource(str(value.node.expr), k))
            elif isinstance(value, torch.Tensor):
                tensors.append((k, node, value))
        for k, node, _ in tensors:
            for what, numbers in (("size", g.sizes(node)), ("stride", g.strides(node))):
                for dim, number in enumerate(numbers):
                    if isinstance(number, sympy.Symbol) and number not in known:
                        known.add(number)
                        spec.symbols.append(SymbolSource(str(number), k, what, dim))
        for _, node, value in tensors:
            if value.device.type == "cpu" and node.users and value.ndim:
                spec.synchronous = True

    def _outputs(self) -> Sequence[Any]:
        (outputs,) = self._output.args
        return outputs if isinstance(outputs, (tuple, list)) else [outputs]

    def _mark_outputs(self) -> None:
        self._is_output: set[Node] = set()
        for output in self._outputs():
            if isinstance(output, Node) and not g.is_number(output):
                self._is_output.add(g.base_of(output))
                if g.value(output).device.type == "cpu":
                    self._spec.synchronous = True

    def _output_of(self, output: Any) -> Output:
        if output is None:
            return Output()
        if not isinstance(output, Node):
            return Output(number=self._int(output))
        if g.is_number(output):
            return Output(number=self._int(g.size_of(g.value(output))))
        base = g.base_of(output)
        if base.op == "placeholder" and _same_elements(base, output):
            return Output(argument=self._buffers[base])
        return Output(tensor=self._tensor(output))

    @staticmethod
    def _is_placed(concatenation: Node) -> bool:
        """Whether the parts are computed in their places."""
        parts: Any = concatenation.args[0]
        return all("slot_of" in part.meta for part in parts)

    # -- Memory --------------------------------------------------------------------------------------------------------
    def _in_memory(self) -> set[Node]:
        """Nodes whose value somebody reads from memory."""
        result: set[Node] = set()
        for node in self._graph.nodes:
            if node.op == "output":
                result.update(g.made_as(n) for n in operand_nodes(node))
                continue
            unit = self._units.unit_of.get(node)
            if unit is None:
                continue
            for operand in operand_nodes(node):
                if not isinstance(unit, Region) or self._units.maker(operand) is not unit:
                    result.add(g.made_as(operand))
        return result

    def _int(self, size: Size) -> int:
        return self._ints.setdefault(size, len(self._ints))

    def _buffer(self, node: Node) -> int:
        """Of the memory that `node` owns."""
        if node not in self._buffers:
            spec = self._spec
            if node.op == "get_attr":
                constant = self._constant(node)
                spec.buffers.append(Buffer("constant", constant))
            elif node in self._is_output:
                spec.buffers.append(Buffer("output", nbytes=self._int(_extent(node))))
            else:
                spec.buffers.append(Buffer("arena", nbytes=self._int(_extent(node))))
                self._lives[len(spec.buffers) - 1] = [len(spec.steps), len(spec.steps)]
            self._buffers[node] = len(spec.buffers) - 1
        buffer = self._buffers[node]
        if buffer in self._lives:
            self._lives[buffer][1] = len(self._spec.steps)
        return buffer

    def _constant(self, node: Node) -> int:
        value: Any = self._module
        for name in str(node.target).split("."):
            value = getattr(value, name)
        with unset_fake_temporarily():
            self._spec.constants.append(value.detach())
        return len(self._spec.constants) - 1

    def _tensor(self, node: Node) -> int:
        """The tensor that a node stands for, in memory."""
        base = g.base_of(node)
        if base.target in SOURCES and is_element(base) and base not in self._buffers:
            self._source_step(base)
        buffer = self._buffer(base)
        value, owner = g.value(node), g.value(base)
        start = (
            g.size_of(value.storage_offset()) * value.dtype.itemsize
            - g.size_of(owner.storage_offset()) * owner.dtype.itemsize
        )
        offset = start // value.dtype.itemsize
        tensor = Tensor(
            buffer,
            value.dtype,
            tuple(self._int(size) for size in g.sizes(node)),
            tuple(self._int(stride) for stride in g.strides(node)),
            self._int(offset),
            value.device.type == "cpu",
        )
        if tensor not in self._tensors:
            self._tensors[tensor] = len(self._spec.tensors)
            self._spec.tensors.append(tensor)
        return self._tensors[tensor]

    # -- Steps ---------------------------------------------------------------------------------------------------------
    def _source_step(self, node: Node) -> None:
        """Memory of its own for a value that is written wherever it can be."""
        if node.target in _UNINITIALIZED or any(size == 0 for size in g.sizes(node)):
            self._buffer(node)
            return
        layout = self._units.layouts[node] = self._units.spaces.fresh(g.sizes(node))
        region = Region([node], full=tuple(axis for axes in layout for axis in axes))
        self._region_step(region, [node])

    def _region_step(self, region: Region, stored: list[Node]) -> None:
        if any(size == 0 for node in region.nodes if g.is_tensor(node) for size in g.sizes(node)):
            for node in stored:  # nothing to compute, but there is a tensor
                self._tensor(node)
            return
        written = write_kernel(self._units, region, stored)
        for tensor in written.tensors:
            base = g.base_of(tensor)
            if base.target in SOURCES and is_element(base) and base not in self._buffers and base not in stored:
                self._source_step(base)
        self._kernel_step(written, region)

    def _kernel_step(self, written: WrittenKernel, region: Region) -> None:
        spec = self._spec
        names = [str(n.target).removesuffix(".default") for n in sorted(region.nodes, key=self._units.place)]
        tensors = tuple(self._buffered(tensor) for tensor in written.tensors)
        label = " -> ".join(dict.fromkeys(names)) + _at(region.nodes)
        ints = tuple(self._int(size) for size in written.ints)
        halves = split(written.kernel)
        if halves is None:
            whole = self._kernel(written.kernel, written.work)
            spec.steps.append(KernelStep(whole, tensors, ints, written.stored, label))
            return
        loads = len(tensors) - written.stored
        partials = tuple(self._scratch(halves.parts * halves.kept, dtype) for dtype in halves.partials)
        steps = (halves.first, halves.first_operands), (halves.second, halves.second_operands)
        for number, (kernel, places) in enumerate(steps):
            own = tuple(tensors[place] for place in places)
            stored = sum(place >= loads for place in places)
            spec.steps.append(
                KernelStep(
                    self._kernel(kernel, written.work),
                    partials + own if number else own + partials,
                    ints,
                    stored if number else stored + len(partials),
                    label,
                )
            )
            self._keep_alive(partials)

    def _scratch(self, elements: int, dtype: Dtype) -> int:
        """A tensor that only the steps that are being added use."""
        spec = self._spec
        torch_dtype = next(t for t, memory in DTYPES.items() if memory == dtype)
        spec.buffers.append(Buffer("arena", nbytes=self._int(elements * torch_dtype.itemsize)))
        self._lives[len(spec.buffers) - 1] = [len(spec.steps), len(spec.steps)]
        one, size, zero = self._int(1), self._int(elements), self._int(0)
        spec.tensors.append(Tensor(len(spec.buffers) - 1, torch_dtype, (size,), (one,), zero))
        return len(spec.tensors) - 1

    def _keep_alive(self, tensors: Iterable[int]) -> None:
        for tensor in tensors:
            self._lives[self._spec.tensors[tensor].buffer][1] = len(self._spec.steps)

    def _kernel(self, kernel: Kernel, work: float) -> int:
        if kernel not in self._kernels:
            check(kernel)
            self._kernels[kernel] = len(self._kernels)
            self._spec.work.append(work)
        return self._kernels[kernel]

    def _flex_step(self, node: Node) -> None:
        attention = lowered(node)

        def code(tile: TileKernel | None) -> TileCode | None:
            if tile is None:
                return None
            captured = tuple(self._tensor(tensor) for tensor in tile.captured)
            # The step shares out its own work: none is told.
            return TileCode(self._kernel(tile.kernel, 0.0), captured, tuple(self._int(size) for size in tile.ints))

        tensors = tuple(None if tensor is None else self._tensor(tensor) for tensor in attention.tensors)
        stored = tuple(self._tensor(user) for user in node.users if g.is_tensor(user))
        blocks = (self._int(attention.blocks[0]), self._int(attention.blocks[1]))
        codes = tuple(code(tile) for tile in attention.kernels)
        label = f"{node.target}{_at([node])}"
        self._spec.steps.append(FlexStep(attention.backward, tensors, attention.scale, blocks, codes, stored, label))

    def _buffered(self, node: Node) -> int:
        base = g.base_of(node)
        if base.op != "get_attr":
            self._buffer(base)
        return self._tensor(node)

    def _call_step(self, unit: Unit) -> None:
        spec = self._spec
        node = unit.nodes[0]
        target = node.target
        assert isinstance(target, torch._ops.OpOverload)
        args: list[Any] = [self._argument(a) for a in node.args]
        kwargs = {name: self._argument(a) for name, a in node.kwargs.items()}
        if g.is_update(node):
            outs: tuple[int | None, ...] = (None,) * len(target._schema.returns)
            if g.value(g.base_of(node)).device.type == "cpu" and g.base_of(node).op == "placeholder":
                spec.synchronous = True
        else:
            value = g.value(node)
            if isinstance(value, (tuple, list)):
                items = {user.args[1]: user for user in node.users}
                outs = tuple(self._tensor(items[k]) if k in items else None for k in range(len(value)))
            else:
                outs = (self._tensor(node),) if isinstance(value, torch.Tensor) else ()
        label = f"{target}{_at([node])}"
        spec.steps.append(CallStep(target._schema.name, target._schema.overload_name, (args, kwargs), outs, label))

    def _argument(self, argument: Any) -> Any:
        if isinstance(argument, Node):
            if g.is_number(argument):
                return self._number(g.value(argument))
            return TensorRef(self._tensor(argument))
        if isinstance(argument, (list, tuple)):
            items = [self._argument(a) for a in argument]
            if any(isinstance(item, IntRef) for item in items):
                items = [IntRef(self._int(item)) if isinstance(item, int) else item for item in items]
            return items
        return argument

    def _number(self, number: Any) -> Any:
        if isinstance(number, torch.SymInt):
            return IntRef(self._int(g.size_of(number)))
        return number


def _same_elements(a: Node, b: Node) -> bool:
    x, y = g.value(a), g.value(b)
    return (
        x.dtype == y.dtype
        and g.sizes(a) == g.sizes(b)
        and g.strides(a) == g.strides(b)
        and g.size_of(x.storage_offset()) == g.size_of(y.storage_offset())
    )


def _extent(node: Node) -> Size:
    """Bytes from the first to behind the last element of the node's tensor."""
    sizes, strides = g.sizes(node), g.strides(node)
    if any(size == 0 for size in sizes):
        return 0
    elements: Size = 1
    for size, stride in zip(sizes, strides, strict=True):
        if not is_one(size):
            elements = elements + (size - 1) * stride
    return elements * g.itemsize(node)


def _at(nodes: Iterable[Node]) -> str:
    lines = dict.fromkeys(line for node in nodes if (line := g.source_line(node)))
    return f" ({', '.join(lines)})" if lines else ""
