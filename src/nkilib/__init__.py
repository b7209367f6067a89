"""Kernels for transformers, written in NKI, as PyTorch ops.

    import nkilib

    y = nkilib.rms_norm(x, weight)      # tensors of the device or of the CPU; differentiable; one node in compiled code
    with nkilib.enable():               # PyTorch's own functions on tensors of the device go to the kernels
        loss = model(batch).loss

Kernels stand in `nkilib.<family>` (functions under `nki.jit`, which nki.check, nki.profile and nki.simulate take), the
ops around them in `nkilib.<family>_op`.
"""

from __future__ import annotations

from .cross_entropy_op import cross_entropy
from .cumsum_op import cumsum
from .enable import Enabled, disable, enable
from .errors import (
    NkilibError,
    UnknownRouteError,
    UnsupportedDtypeError,
    UnsupportedOptionError,
    UnsupportedShapeError,
)
from .flash_attention_op import flash_attention
from .mamba_op import selective_scan
from .matmul_op import linear, matmul
from .moe_op import moe
from .norms_op import layer_norm, rms_norm
from .registry import routes
from .rope_op import rope
from .softmax_op import softmax
from .swiglu_op import swiglu, swiglu_mlp
from .topk_op import topk

__all__ = [
    "Enabled",
    "NkilibError",
    "UnknownRouteError",
    "UnsupportedDtypeError",
    "UnsupportedOptionError",
    "UnsupportedShapeError",
    "cross_entropy",
    "cumsum",
    "disable",
    "enable",
    "flash_attention",
    "layer_norm",
    "linear",
    "matmul",
    "moe",
    "rms_norm",
    "rope",
    "routes",
    "selective_scan",
    "softmax",
    "swiglu",
    "swiglu_mlp",
    "topk",
]
