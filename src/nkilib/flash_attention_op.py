"""Attention as a PyTorch op: `nkilib.flash_attention`."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from torch_neuronx import nki_op

from .arguments import require_floats, require_shape, supported
from .errors import UnsupportedOptionError
from .flash_attention import flash_attention_forward
from .flash_attention_backward import flash_attention_backward
from .registry import route
from .tiling import PARTITIONS

__all__ = ["flash_attention"]


@nki_op("nkilib::flash_attention")
def _flash_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, left: int, right: int, offset: int
) -> tuple[torch.Tensor, torch.Tensor]:
    return flash_attention_forward(query, key, value, scale, left, right, offset)


@nki_op("nkilib::flash_attention_backward")
def _flash_attention_backward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    result: torch.Tensor,
    logarithms: torch.Tensor,
    gradient: torch.Tensor,
    dlogarithms: torch.Tensor,
    scale: float,
    left: int,
    right: int,
    offset: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return flash_attention_backward(
        query, key, value, result, logarithms, gradient, dlogarithms, scale, left, right, offset
    )


def flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    offset: int = 0,
    return_logarithms: bool = False,
) -> Any:
    """`softmax(scale * query @ key^T) @ value` for each head, without the scores in memory. Differentiable.

    Args:
        query: (batch, heads, queries, d) of bf16, fp16 or fp32, d <= 128.
        key: (batch, kv_heads, keys, d); heads is a multiple of kv_heads.
        value: (batch, kv_heads, keys, e), e <= 128.
        scale: > 0; 1 / sqrt(d) by default.
        causal: query i sees key j only if j <= i + offset.
        window: (left, right): query i sees key j only if -left <= j - (i + offset) <= right; -1 is no limit.
        offset: number of keys before the first query, as with a cache: keys - queries aligns the last ones.
        return_logarithms: also the logarithm of the sum of the exponentials of the scaled scores.

    Returns:
        (batch, heads, queries, e) as `query`; with `return_logarithms` also (batch, heads, queries) in fp32, which is
        differentiable too. Queries that see no key get zeros, and about -1e30 as logarithm.

    Raises:
        UnsupportedDtypeError, UnsupportedShapeError, UnsupportedOptionError.
    """
    op = "flash_attention"
    require_floats(op, query=query, key=key, value=value)
    for name, operand in (("query", query), ("key", key), ("value", value)):
        require_shape(op, name, operand, operand.dim() == 4, "it has to be (batch, heads, sequence, d)")
        rule = f"heads have at most {PARTITIONS} elements, one for each row of the Tensor engine"
        require_shape(op, name, operand, operand.shape[3] <= PARTITIONS, rule)
        require_shape(op, name, operand, operand.shape[0] == query.shape[0], f"query has a batch of {query.shape[0]}")
    require_shape(op, "key", key, key.shape[3] == query.shape[3], f"query has heads of {query.shape[3]} elements")
    require_shape(op, "value", value, value.shape[:3] == key.shape[:3], f"key has the shape {tuple(key.shape)}")
    shared = query.shape[1] % key.shape[1] == 0
    require_shape(op, "query", query, shared, f"its heads are no multiple of the {key.shape[1]} heads of key")
    scale = query.shape[3] ** -0.5 if scale is None else scale
    left, right = window
    for option, setting, holds, rule in (
        ("scale", scale, scale > 0, "it has to be positive"),
        ("window", window, min(left, right) >= -1, "its limits are numbers of keys, or -1 for none"),
    ):
        if not holds:
            raise UnsupportedOptionError(op=op, option=option, value=setting, rule=rule)
    if causal:
        right = 0 if right < 0 else min(right, 0)
    result, logarithms = _flash_attention(query, key, value, scale, left, right, offset)
    return (result, logarithms) if return_logarithms else result


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    query, key, value, *ctx.options = inputs
    ctx.save_for_backward(query, key, value, *output)


def _backward(ctx: Any, gradient: torch.Tensor, dlogarithms: torch.Tensor) -> tuple[Any, ...]:
    gradients = _flash_attention_backward(*ctx.saved_tensors, gradient, dlogarithms, *ctx.options)
    return (*gradients, None, None, None, None)


_flash_attention.register_autograd(_backward, setup_context=_setup)


@route("scaled_dot_product_attention", F.scaled_dot_product_attention)
def _route(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    if attn_mask is not None or dropout_p != 0.0 or not supported(query, key, value):
        return NotImplemented
    if (scale is not None and scale <= 0) or max(query.shape[-1], value.shape[-1]) > PARTITIONS:
        return NotImplemented
    if not query.dim() == key.dim() == value.dim() == 4 or key.shape[:3] != value.shape[:3]:
        return NotImplemented
    if query.shape[0] != key.shape[0] or query.shape[3] != key.shape[3]:
        return NotImplemented
    if query.shape[1] % key.shape[1] != 0 or (query.shape[1] != key.shape[1] and not enable_gqa):
        return NotImplemented
    return flash_attention(query, key, value, scale=scale, causal=is_causal)
