"""The type of a result whose type the kernel does not name.

Rules of "NKI Type Promotion" (NKI API common fields, SDK 2.26): a float and an integer give the float; fp16 and bf16
give fp32, the two fp8 types bf16, int32 and uint32 fp32; other integers the smallest type that holds both. Numbers of
Python follow the tile, unless a float meets integers, which gives fp32.
"""

from __future__ import annotations

from typing import Any

from ..element_types import TYPES, DType
from ..tensor import NkiTensor

__all__ = ["promote", "result_type"]

_FLOAT32 = TYPES["float32"]
_BFLOAT16 = TYPES["bfloat16"]
_INTS = {size: (TYPES[f"int{8 * size}"], TYPES[f"uint{8 * size}"]) for size in (1, 2, 4, 8)}


def promote(a: DType, b: DType) -> DType:
    """The type that elements of types `a` and `b` give together."""
    if a == b:
        return a
    if a.is_float and b.is_float:
        if a.itemsize != b.itemsize:
            return a if a.itemsize > b.itemsize else b
        return _BFLOAT16 if a.itemsize == 1 else _FLOAT32
    if a.is_float or b.is_float:
        return a if a.is_float else b
    if a.kind == "bool" or b.kind == "bool":
        return b if a.kind == "bool" else a
    if a.kind == b.kind:
        return a if a.itemsize > b.itemsize else b
    signed, unsigned = (a, b) if a.kind == "int" else (b, a)
    if signed.itemsize > unsigned.itemsize:
        return signed
    return _INTS[2 * unsigned.itemsize][0] if unsigned.itemsize < 4 else _FLOAT32


def result_type(x: Any, y: Any) -> DType:
    """The type of an elementwise result of two operands, one of which at least is a tile."""
    if isinstance(x, NkiTensor) and isinstance(y, NkiTensor):
        return promote(x.dtype, y.dtype)
    tile, number = (x, y) if isinstance(x, NkiTensor) else (y, x)
    dtype: DType = tile.dtype
    if isinstance(number, bool) or dtype.is_float:
        return dtype
    if isinstance(number, int):
        return TYPES["int32"] if dtype.kind == "bool" else dtype
    return _FLOAT32
