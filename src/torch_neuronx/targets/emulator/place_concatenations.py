"""The parts of a concatenation are computed where they belong in the result, instead of being copied there."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node

__all__ = ["place_concatenations"]

aten = torch.ops.aten

_MAX_PARTS = 32


def place_concatenations(module: GraphModule) -> None:
    """Inserts a copy of each part that lies in the result: `meta["slot_of"]` names the concatenation."""
    graph = module.graph
    for node in list(graph.nodes):
        if node.target is not aten.cat.default:
            continue
        parts = list(node.args[0])
        value = node.meta["val"]
        dim = (node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)) % max(value.ndim, 1)
        if len(parts) > _MAX_PARTS or value.device.type != "neuron" or not all(_fits(p, value, dim) for p in parts):
            continue
        start = 0
        slots = []
        for part in parts:
            size = part.meta["val"].shape[dim]
            assert isinstance(value, FakeTensor)
            with graph.inserting_before(node), value.fake_mode:
                slot = graph.call_function(aten.clone.default, (part,))
                slot.meta = dict(part.meta) | {"val": value.narrow(dim, start, size), "slot_of": node}
            slots.append(slot)
            start += size
        node.args = (slots, dim)


def _fits(part: Node, result: torch.Tensor, dim: int) -> bool:
    value = part.meta["val"]
    return (
        value.ndim == result.ndim
        and value.dtype == result.dtype
        and isinstance(value.shape[dim], int)
        and value.shape[dim] > 0
        and all(isinstance(size, int) for size in result.shape)
    )
