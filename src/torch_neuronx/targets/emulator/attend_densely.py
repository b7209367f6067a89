"""FlexAttention that tiles cannot do - double precision, gradients of captured tensors - is computed the dense way, by
PyTorch's own functions, on the host."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule

from .flex import is_attention, reason_against

__all__ = ["attend_densely", "dense_attention", "dense_attention_backward"]


def attend_densely(module: GraphModule) -> None:
    """Puts calls of PyTorch's functions in the place of such operators."""
    for node in module.graph.nodes:
        if is_attention(node) and reason_against(node):
            backward = node.target.name().endswith("backward")
            node.target = dense_attention_backward if backward else dense_attention


def dense_attention(*args: Any) -> Any:
    """The operator `flex_attention`, scores and all in memory."""
    from torch._higher_order_ops.flex_attention import sdpa_dense

    return sdpa_dense(*args)


def dense_attention_backward(*args: Any) -> Any:
    """Its gradient. Captured tensors get one where the joint graph has it."""
    from torch._higher_order_ops.flex_attention import sdpa_dense_backward

    function: Any = sdpa_dense_backward
    *most, captured, mask_captured = args
    joint = most[8]
    if isinstance(joint, GraphModule) and any(isinstance(c, torch.Tensor) for c in captured):
        (output,) = joint.graph.find_nodes(op="output")
        gradients = output.args[0][-len(captured) :]
        # PyTorch's function asks the tensors themselves, and saved ones have forgotten.
        captured = tuple(
            c.detach().requires_grad_() if gradient is not None and isinstance(c, torch.Tensor) else c
            for c, gradient in zip(captured, gradients, strict=True)
        )
    with torch.no_grad():
        return function(*most, captured, mask_captured)
