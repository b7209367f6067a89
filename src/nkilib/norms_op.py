"""Norms as PyTorch ops: `nkilib.rms_norm` and `nkilib.layer_norm`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional as F

from torch_neuronx import nki_op

from .arguments import as_rows, require_floats, require_shape, supported
from .norms import (
    MAX_ROW_BYTES,
    layer_norm_backward_kernel,
    layer_norm_kernel,
    rms_norm_backward_kernel,
    rms_norm_kernel,
)
from .registry import route

__all__ = ["layer_norm", "rms_norm"]


@nki_op("nkilib::rms_norm")
def _rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    y, rstd = rms_norm_kernel(as_rows(x), weight, eps)
    return y.view(x.shape), rstd


@nki_op("nkilib::rms_norm_backward")
def _rms_norm_backward(
    x: torch.Tensor, weight: torch.Tensor | None, rstd: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    dx, dweight = rms_norm_backward_kernel(as_rows(x), weight, rstd, as_rows(grad))
    return dx.view(x.shape), dweight


@nki_op("nkilib::layer_norm")
def _layer_norm(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    y, mean, rstd = layer_norm_kernel(as_rows(x), weight, bias, eps)
    return y.view(x.shape), mean, rstd


@nki_op("nkilib::layer_norm_backward")
def _layer_norm_backward(
    x: torch.Tensor, weight: torch.Tensor | None, mean: torch.Tensor, rstd: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    dx, dweight, dbias = layer_norm_backward_kernel(as_rows(x), weight, mean, rstd, as_rows(grad))
    return dx.view(x.shape), dweight, dbias


def _check(op: str, x: torch.Tensor, **vectors: torch.Tensor | None) -> None:
    require_floats(op, x=x, **vectors)
    require_shape(op, "x", x, x.dim() > 0, "it has to have a dimension")
    size = x.shape[-1] * x.element_size()
    require_shape(op, "x", x, size <= MAX_ROW_BYTES, f"SBUF has room for rows of {MAX_ROW_BYTES} bytes")
    for name, vector in vectors.items():
        if vector is not None:
            fits = vector.shape == x.shape[-1:]
            require_shape(op, name, vector, fits, f"it has to have {x.shape[-1]} elements, as the rows of x")


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None = None, eps: float = 1e-6) -> torch.Tensor:
    """`x / sqrt(mean(x**2) + eps) * weight` over the last dimension, in fp32, rounded once. Differentiable.

    Args:
        x: (..., d) of bf16, fp16 or fp32; d elements take at most MAX_ROW_BYTES.
        weight: (d,), the type of `x`, or None.

    Raises:
        UnsupportedDtypeError, UnsupportedShapeError.
    """
    _check("rms_norm", x, weight=weight)
    result: torch.Tensor = _rms_norm(x, weight, eps)[0]
    return result


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None, eps: float = 1e-5
) -> torch.Tensor:
    """`(x - mean) / sqrt(variance + eps) * weight + bias` over the last dimension, in fp32. Differentiable.

    Args:
        x: (..., d) of bf16, fp16 or fp32; d elements take at most MAX_ROW_BYTES.
        weight, bias: (d,), the type of `x`, or None.

    Raises:
        UnsupportedDtypeError, UnsupportedShapeError.
    """
    _check("layer_norm", x, weight=weight, bias=bias)
    result: torch.Tensor = _layer_norm(x, weight, bias, eps)[0]
    return result


def _setup_rms(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    x, weight, _ = inputs
    ctx.save_for_backward(x, weight, output[1])


def _backward_rms(ctx: Any, grad: torch.Tensor, grad_rstd: Any) -> tuple[Any, ...]:
    x, weight, rstd = ctx.saved_tensors
    dx, dweight = _rms_norm_backward(x, weight, rstd, grad)
    return dx, None if weight is None else dweight.to(weight.dtype), None


def _setup_layer(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    x, weight, bias, _ = inputs
    ctx.save_for_backward(x, weight, *output[1:])
    ctx.bias = bias is not None


def _backward_layer(ctx: Any, grad: torch.Tensor, *unused: Any) -> tuple[Any, ...]:
    x, weight, mean, rstd = ctx.saved_tensors
    dx, dweight, dbias = _layer_norm_backward(x, weight, mean, rstd, grad)
    return (
        dx,
        None if weight is None else dweight.to(x.dtype),
        dbias.to(x.dtype) if ctx.bias else None,
        None,
    )


_rms_norm.register_autograd(_backward_rms, setup_context=_setup_rms)
_layer_norm.register_autograd(_backward_layer, setup_context=_setup_layer)


def _routable(x: torch.Tensor, shape: Sequence[int], *vectors: torch.Tensor | None) -> bool:
    return (
        supported(x, *vectors)
        and x.dim() > 0
        and tuple(shape) == x.shape[-1:]
        and x.shape[-1] * x.element_size() <= MAX_ROW_BYTES
        and all(v is None or v.shape == x.shape[-1:] for v in vectors)
    )


@route("rms_norm", F.rms_norm, torch.rms_norm)
def _rms_norm_route(
    input: torch.Tensor, normalized_shape: Sequence[int], weight: torch.Tensor | None = None, eps: float | None = None
) -> Any:
    if not _routable(input, normalized_shape, weight):
        return NotImplemented
    return rms_norm(input, weight, torch.finfo(input.dtype).eps if eps is None else eps)


@route("layer_norm", F.layer_norm)
def _layer_norm_route(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    if not _routable(input, normalized_shape, weight, bias):
        return NotImplemented
    return layer_norm(input, weight, bias, eps)
