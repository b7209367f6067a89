"""Matrix products as PyTorch ops: `nkilib.matmul` and `nkilib.linear`."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from torch_neuronx import nki_op

from .arguments import as_rows, require_floats, require_shape, supported
from .matmul import matmul_kernel
from .registry import route

__all__ = ["linear", "matmul"]


@nki_op("nkilib::matmul")
def _matmul(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, transpose_a: bool, transpose_b: bool
) -> torch.Tensor:
    return matmul_kernel(a, b, bias, transpose_a, transpose_b)


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> torch.Tensor:
    """`a @ b + bias`, summed up in fp32 and rounded once. Differentiable.

    Args:
        a: (M, K), or (K, M) with `transpose_a`, which the chip likes better; bf16, fp16 or fp32.
        b: (K, N), or (N, K) with `transpose_b`; the type of `a`.
        bias: (N,), the type of `a`.

    Returns:
        (M, N).

    Raises:
        UnsupportedDtypeError, UnsupportedShapeError: the arguments do not fit each other, or are empty.
    """
    require_floats("matmul", a=a, b=b, bias=bias)
    require_shape("matmul", "a", a, a.dim() == 2, "it has to be a matrix")
    depth = a.shape[0 if transpose_a else 1]
    fits = b.dim() == 2 and b.shape[1 if transpose_b else 0] == depth
    require_shape("matmul", "b", b, fits, f"it has to be a matrix with {depth} elements where the sums run")
    if bias is not None:
        columns = b.shape[0 if transpose_b else 1]
        require_shape("matmul", "bias", bias, bias.shape == (columns,), f"it has to have {columns} elements")
    return _matmul(a, b, bias, transpose_a, transpose_b)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`x @ weight.T + bias` over the last dimension of `x`, as torch.nn.functional.linear.

    Args:
        x: (..., K). weight: (N, K). bias: (N,) or None. As of :func:`matmul`.
    """
    rows = matmul(as_rows(x), weight, bias, transpose_b=True)
    return rows.view(*x.shape[:-1], weight.shape[0])


def _setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    a, b, bias, transpose_a, transpose_b = inputs
    ctx.save_for_backward(a, b)
    ctx.layout = (transpose_a, transpose_b)
    ctx.bias = bias is not None


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    a, b = ctx.saved_tensors
    ta, tb = ctx.layout
    da = db = None
    if ctx.needs_input_grad[0]:
        da = _matmul(b, grad, None, tb, True) if ta else _matmul(grad, b, None, False, not tb)
    if ctx.needs_input_grad[1]:
        db = _matmul(grad, a, None, True, ta) if tb else _matmul(a, grad, None, not ta, False)
    return da, db, grad.sum(0) if ctx.bias and ctx.needs_input_grad[2] else None, None, None


_matmul.register_autograd(_backward, setup_context=_setup)


@route("linear", F.linear, default=False)
def _linear_route(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
    if not supported(input, weight, bias) or input.dim() < 1 or weight.dim() != 2 or input.shape[-1] != weight.shape[1]:
        return NotImplemented
    return linear(input, weight, bias)


@route("matmul", torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, default=False)
def _matmul_route(input: torch.Tensor, other: torch.Tensor, *, out: torch.Tensor | None = None) -> Any:
    if out is not None or input.dim() != 2 or other.dim() != 2 or input.shape[1] != other.shape[0]:
        return NotImplemented
    return matmul(input, other) if supported(input, other) else NotImplemented
