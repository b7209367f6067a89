"""FlexAttention: its two operators of a higher order as steps of a program.

Scores never stand in memory: csrc/engines/flex_attention.h makes them tile by tile and calls kernels that score_mod,
mask_mod and the gradient of score_mod have become.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.fx import GraphModule, Node

from torch_neuronx import jit
from torch_neuronx.targets import graph as g
from torch_neuronx.targets.graph import Size

from .tile_code import TileKernel, TileWriter, UnsupportedError

__all__ = ["Attention", "is_attention", "lowered", "reason_against"]

# As csrc/program/flex_step.h numbers them.
_ROLES = (
    "query",
    "key",
    "value",
    "out",
    "logsumexp",
    "maxima",
    "partial_counts",
    "partial_indices",
    "full_counts",
    "full_indices",
    "grad_out",
    "grad_logsumexp",
    "grad_query",
    "grad_key",
    "grad_value",
)
_FORWARD, _BACKWARD = "flex_attention", "flex_attention_backward"
_ARGUMENTS = {
    _FORWARD: (
        *("query", "key", "value", "score_mod", "block_mask", "scale", "options"),
        *("score_captured", "mask_captured"),
    ),
    _BACKWARD: (
        *("query", "key", "value", "out", "logsumexp", "grad_out", "grad_logsumexp", "score_mod", "gradient"),
        *("block_mask", "scale", "options", "score_captured", "mask_captured"),
    ),
}
_RESULTS = {_FORWARD: ("out", "logsumexp", "maxima"), _BACKWARD: ("grad_query", "grad_key", "grad_value")}
# Places in the tuple that BlockMask.as_tuple gives.
_PARTIAL_COUNTS, _QUERY_BLOCK, _KEY_BLOCK, _MASK_MOD = 2, 14, 15, 16
_DTYPES = {torch.float32, torch.bfloat16, torch.float16}
_KEY_DTYPES = _DTYPES | {torch.float8_e4m3fn, torch.float8_e5m2}


@dataclass(frozen=True)
class Attention:
    """What a step of attention consists of.

    Attributes:
        backward: whether it is the gradient.
        tensors: by role; None where there is none.
        scale: of the products.
        blocks: queries and keys of a block of the mask.
        kernels: what changes the scores of partial and of full blocks, and what pulls gradients back; None for nothing.
    """

    backward: bool
    tensors: tuple[Node | None, ...]
    scale: float
    blocks: tuple[Size, Size]
    kernels: tuple[TileKernel | None, ...]


def is_attention(node: Node) -> bool:
    """One of the two operators."""
    return isinstance(node.target, HigherOrderOperator) and node.target.name() in _ARGUMENTS


def reason_against(node: Node) -> str:
    """Why the operator cannot be a step; empty when it can."""
    if not jit.available():
        return "llvmlite is missing"
    try:
        lowered(node)
    except UnsupportedError as reason:
        return str(reason)
    return ""


def lowered(node: Node) -> Attention:
    """The step of a node.

    Raises:
        UnsupportedError: it cannot be one.
    """
    name = node.target.name()  # type: ignore[union-attr]
    given: dict[str, Any] = dict(zip(_ARGUMENTS[name], node.args, strict=True)) | dict(node.kwargs)
    backward = name == _BACKWARD
    _check(given, backward)
    if not isinstance(given["scale"], (int, float)):
        raise UnsupportedError("a scale that depends on sizes")
    mask = given["block_mask"]
    lists = dict(zip(_ROLES[6:10], mask[_PARTIAL_COUNTS : _PARTIAL_COUNTS + 4], strict=True))
    for role, value in lists.items():
        dims = 3 if role.endswith("counts") else 4
        if value is not None and (g.value(value).ndim != dims or g.value(value).dtype != torch.int32):
            raise UnsupportedError("block lists of another shape")
    tensors: dict[str, Node | None] = {role: given.get(role) for role in _ROLES} | lists
    items = {user.args[1]: user for user in node.users}
    for place, role in enumerate(_RESULTS[name]):
        tensors[role] = items.get(place)
    if backward and 3 in items and items[3].users:
        raise UnsupportedError("gradients of captured tensors")
    blocks = (_size(mask[_QUERY_BLOCK]), _size(mask[_KEY_BLOCK]))
    ordered = tuple(tensors[role] for role in _ROLES)
    return Attention(backward, ordered, float(given["scale"]), blocks, _kernels(node, given))


def _check(given: dict[str, Any], backward: bool) -> None:
    query, key, value = (g.value(given[role]) for role in ("query", "key", "value"))
    same = query.dtype == key.dtype == value.dtype
    if query.dtype not in _DTYPES or key.dtype not in _KEY_DTYPES or value.dtype not in _KEY_DTYPES:
        raise UnsupportedError(f"operands of {query.dtype}, {key.dtype} and {value.dtype}")
    if any(t.device.type != "neuron" for t in (query, key, value)):
        raise UnsupportedError("operands on another device")
    if backward and not (same and query.shape[0] == key.shape[0]):
        raise UnsupportedError("a gradient that sums over the batch")


def _size(size: Any) -> Size:
    return g.size_of(g.value(size) if isinstance(size, Node) else size)


def _kernels(node: Node, given: dict[str, Any]) -> tuple[TileKernel | None, ...]:
    def graph(argument: Any) -> GraphModule:
        module = getattr(node.graph.owning_module, str(argument.target), None) if isinstance(argument, Node) else None
        if not isinstance(module, GraphModule):
            raise UnsupportedError("a function that was not traced")
        return module

    query = g.value(given["query"])
    sizes = (*g.sizes(given["query"])[:3], g.sizes(given["key"])[2])
    score_mod, mask_mod = graph(given["score_mod"]), graph(given["block_mask"][_MASK_MOD])

    def change(w: TileWriter) -> Any:
        return w.run(score_mod, [w.scores(query.dtype), *w.positions, *given["score_captured"]])[0]

    def pull(w: TileWriter) -> Any:
        arguments = [w.scores(query.dtype), *w.positions, w.gradients(query.dtype), *given["score_captured"]]
        return w.run(graph(given["gradient"]), arguments)[0]

    def mask(w: TileWriter) -> Any:
        return w.run(mask_mod, [*w.positions, *given["mask_captured"]])[0]

    def kernel(value: Callable[[TileWriter], Any], other: float | None) -> TileKernel | None:
        w = TileWriter(sizes)
        result = value(w)
        if result is None:
            raise UnsupportedError("a score without gradient")
        if other is None:
            return None if w.is_unchanged(result, value is pull) else w.finished(result)
        keep = mask(w)
        if w.is_true(keep):
            return kernel(value, None)
        # Where the mask is false, the probability is zero already.
        unchanged = value is pull and w.is_unchanged(result, True)
        return None if unchanged else w.finished(w.masked(keep, result, other))

    forward = (kernel(change, -float("inf")), kernel(change, None))
    return (*forward, kernel(pull, 0.0), kernel(pull, None)) if "gradient" in given else (*forward, None, None)
