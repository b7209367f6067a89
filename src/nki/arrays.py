"""Arrays of the host's frameworks as kernels take and give them: NumPy, PyTorch on the CPU, JAX.

A kernel works on NumPy arrays that own or share the bytes of what the caller gave. Frameworks are recognised by their
classes, and imported only by whoever passes their arrays.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from .element_types import DType, of

__all__ = ["copied", "dtype_of", "from_numpy", "is_array", "on_host", "to_numpy"]


def _torch() -> Any:
    return sys.modules.get("torch")


def _is_torch(value: Any) -> bool:
    torch = _torch()
    return torch is not None and isinstance(value, torch.Tensor)


def _is_jax(value: Any) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.Array)


def is_array(value: Any) -> bool:
    """Whether a kernel takes `value` as a tensor; anything else is known when it is traced."""
    return isinstance(value, np.ndarray) or _is_torch(value) or _is_jax(value)


def on_host(value: Any) -> bool:
    """Whether the array is nothing but bytes that NumPy can have: not on a device, no stand-in of a tracer, not sparse,
    and no tensor that wants a gradient, which only its framework can tell that there is none."""
    if not _is_torch(value):
        return True
    torch = _torch()
    plain = type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout == torch.strided
    return plain and value.device.type == "cpu" and not (value.requires_grad and torch.is_grad_enabled())


def copied(value: Any) -> Any:
    """An array of its own memory; anything else as it is."""
    if isinstance(value, np.ndarray):
        return value.copy()
    return value.clone() if _is_torch(value) else value


def dtype_of(value: Any) -> DType:
    return of(value.dtype)


def to_numpy(value: Any) -> np.ndarray[Any, Any]:
    """The bytes of `value` as a NumPy array: shared for NumPy arrays and CPU tensors, copied from JAX."""
    if isinstance(value, np.ndarray):
        return value
    if _is_torch(value):
        return _torch_bytes(value.detach()).numpy().view(of(value.dtype).numpy).reshape(value.shape)
    return np.asarray(value)


def _torch_bytes(tensor: Any) -> Any:
    """`tensor` as integers of its size, which NumPy can have whatever the type; strides are kept."""
    torch = _torch()
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(integers[tensor.element_size()])


def from_numpy(array: np.ndarray[Any, Any], like: Any) -> Any:
    """`array` as the framework that `like` comes from has it, without a copy where that is possible."""
    if _is_torch(like):
        torch = _torch()
        integers = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}
        dtype = getattr(torch, str(of(array.dtype)), None)
        if dtype is None:  # float8_e4m3, which torch does not have
            return torch.from_numpy(array.astype(np.float32))
        return torch.from_numpy(array.view(integers[array.itemsize])).view(dtype)
    if _is_jax(like):
        return sys.modules["jax"].numpy.asarray(array)
    return array
