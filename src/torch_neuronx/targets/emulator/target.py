"""The emulated chip as a target: passes that only it wants, programs and the host calls between them."""

from __future__ import annotations

import torch
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule, Node

from torch_neuronx import _C
from torch_neuronx.targets import graph as g

from .attend_densely import attend_densely
from .build import build_program
from .elements import is_element
from .flex import is_attention
from .output import CompiledGraph, Program
from .partition import HostCall, Piece, cut
from .place_concatenations import place_concatenations
from .reductions import is_reduction
from .space import MismatchError

__all__ = ["REASONS", "build", "op_by_op"]

# What makes a graph impossible to build: LLVM says it with RuntimeError (UnavailableError is one), the program builder
# and ill-formed kernels with ValueError.
REASONS = (MismatchError, RuntimeError, ValueError)


def build(module: GraphModule, name: str, kind: str) -> CompiledGraph:
    """Programs for a graph of ATen ops. An exception that has to do with one op has it as attribute `node`.

    Args:
        module: the graph, its nodes with fake tensors; it is changed.
        name: for errors and listings.
        kind: `forward`, `backward` or `inference`.
    """
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


def op_by_op(module: GraphModule) -> CompiledGraph:
    """The graph as calls from Python, like eager mode."""
    parts, results = cut(module, lambda node: True)
    return CompiledGraph(list(parts), results)  # type: ignore[arg-type]


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
