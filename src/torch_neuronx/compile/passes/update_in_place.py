"""Functional updates become updates in place where nobody looks at the old value any more.

AOTAutograd makes a graph functional: `cache[i] = x` is `new = index_put(cache, i, x)` and, at the end,
`copy_(cache, new)`. As it stands that copies the whole cache twice.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from torch_neuronx.targets.graph import base_of, is_tensor, strides

__all__ = ["update_in_place"]

aten = torch.ops.aten

_IN_PLACE: dict[Any, Any] = {
    aten.index_put.default: aten.index_put_.default,
    aten.scatter.src: aten.scatter_.src,
    aten.scatter.value: aten.scatter_.value,
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.scatter_reduce.two: aten.scatter_reduce_.two,
    aten.index_add.default: aten.index_add_.default,
    aten.index_copy.default: aten.index_copy_.default,
    aten.masked_scatter.default: aten.masked_scatter_.default,
    aten._index_put_impl.default: aten._index_put_impl_.default,
}


def update_in_place(module: GraphModule) -> None:
    """Rewrites the graph."""
    graph = module.graph
    places = {node: k for k, node in enumerate(graph.nodes)}
    bases = {node: base_of(node) for node in graph.nodes if is_tensor(node)}
    last_use: dict[Node, int] = {}
    final_copies: dict[Node, Node] = {}  # by the input that is written
    for node in graph.nodes:
        if node.target is aten.copy_.default and node.args[0].op == "placeholder":
            final_copies[node.args[0]] = node
            continue
        for operand in node.all_input_nodes:
            if operand in bases:
                last_use[bases[operand]] = places[node]
    for node in list(graph.nodes):
        if node.target not in _IN_PLACE:
            continue
        target = node.args[0]
        base = bases[target]
        copy = final_copies.get(base)
        others = [n for n in node.all_input_nodes if n is not target and bases.get(n) is base]
        if others or last_use[base] > places[node] or strides(node) != strides(target) or base.op == "get_attr":
            continue
        if base.op == "placeholder" and (copy is None or copy.args[1] is not node or target is not base):
            continue
        node.target = _IN_PLACE[node.target]
        if base.op == "placeholder":
            assert copy is not None
            copy.replace_all_uses_with(node)
            graph.erase_node(copy)
        bases[node] = base
        # What was read after the old node is now read from the same memory.
        last_use[base] = max(last_use[base], max((places[user] for user in node.users), default=0))
