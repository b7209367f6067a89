"""The selective scan as a PyTorch op: `nkilib.selective_scan`."""

from __future__ import annotations

from typing import Any

import torch

from torch_neuronx import nki_op

from .arguments import require_floats, require_shape
from .mamba import selective_scan_kernel
from .mamba_backward import selective_scan_backward_kernel
from .tiling import PARTITIONS

__all__ = ["selective_scan"]


@nki_op("nkilib::selective_scan")
def _selective_scan(
    x: torch.Tensor,
    delta: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    skip: torch.Tensor,
    initial: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return selective_scan_kernel(x, delta, a, b, c, skip, initial)


@nki_op("nkilib::selective_scan_backward")
def _selective_scan_backward(
    x: torch.Tensor,
    delta: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    skip: torch.Tensor,
    begins: torch.Tensor,
    dy: torch.Tensor,
    dlast: torch.Tensor,
) -> tuple[
    torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor
]:  # fmt: skip
    return selective_scan_backward_kernel(x, delta, a, b, c, skip, begins, dy, dlast)


def selective_scan(
    x: torch.Tensor,
    delta: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    skip: torch.Tensor | None = None,
    initial: torch.Tensor | None = None,
    *,
    return_last: bool = False,
) -> Any:
    """h[t] = exp(delta[t] * a) * h[t - 1] + delta[t] * x[t] * b[t]; y[t] = sum of c[t] * h[t], + skip * x[t].

    All is computed in fp32, and differentiable.

    Args:
        x, delta: (batch, channels, time) of bf16, fp16 or fp32.
        a: (channels, states), up to 128 states; as `x`, or fp32.
        b, c: (batch, states, time), as `x`.
        skip: (channels,), as `x`, or fp32; 0 by default.
        initial: (batch, channels, states) in fp32, h before the first step; 0 by default.
        return_last: also h after the last step.

    Returns:
        y as `x`; with `return_last` also (batch, channels, states) in fp32.

    Raises:
        UnsupportedDtypeError, UnsupportedShapeError.
    """
    op = "selective_scan"
    require_floats(op, x=x, delta=delta, b=b, c=c)
    require_shape(op, "x", x, x.dim() == 3, "it has to be (batch, channels, time)")
    batch, channels, time = x.shape
    require_shape(op, "delta", delta, delta.shape == x.shape, f"x has the shape {tuple(x.shape)}")
    fits = a.dim() == 2 and a.shape[0] == channels and a.shape[1] <= PARTITIONS
    require_shape(op, "a", a, fits, f"it has to be ({channels}, states), with at most {PARTITIONS} states")
    require_floats(op, a=a)
    states = a.shape[1]
    for name, operand in (("b", b), ("c", c)):
        fits = operand.shape == (batch, states, time)
        require_shape(op, name, operand, fits, f"it has to be {(batch, states, time)}")
    skip = x.new_zeros(channels) if skip is None else skip
    require_floats(op, skip=skip)
    require_shape(op, "skip", skip, skip.shape == (channels,), f"it has to have {channels} elements")
    if initial is None:
        initial = x.new_zeros((batch, channels, states), dtype=torch.float32)
    require_floats(op, initial=initial)
    fits = initial.shape == (batch, channels, states)
    require_shape(op, "initial", initial, fits, f"it has to be {(batch, channels, states)}")
    y, last, _ = _selective_scan(x, delta, a, b, c, skip.reshape(channels, 1), initial)
    return (y, last) if return_last else y


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:6], output[2])
    ctx.dtype = inputs[6].dtype


def _backward(ctx: Any, dy: torch.Tensor, dlast: torch.Tensor, unused: Any) -> tuple[Any, ...]:
    saved = ctx.saved_tensors
    dx, ddelta, da, db, dc, dskip, dinitial = _selective_scan_backward(*saved, dy, dlast)
    return dx, ddelta, da.to(saved[2].dtype), db, dc, dskip.to(saved[5].dtype), dinitial.to(ctx.dtype)


_selective_scan.register_autograd(_backward, setup_context=_setup)
