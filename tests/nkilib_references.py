"""What the kernels of nkilib should give, in plain PyTorch on the CPU, in float64 whatever the arguments' type."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

REDUCTIONS = ("none", "mean", "sum")


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> torch.Tensor:
    product = (a.double().T if transpose_a else a.double()) @ (b.double().T if transpose_b else b.double())
    return product if bias is None else product + bias.double()


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x.double(), -1)


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None = None, eps: float = 1e-6) -> torch.Tensor:
    return F.rms_norm(x.double(), x.shape[-1:], None if weight is None else weight.double(), eps)


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None, eps: float = 1e-5
) -> torch.Tensor:
    vectors = (None if v is None else v.double() for v in (weight, bias))
    return F.layer_norm(x.double(), x.shape[-1:], *vectors, eps)


def rope(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, heads_first: bool = False, interleaved: bool = False
) -> torch.Tensor:
    """Pairs as complex numbers, which are turned by a product."""
    pairs = x.double()
    d = pairs.shape[-1]
    pairs = pairs.unflatten(-1, (d // 2, 2)) if interleaved else pairs.unflatten(-1, (2, d // 2)).transpose(-1, -2)
    turn = torch.complex(cos.double(), sin.double())
    turn = turn.unsqueeze(-3 if heads_first else -2)
    turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turn)
    return turned.flatten(-2) if interleaved else turned.transpose(-1, -2).flatten(-2)


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(gate.double()) * up.double()


def swiglu_mlp(
    x: torch.Tensor,
    w_gate: torch.Tensor,
    w_up: torch.Tensor,
    w_down: torch.Tensor,
    hidden: torch.dtype = torch.float64,
) -> torch.Tensor:
    """`hidden` is the type that the hidden values are rounded to."""
    x = x.double()
    return swiglu(x @ w_gate.double(), x @ w_up.double()).to(hidden).double() @ w_down.double()


def cross_entropy(
    logits: torch.Tensor, target: torch.Tensor, ignore_index: int = -100, reduction: str = "mean"
) -> torch.Tensor:
    return F.cross_entropy(logits.double(), target.long(), ignore_index=ignore_index, reduction=reduction)


def gradients(
    function: Callable[..., torch.Tensor], arguments: Sequence[Any], grad: torch.Tensor | None = None
) -> list[torch.Tensor | None]:
    """Gradients in float64 of the arguments that are floating tensors, None for the others."""
    leaves = [
        a.detach().double().requires_grad_() if isinstance(a, torch.Tensor) and a.is_floating_point() else a
        for a in arguments
    ]
    result = function(*leaves)
    result.backward(torch.ones_like(result) if grad is None else grad.double().reshape(result.shape))
    return [leaf.grad if isinstance(leaf, torch.Tensor) and leaf.requires_grad else None for leaf in leaves]
