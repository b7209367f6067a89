"""Element types of tiles: their names, sizes and kinds, and how NumPy and PyTorch spell them.

A type is a string, as kernels expect: `nl.bfloat16 == "bfloat16"`, `str(nl.bfloat16)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np

from .errors import UnknownDtypeError

__all__ = ["TYPES", "DType", "of"]


class DType(str):
    """One element type.

    Attributes:
        itemsize: bytes per element.
        kind: "float", "int", "uint", "bool", or "packed" for the containers of four MX elements.
        numpy: the NumPy type that arrays of it have on the host.
        code: its number in the extension module.
    """

    __slots__ = ("code", "itemsize", "kind", "numpy")
    code: int
    itemsize: int
    kind: str
    numpy: np.dtype[Any]

    def __new__(cls, name: str, code: int, kind: str, numpy: Any) -> DType:
        self = super().__new__(cls, name)
        self.code = code
        self.kind = kind
        self.numpy = np.dtype(numpy)
        self.itemsize = self.numpy.itemsize
        return self

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        """Integers and booleans: what bitwise operators take."""
        return self.kind in ("int", "uint", "bool")

    def __reduce__(self) -> tuple[Any, ...]:
        return of, (str.__str__(self),)


# The order is that of `enum class Type` in csrc/engines/isa/types.h.
_DEFINITIONS = (
    ("float32", "float", np.float32),
    ("bfloat16", "float", ml_dtypes.bfloat16),
    ("float16", "float", np.float16),
    ("tfloat32", "float", np.float32),
    ("float8_e4m3", "float", ml_dtypes.float8_e4m3),
    ("float8_e4m3fn", "float", ml_dtypes.float8_e4m3fn),
    ("float8_e5m2", "float", ml_dtypes.float8_e5m2),
    ("float8_e8m0fnu", "float", ml_dtypes.float8_e8m0fnu),
    ("int8", "int", np.int8),
    ("uint8", "uint", np.uint8),
    ("int16", "int", np.int16),
    ("uint16", "uint", np.uint16),
    ("int32", "int", np.int32),
    ("uint32", "uint", np.uint32),
    ("bool", "bool", np.bool_),
    ("int64", "int", np.int64),
    ("uint64", "uint", np.uint64),
    ("float8_e4m3fn_x4", "packed", np.uint32),
    ("float8_e5m2_x4", "packed", np.uint32),
    ("float4_e2m1fn_x4", "packed", np.uint16),
)

TYPES: Mapping[str, DType] = MappingProxyType(
    {name: DType(name, code, kind, numpy) for code, (name, kind, numpy) in enumerate(_DEFINITIONS)}
)

# Types that share their NumPy type with another one are not what an array of it becomes.
_OF_NUMPY = {t.numpy: t for t in reversed(list(TYPES.values())) if t.kind != "packed" and t != "tfloat32"}
_ALIASES = {"bool_": "bool", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


_found: dict[Any, DType] = {}


def of(dtype: Any) -> DType:
    """The element type that `dtype` names: one of ours, its name, a NumPy or ml_dtypes type, or a torch dtype.

    Raises:
        UnknownDtypeError: no engine computes with such a type.
    """
    if type(dtype) is DType:
        return dtype
    try:
        return _found[dtype]
    except TypeError:  # nothing that can be a key is a type
        raise UnknownDtypeError(dtype=dtype, known=", ".join(TYPES)) from None
    except KeyError:
        found = _found[dtype] = _look_up(dtype)
        return found


def _look_up(dtype: Any) -> DType:
    if isinstance(dtype, str):
        found = TYPES.get(_ALIASES.get(dtype, dtype))
        if found is not None:
            return found
    text = str(dtype)
    if text.startswith("torch."):
        return of(text.removeprefix("torch."))
    try:
        found = _OF_NUMPY.get(np.dtype(dtype))
    except TypeError:
        found = None
    if found is None:
        raise UnknownDtypeError(dtype=dtype, known=", ".join(TYPES))
    return found
