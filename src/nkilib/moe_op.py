"""A layer of experts as a PyTorch op: `nkilib.moe`."""

from __future__ import annotations

from typing import Any

import torch

from torch_neuronx import nki_op

from .arguments import require_floats, require_shape
from .errors import UnsupportedDtypeError
from .moe import MAX_HIDDEN_BYTES, moe_kernel, tokens_that_fit
from .moe_backward import MAX_TOKEN_BYTES, moe_backward_kernel
from .tiling import BANK_COLUMNS, PARTITIONS, spans

__all__ = ["moe"]


@nki_op("nkilib::moe")
def _moe(
    x: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    indices: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    fits = tokens_that_fit(gate.shape[1], gate.shape[2], x.element_size())
    blocks, _ = _sorted(indices, weights, gate.shape[0], _block_size(indices, gate.shape[0], fits))
    return moe_kernel(x, gate, up, down, *blocks)


@nki_op("nkilib::moe_backward")
def _moe_backward(
    x: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    indices: torch.Tensor,
    weights: torch.Tensor,
    dy: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    fits = MAX_TOKEN_BYTES // (2 * len(spans(gate.shape[1], PARTITIONS)) * x.element_size())
    blocks, places = _sorted(indices, weights, gate.shape[0], _block_size(indices, gate.shape[0], fits))
    *gradients, dweights = moe_backward_kernel(x, gate, up, down, *blocks, dy)
    dx, dgate, dup, ddown = (gradient.to(x.dtype) for gradient in gradients)
    return dx, dgate, dup, ddown, dweights.view(-1)[places].view(weights.shape).to(weights.dtype)


def _block_size(indices: torch.Tensor, experts: int, fits: int) -> int:
    """Tokens of a block: as many as an expert gets on average, and as fit on chip."""
    average = indices.numel() // experts
    return max(PARTITIONS, min(average, fits, BANK_COLUMNS) // PARTITIONS * PARTITIONS)


def _sorted(
    indices: torch.Tensor, weights: torch.Tensor, experts: int, size: int
) -> tuple[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]:
    """Pairs of token and expert in blocks of one expert each: tokens, weights, experts and the number of the blocks.

    Also the place of each pair in the blocks. There are as many blocks as there can be at most, whatever the router
    chose: shapes do not depend on values.
    """
    flat = indices.reshape(-1).to(torch.int64)
    pairs, device = flat.numel(), flat.device
    blocks = min((pairs + experts * (size - 1)) // size, pairs)
    ordered, order = torch.sort(flat, stable=True)
    counts = torch.zeros(experts, dtype=torch.int64, device=device).scatter_add(0, flat, torch.ones_like(flat))
    ends = ((counts + size - 1) // size).cumsum(0)  # in blocks
    begins = ends - (counts + size - 1) // size
    numbers = torch.arange(pairs, device=device)
    within = numbers - (counts.cumsum(0) - counts)[ordered]
    places = torch.empty_like(flat).scatter(0, order, begins[ordered] * size + within)
    tokens = torch.full((blocks * size,), -1, dtype=torch.int64, device=device)
    tokens = tokens.scatter(0, places, numbers // indices.shape[1])
    sorted_weights = torch.zeros(blocks * size, dtype=torch.float32, device=device)
    sorted_weights = sorted_weights.scatter(0, places, weights.reshape(-1).float())
    # The expert of block n is the first one whose blocks end after it; of unused blocks, any.
    expert = (numbers[:blocks, None] >= ends[None, :]).sum(1).clamp(max=experts - 1)
    return (
        tokens.view(blocks, size).to(torch.int32),
        sorted_weights.view(blocks, size),
        expert.view(blocks, 1).to(torch.int32),
        ends[-1:].view(1, 1).to(torch.int32),
    ), places


def moe(
    x: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    indices: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    """Each token through the experts that its router chose: the sum of weight * (silu(x @ gate) * (x @ up)) @ down.

    Tokens are sorted by expert on the device, into blocks of one expert; shapes do not depend on what the router chose.

    Args:
        x: (tokens, hidden) of bf16, fp16 or fp32.
        gate, up: (experts, hidden, intermediate), as `x`; `intermediate` elements take at most 64 KiB.
        down: (experts, intermediate, hidden), as `x`.
        indices: (tokens, k) of int32 or int64, experts of each token, none of them twice.
        weights: (tokens, k) of bf16, fp16 or fp32.

    Returns:
        (tokens, hidden) as `x`. Differentiable in all but the indices; the gradient computes hidden values anew.

    Raises:
        UnsupportedDtypeError, UnsupportedShapeError.
    """
    op = "moe"
    require_floats(op, x=x, gate=gate, up=up, down=down)
    require_floats(op, weights=weights)
    if indices.dtype not in (torch.int32, torch.int64):
        raise UnsupportedDtypeError(op=op, operand="indices", dtype=indices.dtype, rule="experts are int32 or int64")
    require_shape(op, "x", x, x.dim() == 2, "it has to be (tokens, hidden)")
    fits = gate.dim() == 3 and gate.shape[1] == x.shape[1]
    require_shape(op, "gate", gate, fits, f"it has to be (experts, {x.shape[1]}, intermediate)")
    limit = MAX_HIDDEN_BYTES // x.element_size()
    require_shape(op, "gate", gate, gate.shape[2] <= limit, f"SBUF has room for {limit} of intermediate")
    require_shape(op, "up", up, up.shape == gate.shape, f"gate has the shape {tuple(gate.shape)}")
    expected = (gate.shape[0], gate.shape[2], gate.shape[1])
    require_shape(op, "down", down, down.shape == expected, f"it has to be {tuple(expected)}, as gate is turned")
    fits = indices.dim() == 2 and indices.shape[0] == x.shape[0]
    require_shape(op, "indices", indices, fits, f"it has to be ({x.shape[0]}, k)")
    require_shape(op, "weights", weights, weights.shape == indices.shape, f"indices has {tuple(indices.shape)}")
    result: torch.Tensor = _moe(x, gate, up, down, indices, weights)
    return result


def _setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, dy: torch.Tensor) -> tuple[Any, ...]:
    *gradients, dweights = _moe_backward(*ctx.saved_tensors, dy)
    return (*gradients, None, dweights)


_moe.register_autograd(_backward, setup_context=_setup)
