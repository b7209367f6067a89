"""Running sums as a PyTorch op: `nkilib.cumsum`."""

from __future__ import annotations

from typing import Any

import torch

from torch_neuronx import nki_op

from .arguments import as_rows, require_floats, require_shape
from .cumsum import cumsum_columns_kernel, cumsum_rows_kernel

__all__ = ["cumsum"]


@nki_op("nkilib::cumsum")
def _cumsum(x: torch.Tensor, along_rows: bool, reverse: bool) -> torch.Tensor:
    if along_rows:
        return cumsum_rows_kernel(x.reshape(x.shape[0], -1), reverse).view(x.shape)
    return cumsum_columns_kernel(as_rows(x), reverse).view(x.shape)


def cumsum(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """Running sums along `dim`, in fp32, each rounded once. Differentiable.

    Args:
        x: bf16, fp16 or fp32, of at least one dimension. The first of several dimensions is summed over by the Tensor
            engine, and only of finite elements; the last one by scans. Along any other, `x` is copied.

    Raises:
        UnsupportedDtypeError, UnsupportedShapeError.
    """
    require_floats("cumsum", x=x)
    require_shape("cumsum", "x", x, x.dim() > 0, "it has to have a dimension")
    if dim in (-1, x.dim() - 1):
        return _cumsum(x, False, False)
    if dim in (0, -x.dim()):
        return _cumsum(x, True, False)
    return _cumsum(x.movedim(dim, -1), False, False).movedim(-1, dim)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    _, ctx.along_rows, ctx.reverse = inputs


def _backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    return _cumsum(gradient, ctx.along_rows, not ctx.reverse), None, None


_cumsum.register_autograd(_backward, setup_context=_setup)
