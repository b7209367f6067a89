"""Softmax as a PyTorch op: `nkilib.softmax`."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from torch_neuronx import nki_op

from .arguments import as_rows, require_floats, require_shape, supported
from .registry import route
from .softmax import softmax_backward_kernel, softmax_kernel

__all__ = ["softmax"]


@nki_op("nkilib::softmax")
def _softmax(x: torch.Tensor) -> torch.Tensor:
    return softmax_kernel(as_rows(x)).view(x.shape)


@nki_op("nkilib::softmax_backward")
def _softmax_backward(y: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    return softmax_backward_kernel(as_rows(y), as_rows(grad)).view(y.shape)


def softmax(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """`exp(x) / sum(exp(x))` along `dim`, in fp32, rounded once. Differentiable.

    Args:
        x: bf16, fp16 or fp32, of at least one dimension. Along any other dimension than the last one, it is copied.

    Raises:
        UnsupportedDtypeError, UnsupportedShapeError.
    """
    require_floats("softmax", x=x)
    require_shape("softmax", "x", x, x.dim() > 0, "it has to have a dimension")
    if dim in (-1, x.dim() - 1):
        return _softmax(x)
    return _softmax(x.movedim(dim, -1)).movedim(-1, dim)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(output)


def _backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    return _softmax_backward(ctx.saved_tensors[0], grad)


_softmax.register_autograd(_backward, setup_context=_setup)


@route("softmax", F.softmax)
def _functional_route(
    input: torch.Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None
) -> Any:
    if dim is None or not supported(input) or input.dim() == 0 or dtype not in (None, input.dtype):
        return NotImplemented
    return softmax(input, dim)


@route("softmax", torch.softmax, torch.Tensor.softmax)
def _method_route(
    input: torch.Tensor, dim: Any, dtype: torch.dtype | None = None, *, out: torch.Tensor | None = None
) -> Any:
    return NotImplemented if out is not None or not isinstance(dim, int) else _functional_route(input, dim, 3, dtype)
