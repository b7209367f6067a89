"""SwiGLU as PyTorch ops: `nkilib.swiglu` and `nkilib.swiglu_mlp`."""

from __future__ import annotations

from typing import Any

import torch

from torch_neuronx import nki_op

from .arguments import as_rows, require_floats, require_shape
from .matmul_op import matmul
from .swiglu import MAX_TOKEN_BYTES, swiglu_backward_kernel, swiglu_kernel, swiglu_mlp_kernel

__all__ = ["swiglu", "swiglu_mlp"]


@nki_op("nkilib::swiglu")
def _swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return swiglu_kernel(as_rows(gate), as_rows(up)).view(gate.shape)


@nki_op("nkilib::swiglu_backward")
def _swiglu_backward(gate: torch.Tensor, up: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    dgate, dup = swiglu_backward_kernel(as_rows(gate), as_rows(up), as_rows(grad))
    return dgate.view(gate.shape), dup.view(up.shape)


@nki_op("nkilib::swiglu_mlp")
def _swiglu_mlp(x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor, w_down: torch.Tensor) -> torch.Tensor:
    return swiglu_mlp_kernel(x, w_gate, w_up, w_down)


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up`, in fp32, rounded once. Differentiable.

    Args:
        gate, up: of one shape, with at least one dimension; bf16, fp16 or fp32.

    Raises:
        UnsupportedDtypeError, UnsupportedShapeError.
    """
    require_floats("swiglu", gate=gate, up=up)
    require_shape("swiglu", "gate", gate, gate.dim() > 0, "it has to have a dimension")
    require_shape("swiglu", "up", up, up.shape == gate.shape, f"gate has {tuple(gate.shape)}")
    return _swiglu(gate, up)


def swiglu_mlp(x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor, w_down: torch.Tensor) -> torch.Tensor:
    """`(silu(x @ w_gate) * (x @ w_up)) @ w_down` in one kernel. Differentiable; gate and up are computed again for it.

    Args:
        x: (..., d) of bf16, fp16 or fp32.
        w_gate, w_up: (d, hidden), that is torch.nn.Linear's weights transposed. w_down: (hidden, d_out). As `x`.

    Raises:
        UnsupportedDtypeError.
        UnsupportedShapeError: the shapes do not fit each other, or d + hidden is too large for 128 tokens in SBUF.
    """
    op = "swiglu_mlp"
    require_floats(op, x=x, w_gate=w_gate, w_up=w_up, w_down=w_down)
    require_shape(op, "x", x, x.dim() > 0, "it has to have a dimension")
    fits = w_gate.dim() == 2 and w_gate.shape[0] == x.shape[-1]
    require_shape(op, "w_gate", w_gate, fits, f"it has to be a matrix of {x.shape[-1]} rows, as the last size of x")
    require_shape(op, "w_up", w_up, w_up.shape == w_gate.shape, f"w_gate has {tuple(w_gate.shape)}")
    hidden = w_gate.shape[1]
    fits = w_down.dim() == 2 and w_down.shape[0] == hidden
    require_shape(op, "w_down", w_down, fits, f"it has to be a matrix of {hidden} rows, as w_gate has columns")
    fits = (x.shape[-1] + hidden) * x.element_size() <= MAX_TOKEN_BYTES
    require_shape(op, "w_gate", w_gate, fits, f"both sizes together may have {MAX_TOKEN_BYTES} bytes")
    result: torch.Tensor = _swiglu_mlp(as_rows(x), w_gate, w_up, w_down)
    return result.view(*x.shape[:-1], w_down.shape[1])


def _setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return _swiglu_backward(*ctx.saved_tensors, grad)


def _backward_mlp(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x, w_gate, w_up, w_down = ctx.saved_tensors
    gate, up = matmul(x, w_gate), matmul(x, w_up)
    dgate, dup = _swiglu_backward(gate, up, matmul(grad, w_down, transpose_b=True))
    return (
        matmul(dgate, w_gate, transpose_b=True) + matmul(dup, w_up, transpose_b=True),
        matmul(x, dgate, transpose_a=True),
        matmul(x, dup, transpose_a=True),
        matmul(_swiglu(gate, up), grad, transpose_a=True),
    )


_swiglu.register_autograd(_backward, setup_context=_setup)
_swiglu_mlp.register_autograd(_backward_mlp, setup_context=_setup)
