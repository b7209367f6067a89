"""Cross entropy as a PyTorch op: `nkilib.cross_entropy`."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from torch_neuronx import nki_op

from .arguments import require_floats, require_shape, supported
from .cross_entropy import MAX_CLASSES, cross_entropy_backward_kernel, cross_entropy_kernel
from .errors import UnsupportedDtypeError
from .registry import route

__all__ = ["cross_entropy"]

_REDUCTIONS = ("none", "mean", "sum")


@nki_op("nkilib::cross_entropy")
def _cross_entropy(
    logits: torch.Tensor, target: torch.Tensor, ignore_index: int, reduction: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return cross_entropy_kernel(logits, target.to(torch.int32), ignore_index, reduction)


@nki_op("nkilib::cross_entropy_backward")
def _cross_entropy_backward(
    logits: torch.Tensor,
    target: torch.Tensor,
    lse: torch.Tensor,
    count: torch.Tensor,
    grad: torch.Tensor,
    ignore_index: int,
    reduction: str,
) -> torch.Tensor:
    return cross_entropy_backward_kernel(
        logits, target.to(torch.int32), lse, count, grad, ignore_index, reduction
    )  # fmt: skip


def cross_entropy(
    logits: torch.Tensor, target: torch.Tensor, *, ignore_index: int = -100, reduction: str = "mean"
) -> torch.Tensor:
    """Cross entropy of logits and class numbers, in fp32. Differentiable in `logits`.

    Args:
        logits: (rows, classes) of bf16, fp16 or fp32; up to MAX_CLASSES classes.
        target: (rows,) of int32 or int64: classes, or `ignore_index` for rows that do not count. A class that does not
            exist is an error when the kernel runs.
        reduction: "none", "sum", or "mean" over the rows that count.

    Returns:
        fp32: (rows,) for "none", a scalar otherwise.

    Raises:
        UnsupportedDtypeError, UnsupportedShapeError.
    """
    op = "cross_entropy"
    require_floats(op, logits=logits)
    fits = logits.dim() == 2 and logits.shape[1] <= MAX_CLASSES
    require_shape(op, "logits", logits, fits, f"it has to be a matrix of up to {MAX_CLASSES} columns")
    require_shape(op, "target", target, target.shape == logits.shape[:1], "it has to have one class for each row")
    if target.dtype not in (torch.int32, torch.int64):
        raise UnsupportedDtypeError(op=op, operand="target", dtype=target.dtype, rule="classes are int32 or int64")
    loss: torch.Tensor = _cross_entropy(logits, target, ignore_index, reduction)[0]
    return loss if reduction == "none" else loss.view(())


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    logits, target, *ctx.options = inputs
    ctx.save_for_backward(logits, target, *output[1:])


def _backward(ctx: Any, grad: torch.Tensor, *unused: Any) -> tuple[Any, ...]:
    return _cross_entropy_backward(*ctx.saved_tensors, grad, *ctx.options), None, None, None


_cross_entropy.register_autograd(_backward, setup_context=_setup)


@route("cross_entropy", F.cross_entropy)
def _route(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    plain = weight is None and size_average is None and reduce is None and label_smoothing == 0.0
    classes = target.dtype == torch.int64 and target.device == input.device
    if not (plain and classes and supported(input) and reduction in _REDUCTIONS and target.numel() > 0):
        return NotImplemented
    if input.dim() < 2 or target.shape != (input.shape[0], *input.shape[2:]) or input.shape[1] > MAX_CLASSES:
        return NotImplemented
    rows = input.movedim(1, -1).reshape(-1, input.shape[1])
    loss = cross_entropy(rows, target.reshape(-1), ignore_index=ignore_index, reduction=reduction)
    return (loss.view(target.shape) if reduction == "none" else loss).to(input.dtype)
