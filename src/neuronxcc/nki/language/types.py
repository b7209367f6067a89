"""Types, sizes and memories of nki.language (Beta 1)."""

from __future__ import annotations

from typing import Any

from nki.element_types import TYPES
from nki.memory import tile_size
from nki.regions import MemoryRegion

from ..compiler import psum, sbuf

__all__ = [
    "bfloat16", "bfp16", "bool_", "finfo", "float8_e4m3", "float8_e5m2", "float16", "float32", "fp32", "hbm", "int8",
    "int16", "int32", "par_dim", "private_hbm", "psum", "sbuf", "shared_hbm", "tfloat32", "tile_size", "uint8",
    "uint16", "uint32"
]  # fmt: skip

float32 = TYPES["float32"]
bfloat16 = TYPES["bfloat16"]
float16 = TYPES["float16"]
tfloat32 = TYPES["tfloat32"]
float8_e4m3 = TYPES["float8_e4m3"]
float8_e5m2 = TYPES["float8_e5m2"]
int8, uint8 = TYPES["int8"], TYPES["uint8"]
int16, uint16 = TYPES["int16"], TYPES["uint16"]
int32, uint32 = TYPES["int32"], TYPES["uint32"]
bool_ = TYPES["bool"]

shared_hbm = MemoryRegion.shared_hbm
private_hbm = hbm = MemoryRegion.private_hbm


class par_dim(int):
    """Marks the size of the dimension that goes along the partitions: `nl.ndarray((4, nl.par_dim(128), 512), ...)`."""


class fp32:
    """Numbers of fp32."""

    min = -3.4028234663852886e38
    max = 3.4028234663852886e38


class bfp16:
    """Numbers of bf16; `min` is minus infinity, whose bit pattern the documentation gives."""

    min = float("-inf")


def finfo(dtype: Any) -> Any:
    """Limits of a floating point type, as ml_dtypes and NumPy give them: min, max, eps, ..."""
    import ml_dtypes

    from nki.element_types import of

    return ml_dtypes.finfo(of(dtype).numpy)
