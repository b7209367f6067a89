"""The largest elements as a PyTorch op: `nkilib.topk`."""

from __future__ import annotations

from typing import Any

import torch

from torch_neuronx import nki_op

from .arguments import as_rows, require_floats, require_shape
from .errors import UnsupportedOptionError
from .topk import LARGEST_K, topk_kernel

__all__ = ["topk"]


@nki_op("nkilib::topk")
def _topk(x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    values, places = topk_kernel(as_rows(x), k)
    return values.view(*x.shape[:-1], k), places.view(*x.shape[:-1], k).to(torch.int64)


def topk(x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k largest elements along the last dimension, in descending order. Differentiable.

    Args:
        x: (..., n) of bf16, fp16 or fp32, without NaN; elements above -inf where their places matter.
        k: 1 to min(n, LARGEST_K).

    Returns:
        Values (..., k) as `x`, and places (..., k) in int64. Of equal elements the first comes first.

    Raises:
        UnsupportedDtypeError, UnsupportedShapeError, UnsupportedOptionError.
    """
    require_floats("topk", x=x)
    require_shape("topk", "x", x, x.dim() > 0, "it has to have a dimension")
    if not 1 <= k <= min(x.shape[-1], LARGEST_K):
        rule = f"it has to lie between 1 and {min(x.shape[-1], LARGEST_K)}"
        raise UnsupportedOptionError(op="topk", option="k", value=k, rule=rule)
    values, places = _topk(x, k)
    return values, places


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    ctx.save_for_backward(output[1])
    ctx.shape = inputs[0].shape


def _backward(ctx: Any, gradient: torch.Tensor, unused: Any) -> tuple[Any, ...]:
    (places,) = ctx.saved_tensors
    return gradient.new_zeros(ctx.shape).scatter(-1, places, gradient), None


_topk.register_autograd(_backward, setup_context=_setup)
