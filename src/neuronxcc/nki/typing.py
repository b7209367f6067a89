"""Annotations of the Beta 1 dialect: `tile: tensor[128, 512] = nl.load(x)`. They say something to readers only."""

from __future__ import annotations

from typing import Any

__all__ = ["mutable_tensor", "scalar", "tensor"]


class _Annotation:
    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getitem__(self, shape: Any) -> _Annotation:
        return self

    def __call__(self, *_: Any, **__: Any) -> _Annotation:
        return self

    def __repr__(self) -> str:
        return f"nki.typing.{self.__name__}"


tensor = _Annotation("tensor")
mutable_tensor = _Annotation("mutable_tensor")
scalar = _Annotation("scalar")
