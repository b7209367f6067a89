"""Graphs are cut around what a program cannot do: ops whose results have sizes that depend on data, ops written in
Python, control flow. Those run on the host between programs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils._pytree import tree_map_only

from torch_neuronx.targets import graph as g

__all__ = ["HostCall", "Piece", "Ref", "cut"]


@dataclass(frozen=True)
class Ref:
    """A value of the graph, by its place in the table of values."""

    index: int


@dataclass
class Piece:
    """A graph that becomes one program. `inputs` and `outputs` are places in the table of values."""

    module: GraphModule
    inputs: list[int]
    outputs: list[int]


@dataclass
class HostCall:
    """One call from Python, its arguments with :class:`Ref` for values; `output` is a place in the table."""

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: int

    def __getstate__(self) -> dict[str, Any]:
        whole = (self.target, self.args, self.kwargs)
        return {
            "whole": tree_map_only(torch._ops.OpOverload, lambda op: _Overload(str(op)), whole),
            "output": self.output,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.target, self.args, self.kwargs = tree_map_only(_Overload, _Overload.found, state["whole"])
        self.output = state["output"]


@dataclass(frozen=True)
class _Overload:
    """Stands for an overload, which cannot be pickled."""

    name: str

    def found(self) -> Any:
        return functools.reduce(getattr, self.name.split("."), torch.ops)


def cut(module: GraphModule, on_host: Callable[[Node], bool]) -> tuple[list[Piece | HostCall], list[Any]]:
    """The pieces in order, and the results of the graph (with :class:`Ref` for values).

    The table of values begins with the arguments.
    """
    nodes = list(module.graph.nodes)
    (output,) = [node for node in nodes if node.op == "output"]
    places: dict[Node, int] = {}
    for node in nodes:
        if node.op == "placeholder":
            places[node] = len(places)
    segment: dict[Node, int] = {}
    host: set[Node] = set()
    number = 0
    for node in nodes:
        if node.op != "call_function":
            continue
        if g.is_item(node) and node.args[0] in host:  # of a tuple: taken right after the call
            segment[node] = segment[node.args[0]]
            host.add(node)
        elif on_host(node):
            number += 1
            segment[node] = number
            host.add(node)
            number += 1
        else:
            segment[node] = number
    (results,) = output.args
    results = results if isinstance(results, (tuple, list)) else [results]
    if not host:
        inputs = list(places.values())
        outputs = list(range(len(inputs), len(inputs) + len(results)))
        return [Piece(module, inputs, outputs)], [Ref(k) for k in outputs]
    parts: list[Piece | HostCall] = []
    for k in range(number + 1):
        members = [node for node in nodes if segment.get(node) == k]
        if not members:
            continue
        if members[0] in host:
            for node in members:
                places[node] = len(places)
                args, kwargs = _refs(module, node.args, places), _refs(module, node.kwargs, places)
                parts.append(HostCall(node.target, args, kwargs, places[node]))
        else:
            parts.append(_piece(module, members, places))
    return parts, [_refs(module, r, places) for r in results]


def _refs(module: GraphModule, value: Any, places: dict[Node, int]) -> Any:
    def replace(node: Node) -> Any:
        if node.op == "get_attr":
            return _attribute(module, str(node.target))
        return Ref(places[node])

    return torch.fx.node.map_arg(value, replace)


def _attribute(module: GraphModule, name: str) -> Any:
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _piece(module: GraphModule, members: list[Node], places: dict[Node, int]) -> Piece:
    graph = Graph()
    copies: dict[Node, Node] = {}
    inputs: list[int] = []
    inside = set(members)
    for node in members:
        for operand in node.all_input_nodes:
            if operand in copies or operand in inside:
                continue
            if operand.op == "get_attr":
                copies[operand] = graph.get_attr(str(operand.target))
            else:
                copies[operand] = graph.placeholder(operand.name)
                inputs.append(places[operand])
            copies[operand].meta = dict(operand.meta)
    # Values of symbols that nothing else brings in.
    for node in places:
        if node not in copies and node.op == "placeholder" and isinstance(g.value(node), torch.SymInt):
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = dict(node.meta)
            inputs.append(places[node])
    for node in members:
        copies[node] = graph.node_copy(node, lambda n: copies[n])
        copies[node].meta = dict(node.meta)
        if "slot_of" in node.meta:
            copies[node].meta["slot_of"] = node.meta["slot_of"]  # replaced below
    for node in members:
        if "slot_of" in node.meta:
            copies[node].meta["slot_of"] = copies[node.meta["slot_of"]]
    leaving = [
        n for n in members if any(u not in inside for u in n.users) and not isinstance(g.value(n), (tuple, list))
    ]
    graph.output([copies[n] for n in leaving])
    for node in leaving:
        places[node] = len(places)
    # Placeholders stand first in a graph.
    first = next(iter(graph.nodes))
    for node in [n for n in graph.nodes if n.op == "placeholder"]:
        if node is not first:
            first.prepend(node)
    order = [n for n in graph.nodes if n.op == "placeholder"]
    by_name = {copies[node]: places[node] for node in copies if node in places}
    piece = GraphModule(module, graph)
    return Piece(piece, [by_name[n] for n in order], [places[n] for n in leaving])
