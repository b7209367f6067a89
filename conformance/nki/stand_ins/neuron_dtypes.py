"""What the tests of nki-library use of a package that is not public: conversions of arrays between element types."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from nki.element_types import of

bfloat16 = np.dtype(ml_dtypes.bfloat16)
float8_e4m3 = np.dtype(ml_dtypes.float8_e4m3)
float8_e4m3fn = np.dtype(ml_dtypes.float8_e4m3fn)
float8_e5m2 = np.dtype(ml_dtypes.float8_e5m2)
float8_e4m3fn_x4 = of("float8_e4m3fn_x4")
float8_e5m2_x4 = of("float8_e5m2_x4")
float4_e2m1fn_x4 = of("float4_e2m1fn_x4")


def static_cast(array: Any, dtype: Any) -> Any:
    """The array with elements of another type."""
    return np.asarray(array).astype(of(dtype).numpy)


def is_float_type(dtype: Any) -> bool:
    """Whether elements of a type are floating point numbers."""
    return of(dtype).is_float


def sizeinbytes(dtype: Any) -> int:
    """Bytes of an element."""
    return of(dtype).itemsize


def finfo(dtype: Any) -> Any:
    """Limits of a floating point type."""
    return ml_dtypes.finfo(of(dtype).numpy)
