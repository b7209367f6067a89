"""Memories that a tensor can lie in."""

from __future__ import annotations

from enum import Enum
from typing import Any

__all__ = ["HBM", "ON_CHIP", "PSUM", "SBUF", "MemoryRegion", "is_hbm", "is_on_chip", "is_psum", "is_sbuf"]


class MemoryRegion(Enum):
    """A memory: the two on chip, and HBM as one program sees it (private) or all programs of the grid (shared)."""

    sbuf = "sbuf"
    psum = "psum"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"

    def __repr__(self) -> str:
        return f"nl.{self.value}"


SBUF, PSUM = MemoryRegion.sbuf, MemoryRegion.psum
ON_CHIP = frozenset((SBUF, PSUM))
HBM = frozenset((MemoryRegion.private_hbm, MemoryRegion.shared_hbm))


def is_sbuf(buffer: Any) -> bool:
    """Whether `buffer` is SBUF."""
    return buffer is SBUF


def is_psum(buffer: Any) -> bool:
    """Whether `buffer` is PSUM."""
    return buffer is PSUM


def is_on_chip(buffer: Any) -> bool:
    """Whether `buffer` is SBUF or PSUM, where the first dimension is the partition."""
    return buffer is SBUF or buffer is PSUM


def is_hbm(buffer: Any) -> bool:
    """Whether `buffer` is HBM, private or shared."""
    return buffer is MemoryRegion.private_hbm or buffer is MemoryRegion.shared_hbm
