"""What an FX graph of ATen ops says, in the terms of targets: views, updates, numbers, devices."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import sympy
import torch
from torch.fx import Node

__all__ = [
    "Size",
    "base_of",
    "devices",
    "is_call",
    "is_item",
    "is_tensor",
    "is_update",
    "is_view",
    "is_virtual_view",
    "itemsize",
    "made_as",
    "numel",
    "size_of",
    "sizes",
    "source_line",
    "strides",
    "value",
]

aten, prims = torch.ops.aten, torch.ops.prims

# An integer, or an expression of symbols (sympy.Expr).
Size = Any

# Views that keep the order of elements or permute dimensions: inside a kernel they are only names of loops.
_VIRTUAL = {
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.expand.default,
    aten.permute.default,
    aten.transpose.int,
    aten.t.default,
    aten.alias.default,
    aten.detach.default,
    aten.lift_fresh.default,
}
_OTHER_VIEWS = {
    aten.slice.Tensor,
    aten.select.int,
    aten.as_strided.default,
    aten.diagonal.default,
    aten.unfold.default,
    aten.view.dtype,
    aten.view_as_real.default,
    aten.view_as_complex.default,
    aten.real.default,
    aten.imag.default,
}
# Their results are views too, one by one through getitem.
_LISTS_OF_VIEWS = {
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.unbind.int,
    aten.chunk.default,
}


def value(node: Node) -> Any:
    """What the node gives: a fake tensor, a number, a tuple of these."""
    return node.meta.get("val")


def is_tensor(node: Any) -> bool:
    """Whether an argument is a node with one tensor as result."""
    return isinstance(node, Node) and isinstance(value(node), torch.Tensor)


def is_virtual_view(node: Node) -> bool:
    """A view that kernels look through."""
    return node.op == "call_function" and node.target in _VIRTUAL


def is_view(node: Node) -> bool:
    """A view of its first argument, or an item of a list of views."""
    if node.op != "call_function":
        return False
    if node.target in _VIRTUAL or node.target in _OTHER_VIEWS or node.target in _LISTS_OF_VIEWS:
        return True
    return is_item(node) and isinstance(node.args[0], Node) and node.args[0].target in _LISTS_OF_VIEWS


def is_item(node: Node) -> bool:
    """An item of a result that is a tuple or a list."""
    return getattr(node.target, "__name__", "") == "getitem" and node.op == "call_function"


def is_update(node: Node) -> bool:
    """An op that writes into its first argument and gives it back."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    schema = node.target._schema
    if not (schema.is_mutable and schema.arguments and schema.returns):
        return False
    written, given = schema.arguments[0].alias_info, schema.returns[0].alias_info
    return written is not None and given is not None and written.is_write and given.is_write


def base_of(node: Node) -> Node:
    """The node whose memory a view looks at, or an update gives back."""
    while True:
        if "slot_of" in node.meta:  # see emulator/place_concatenations.py
            node = node.meta["slot_of"]
        elif is_view(node) or is_update(node):
            (node, *_) = node.args  # type: ignore[assignment]
        else:
            return node


def made_as(node: Node) -> Node:
    """What a view is a view of, as it is after the last update."""
    while is_view(node):
        (node, *_) = node.args  # type: ignore[assignment]
    return node


def is_call(node: Node) -> bool:
    """An op that is neither a view nor an item of a result nor arithmetic on sizes."""
    return node.op == "call_function" and not is_view(node) and not is_item(node) and not is_number(node)


def is_number(node: Node) -> bool:
    """A node whose value is a number known from sizes."""
    return isinstance(value(node), (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool))


def size_of(number: Any) -> Size:
    """A size of a fake tensor, as an integer or an expression."""
    if isinstance(number, torch.SymInt):
        expression = number.node.expr
        return int(expression) if expression.is_Integer else expression
    if isinstance(number, sympy.Expr):
        return int(number) if number.is_Integer else number
    return int(number)


def sizes(node: Node) -> tuple[Size, ...]:
    """Of the node's tensor."""
    return tuple(size_of(s) for s in value(node).shape)


def strides(node: Node) -> tuple[Size, ...]:
    """Of the node's tensor, in elements."""
    return tuple(size_of(s) for s in value(node).stride())


def numel(node: Node) -> Size:
    """Elements of the node's tensor."""
    result: Size = 1
    for size in sizes(node):
        result = result * size
    return result


def devices(nodes: Iterable[Node]) -> list[int]:
    """Indices of the devices on which the nodes' tensors are, in the order of the nodes."""
    values = [v if isinstance(v, (tuple, list)) else (v,) for v in map(value, nodes)]
    tensors = [v for several in values for v in several if isinstance(v, torch.Tensor)]
    here = [v.device for v in tensors if v.device.type == "neuron"]
    return list(dict.fromkeys(device.index or 0 for device in here))


def itemsize(node: Node) -> int:
    """Bytes of an element."""
    return value(node).dtype.itemsize


def source_line(node: Node) -> str:
    """The user's line that a node comes from, as "file:line"; empty when it is not known."""
    places = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    return ":".join(places[-1]) if places else ""
