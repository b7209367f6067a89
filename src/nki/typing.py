"""Annotations for the tensor arguments of kernels: `x: nt.tensor[128, 512]`, `y: nt.mutable_tensor`.

They say what a reader should expect; nothing checks them.
"""

from __future__ import annotations

from typing import Any

from .tensor import NkiTensor

__all__ = ["TensorAnnotation", "mutable_tensor", "tensor"]


class TensorAnnotation:
    """A tensor argument, with a shape or without.

    Attributes:
        shape: sizes, names or None for any; () where nothing is said.
        mutable: the kernel writes it.
    """

    __slots__ = ("mutable", "shape")

    def __init__(self, shape: tuple[Any, ...] = (), mutable: bool = False) -> None:
        self.shape = shape
        self.mutable = mutable

    def __getitem__(self, shape: Any) -> TensorAnnotation:
        return TensorAnnotation(shape if isinstance(shape, tuple) else (shape,), self.mutable)

    def __call__(self, *_: Any) -> NkiTensor:
        raise TypeError("nki.typing describes tensors; nl.ndarray makes them")

    def __or__(self, other: Any) -> Any:
        return self if other is None else NotImplemented

    __ror__ = __or__

    def __repr__(self) -> str:
        name = "mutable_tensor" if self.mutable else "tensor"
        return f"nki.typing.{name}{list(self.shape) if self.shape else ''}"


tensor = TensorAnnotation()
mutable_tensor = TensorAnnotation(mutable=True)
