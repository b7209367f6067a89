"""What models and optimizers spell out in primitive ops, on tensors of 4 Mi float32 elements (16 MiB)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

ELEMENTS = 1 << 22
ROW = 1024

# Tensor arguments in, results out; arguments that are changed in place are among the results.
Function = Callable[..., tuple[Tensor, ...]]


def multiply_add_chain(x: Tensor) -> tuple[Tensor, ...]:
    """19 ops whose time is all memory traffic."""
    y = x * 2
    for _ in range(9):
        y = y * 1.01 + 0.1
    return (y,)


def rms_norm(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """As Llama spells it."""
    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight,)


def swiglu(gate: Tensor, up: Tensor) -> tuple[Tensor, ...]:
    return (F.silu(gate) * up,)


def tanh_gelu(x: Tensor) -> tuple[Tensor, ...]:
    """GPT-2's, in primitive ops."""
    return (0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3.0)))),)


def rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    """Halves rotated against each other, as in Hugging Face's models."""
    half = x.shape[-1] // 2
    rotated = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return (x * cos + rotated * sin,)


def masked_softmax(scores: Tensor, future: Tensor) -> tuple[Tensor, ...]:
    """Attention probabilities, causal."""
    return ((scores * 0.125).masked_fill(future, float("-inf")).softmax(-1),)


def adam(weight: Tensor, grad: Tensor, mean: Tensor, square: Tensor) -> tuple[Tensor, ...]:
    """One step of one parameter."""
    mean.mul_(0.9).add_(grad, alpha=0.1)
    square.mul_(0.999).addcmul_(grad, grad, value=0.001)
    denominator = (square.sqrt() / 0.0316).add_(1e-8)
    weight.addcdiv_(mean, denominator, value=-1e-4)
    return weight, mean, square


@dataclass(frozen=True)
class Pointwise:
    """A function, its arguments on the CPU, and the bound on its ratio to CPU eager."""

    name: str
    function: Function
    arguments: Callable[[], tuple[Tensor, ...]]
    bound: float


def _draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def _rows() -> Tensor:
    return _draw(ELEMENTS // ROW, ROW)


def _heads() -> tuple[Tensor, ...]:
    angles = torch.outer(torch.arange(1024.0), 10_000.0 ** -(torch.arange(0, 128, 2) / 128)).repeat(1, 2)
    return _draw(2, 16, 1024, 128), angles.cos(), angles.sin()


def _scores() -> tuple[Tensor, ...]:
    return _draw(1, 16, 512, 512), torch.ones(512, 512, dtype=torch.bool).triu(1)


CHAIN = Pointwise("multiply-add chain, 19 ops", multiply_add_chain, lambda: (_draw(ELEMENTS),), bound=0.08)
COMPOSED = (
    Pointwise("RMSNorm", rms_norm, lambda: (_rows(), _draw(ROW)), bound=0.4),
    Pointwise("SwiGLU", swiglu, lambda: (_rows(), _rows().flip(0)), bound=0.4),
    Pointwise("tanh-GELU", tanh_gelu, lambda: (_rows(),), bound=0.4),
    Pointwise("rotary embedding", rotary_embedding, _heads, bound=0.4),
    Pointwise("masked softmax", masked_softmax, _scores, bound=0.4),
    Pointwise("Adam", adam, lambda: (_rows(), _rows().flip(0), _rows() * 0.1, _rows().square()), bound=0.4),
)
COMPOSED_MEAN_BOUND = 0.3
