"""One graph of ATen ops to what runs it: passes that every target wants, then the target's own."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule, Node

from torch_neuronx import _C
from torch_neuronx.errors import GraphBuildError
from torch_neuronx.jit import UnavailableError
from torch_neuronx.jit.kernel_check import KernelError
from torch_neuronx.targets.emulator import graph as g
from torch_neuronx.targets.emulator.build import build_program, source_line
from torch_neuronx.targets.emulator.elements import is_element
from torch_neuronx.targets.emulator.flex import is_attention
from torch_neuronx.targets.emulator.listing import listing
from torch_neuronx.targets.emulator.reductions import is_reduction
from torch_neuronx.targets.emulator.space import MismatchError

from . import artifacts, metrics
from .options import CompileOptions
from .output import CompiledGraph, Program
from .partition import HostCall, Piece, cut
from .passes.attend_densely import attend_densely
from .passes.place_concatenations import place_concatenations
from .passes.replay_random_numbers import replay_random_numbers
from .passes.update_in_place import update_in_place

__all__ = ["compile_graph"]


# What makes a graph impossible to build, as LLVM, the program builder and our own passes say it.
_REASONS = (KernelError, MismatchError, UnavailableError, RuntimeError, ValueError, NotImplementedError)


def compile_graph(module: GraphModule, inputs: Sequence[Any], *, options: CompileOptions, kind: str) -> CompiledGraph:
    """What runs a graph whose nodes carry fake tensors.

    Args:
        module: the graph, as AOTAutograd made it: functional but for copies into inputs at its end.
        inputs: its example arguments.
        options: what the user asked for.
        kind: `forward`, `backward` or `inference`, for names.

    Raises:
        GraphBuildError: the graph cannot be built, and the options do not say that it may run op by op.
    """
    start = time.perf_counter()
    name = f"{options.model_name}.{kind}"
    try:
        compiled = _build(module, name, kind)
    except _REASONS as reason:
        error = _described(reason, module)
        if not options.fallback_execution:
            raise error from reason
        _warn_once(str(error))
        compiled = _op_by_op(module)
        metrics.add(fallbacks=1)
    programs = [part for part in compiled.parts if isinstance(part, Program)]
    metrics.add(
        graphs=1,
        programs=len(programs),
        steps=sum(len(program.spec.steps) for program in programs),
        kernels=sum(len(program.spec.kernels) for program in programs),
        host_calls=len(compiled.parts) - len(programs),
        build_seconds=time.perf_counter() - start,
    )
    artifacts.keep(name, module, {f"{p.name}.program.txt": listing(p.spec, p.name) for p in programs})
    return compiled


def _build(module: GraphModule, name: str, kind: str) -> CompiledGraph:
    replay_random_numbers(module)
    update_in_place(module)
    place_concatenations(module)
    attend_densely(module)
    module.graph.eliminate_dead_code()
    home = g.devices(module.graph.nodes)[:1]
    parts, results = cut(module, lambda node: _on_host(node) or _elsewhere(node, home))
    programs: list[Program | HostCall] = []
    for k, part in enumerate(parts):
        if isinstance(part, HostCall):
            programs.append(part)
            continue
        assert isinstance(part, Piece)
        arguments = tuple(
            (value.dtype, value.device.type) if isinstance(value, torch.Tensor) else None
            for value in (g.value(node) for node in part.module.graph.nodes if node.op == "placeholder")
        )
        title = name if len(parts) == 1 else f"{name}.{k}"
        donated = _donated() if kind == "backward" and len(parts) == 1 else []
        programs.append(Program(build_program(part.module), title, arguments, part.inputs, part.outputs, donated))
    compiled = CompiledGraph(programs, results)
    with unset_fake_temporarily():
        compiled.make_ready()
    return compiled


def _op_by_op(module: GraphModule) -> CompiledGraph:
    """The graph as calls from Python, like eager mode."""
    parts, results = cut(module, lambda node: True)
    return CompiledGraph(list(parts), results)  # type: ignore[arg-type]


def _described(reason: BaseException, module: GraphModule) -> GraphBuildError:
    """The error for the user, with the op where the reason names one."""
    node = getattr(reason, "node", None)
    arguments = "unknown"
    if node is not None:
        values = [g.value(a) if isinstance(a, Node) else a for a in node.args]
        arguments = ", ".join(f"{v.dtype}{list(v.shape)}" if isinstance(v, torch.Tensor) else str(v) for v in values)
    return GraphBuildError(
        reason=f"{type(reason).__name__}: {reason}",
        op=node.target if node is not None else "unknown",
        arguments=arguments,
        line=(source_line(node) if node is not None else "") or "unknown",
    )


def _warn_once(text: str) -> None:
    if text not in _told:
        _told.add(text)
        warnings.warn(f"{text}\nIt runs op by op.", UserWarning, stacklevel=2)


_told: set[str] = set()


def _donated() -> list[int]:
    """Arguments of a backward graph that are saved activations which nobody else has."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    return list(metadata.bw_donated_idxs or []) if metadata is not None else []


def _elsewhere(node: Node, home: list[int]) -> bool:
    """Whether a node has to do with another device than the graph's first one, for which programs are built."""
    return any(device not in home for device in g.devices([node, *node.all_input_nodes]))


def _on_host(node: Node) -> bool:
    """Whether Python must call the op."""
    if node.meta.get("unbacked_bindings"):
        return True  # sizes that depend on data: what follows finds them in the result
    if g.is_view(node):
        return False
    if g.is_number(node):
        # Sizes are known from the arguments; what an op computes is not, and programs count in integers.
        if isinstance(g.value(node), (torch.SymFloat, torch.SymBool)):
            return True
        return isinstance(node.target, torch._ops.OpOverload) and node.target in _DATA
    if not g.is_call(node) or is_element(node) or is_reduction(node):
        return False
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return not is_attention(node)
    if target._schema.name.startswith(_UNPREDICTED):
        return True
    if torch.Tag.dynamic_output_shape in target.tags or torch.Tag.data_dependent_output in target.tags:
        return True
    if any(isinstance(g.value(n), (torch.SymFloat, torch.SymBool)) for n in node.all_input_nodes):
        return True
    return not _C.can_be_step(target._schema.name, target._schema.overload_name)


# Their fake kernels give other shapes than ATen's for the CPU do.
_UNPREDICTED = "aten::_embedding_bag"

_DATA = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.item.default,
    torch.ops.aten.sym_storage_offset.default,
}
