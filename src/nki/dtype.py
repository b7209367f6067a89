"""Element types under one name, for annotations: `dtype: nki.dtype`."""

from __future__ import annotations

from .element_types import TYPES, DType, of

__all__ = ["TYPES", "DType", "of"]

globals().update(TYPES)
