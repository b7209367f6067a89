"""Rotary position embedding as a PyTorch op: `nkilib.rope`."""

from __future__ import annotations

from typing import Any

import torch

from torch_neuronx import nki_op

from .arguments import require_floats, require_shape
from .rope import rope_kernel

__all__ = ["rope"]


@nki_op("nkilib::rope")
def _rope(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, heads_first: bool, interleaved: bool, inverse: bool
) -> torch.Tensor:
    return rope_kernel(x, cos, sin, heads_first, interleaved, inverse)


def rope(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, heads_first: bool = False, interleaved: bool = False
) -> torch.Tensor:
    """Turns pairs of each head by the token's angles, in fp32, rounded once. Differentiable in `x`.

    Args:
        x: (batch, tokens, heads, d), or (batch, heads, tokens, d) with `heads_first`; bf16, fp16 or fp32, d even.
        cos, sin: of the angles, (tokens, d / 2) or (batch, tokens, d / 2); fp32 or the type of `x`.
        interleaved: pairs are elements 2 i and 2 i + 1 (as in Llama's own code) instead of i and i + d / 2 (as in
            Hugging Face's).

    Raises:
        UnsupportedDtypeError, UnsupportedShapeError.
    """
    require_floats("rope", x=x)
    require_floats("rope", cos=cos, sin=sin)
    require_shape(
        "rope", "x", x, x.dim() == 4 and x.shape[3] % 2 == 0, "it has to have 4 dimensions, the last one even"
    )
    tokens = (x.shape[2 if heads_first else 1], x.shape[3] // 2)
    for name, angles in (("cos", cos), ("sin", sin)):
        fits = angles.shape in (tokens, (x.shape[0], *tokens))
        require_shape("rope", name, angles, fits, f"it has to be {tokens}, or that for each of the batch")
    return _rope(x, cos, sin, heads_first, interleaved, False)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    _, cos, sin, *ctx.options = inputs
    ctx.save_for_backward(cos, sin)


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    cos, sin = ctx.saved_tensors
    heads_first, interleaved, inverse = ctx.options
    return _rope(grad, cos, sin, heads_first, interleaved, not inverse), None, None, None, None, None


_rope.register_autograd(_backward, setup_context=_setup)
