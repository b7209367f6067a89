"""Which ops are taken apart before a graph becomes a program.

What kernels can compute goes to pieces that they fuse; what a library does well (matrix products, convolutions,
pooling, attention, sorting) stays whole. User code may add its own with :func:`register_decomposition`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._decomp import _core_aten_decompositions_post_autograd, decomposition_table, get_decompositions
from torch.utils._python_dispatch import _disable_current_modes

__all__ = ["decompositions", "register_decomposition"]

aten = torch.ops.aten

# Beyond PyTorch's table for the core ATen opset.
_MORE: Sequence[Any] = [
    aten._softmax,
    aten._log_softmax,
    aten._softmax_backward_data,
    aten._log_softmax_backward_data,
    aten.gelu,
    aten.gelu_backward,
    aten.silu,
    aten.silu_backward,
    aten.elu,
    aten.elu_backward,
    aten.leaky_relu,
    aten.leaky_relu_backward,
    aten.hardtanh,
    aten.hardtanh_backward,
    aten.hardswish,
    aten.hardswish_backward,
    aten.hardsigmoid,
    aten.hardsigmoid_backward,
    aten.mish,
    aten.mish_backward,
    aten.softplus,
    aten.softplus_backward,
    aten.sigmoid_backward,
    aten.tanh_backward,
    aten.threshold_backward,
    aten.native_layer_norm,
    aten.native_layer_norm_backward,
    aten.native_group_norm,
    aten.native_group_norm_backward,
    aten.native_batch_norm,
    aten.native_batch_norm_backward,
    aten._native_batch_norm_legit,
    aten._native_batch_norm_legit_no_training,
    aten._native_batch_norm_legit.no_stats,
    aten._native_batch_norm_legit_functional,
    aten._batch_norm_with_update,
    aten._batch_norm_with_update_functional,
    aten._batch_norm_no_update,
    aten.batch_norm_backward,
    aten._fused_rms_norm,
    aten._fused_rms_norm_backward,
    aten.rms_norm,
    aten.std,
    aten.std_mean,
    aten.logsumexp,
    aten.square,
    aten.mse_loss,
    aten.mse_loss_backward,
    aten.masked_fill,
    aten.addcmul,
    aten.addcdiv,
    aten.lerp,
    aten.logit,
    aten.isposinf,
    aten.isneginf,
    aten.celu,
    aten.selu,
    aten.glu,
    aten.glu_backward,
    aten.l1_loss,
    aten.smooth_l1_loss,
    aten.smooth_l1_loss_backward,
    aten.huber_loss,
    aten.huber_loss_backward,
    aten.binary_cross_entropy,
    aten.binary_cross_entropy_backward,
    aten.binary_cross_entropy_with_logits,
    aten.select_backward,
    aten.slice_backward,
    aten.linalg_vector_norm,
    aten.frac,
    aten.special_entr,
    aten.special_log_ndtr,
    aten.xlogy,
]

# Left whole: the library's kernel is better than the pieces, or the pieces would draw other random numbers.
_WHOLE: Sequence[Any] = [
    aten.var,
    aten.var_mean,
    aten.embedding_dense_backward,
    aten.convolution_backward,
    aten.upsample_bilinear2d,
    aten.upsample_nearest2d,
    aten.upsample_bicubic2d,
    aten._upsample_bilinear2d_aa,
    aten.grid_sampler_2d,
    aten.avg_pool2d_backward,
    aten.max_pool2d_with_indices_backward,
    aten.native_dropout,
    aten.bernoulli,
    aten.uniform,
    aten.normal,
    aten.rand,
    aten.randn,
    aten.randint,
    aten.multinomial,
    aten.baddbmm,
    aten.addmv,
    aten.addr,
    aten.dot,
    aten.mv,
    aten.col2im,
    aten.im2col,
    aten.index_add,
    aten.index_copy,
    aten.index_add_,
    aten.roll,
    aten.rrelu_with_noise,
    aten.rrelu_with_noise_functional,
    aten._embedding_bag,
    aten.split_with_sizes,
    aten.split,
    aten.unbind,
    aten.narrow_copy,
    aten.cumsum,
    aten.cumprod,
    aten.searchsorted,
    aten.bucketize,
    aten.take,
    aten._scaled_dot_product_flash_attention_for_cpu,
]

_own: dict[Any, Callable[..., Any]] = {}


def _overloads(op: Any) -> list[Any]:
    return [getattr(op, name) for name in op.overloads()] if hasattr(op, "overloads") else [op]


def register_decomposition(ops: Sequence[Any] | Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: graphs compiled from now on contain what the function does instead of `ops`.

    Args:
        ops: overloads or packets of `torch.ops`, one or several.

    Raises:
        ValueError: one of them has been registered here before.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for op in ops if isinstance(ops, (list, tuple)) else [ops]:
            for overload in _overloads(op):
                if overload in _own:
                    raise ValueError(f"{overload} has a decomposition already")
                _own[overload] = function
        decompositions.cache_clear()
        return function

    return register


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """The table for AOTAutograd."""
    table = dict(_core_aten_decompositions_post_autograd())
    table.update(get_decompositions([op for op in _MORE if any(o in decomposition_table for o in _overloads(op))]))
    for op in _WHOLE:
        for overload in _overloads(op):
            table.pop(overload, None)
    table.update(_own)
    return table


# -- Our own -----------------------------------------------------------------------------------------------------------


@register_decomposition(aten.native_dropout.default)
def _native_dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """As eager mode computes it for this device: the same random numbers, the same rounding."""
    if not x.is_contiguous():
        return NotImplemented  # it draws in the order of memory, and `bernoulli` in that of the elements
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        return torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
    mask = torch.ops.aten.bernoulli.p(torch.empty_like(x, dtype=torch.bool), 1 - p)
    return x * torch.where(mask, _scale_of_kept(x.dtype, p), 0.0).to(x.dtype), mask


def _scale_of_kept(dtype: torch.dtype, p: float) -> float:
    """1 / (1 - p) as `noise.div_(1 - p)` gives it."""
    if dtype == torch.float64:
        return 1 / (1 - p)
    with _disable_current_modes():  # a number, not a part of the graph
        return torch.tensor(float(np.float32(1) / np.float32(1 - p))).to(dtype).item()


@register_decomposition(aten.native_dropout_backward.default)
def _native_dropout_backward(grad: Tensor, mask: Tensor, scale: float) -> Tensor:
    if not grad.dtype.is_floating_point:
        return grad * mask * scale
    factor = 0.0 if scale == 0 else _scale_of_kept(grad.dtype, 1 - 1 / scale)
    return grad * torch.where(mask, factor, 0.0).to(grad.dtype)


@register_decomposition(aten.nll_loss_backward.default)
def _nll_loss_backward(
    grad: Tensor,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor:
    """Without a scatter: each element asks whether it is its row's target."""
    classes = x.shape[-1]
    rows = target.unsqueeze(-1)
    hit = rows == torch.arange(classes, device=x.device)
    hit = hit & (rows != ignore_index)
    if reduction == 1:  # mean
        grad = grad / total_weight
    if grad.ndim and x.ndim > 1:
        grad = grad.unsqueeze(-1)
    value = -grad if weight is None else -grad * weight
    return torch.where(hit, value, 0.0).to(x.dtype)
