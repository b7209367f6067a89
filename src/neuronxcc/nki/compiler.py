"""nki.compiler of the Beta 1 dialect: where tiles are placed in SBUF and PSUM, and hints to the compiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

from nki.loops import no_reorder as _ordered

__all__ = [
    "OnChip", "allocation_scope", "enable_stack_allocator", "force_auto_alloc", "multi_buffer", "no_reorder", "psum",
    "sbuf", "skip_middle_end_transformations"
]  # fmt: skip

_BANK = 2048

# (index of the tile, partitions, bytes per partition) -> (partition, byte)
Placement = Callable[[tuple[int, ...], int, int], tuple[int, int]]


class OnChip:
    """A memory on chip, and where in it the tiles of a tensor go.

    Attributes:
        region: "sbuf" or "psum".
        place: finds the place of each tile; None leaves it to the allocator.
    """

    def __init__(self, region: str, place: Placement | None = None) -> None:
        self.region = region
        self.place = place

    def __repr__(self) -> str:
        return f"nl.{self.region}" + (" at addresses of the kernel's" if self.place else "")


def _turn(index: Sequence[int], tiles: Sequence[int], size: int) -> int:
    """Which of `tiles` places a tile takes, in bytes or partitions: each index counts modulo its number of places."""
    counts = tuple(tiles) or (1,) * len(index)
    return sum((i % n) * prod(counts[d + 1 :]) for d, (i, n) in enumerate(zip(index, counts, strict=False))) * size


class _Sbuf(OnChip):
    """SBUF as a buffer, and the ways to place tiles in it."""

    def alloc(self, func: Callable[[tuple[int, ...], int, int], tuple[int, int]]) -> OnChip:
        """Tiles at (partition, byte) that `func(index of the tile, partitions, bytes per partition)` says."""
        return OnChip("sbuf", lambda index, partitions, size: _pair(func(index, partitions, size)))

    def mod_alloc(
        self,
        *,
        base_addr: int,
        base_partition: int = 0,
        num_par_tiles: Sequence[int] = (),
        num_free_tiles: Sequence[int] = (),
    ) -> OnChip:
        """Tiles that take turns: tile i lies at place i modulo the number of places, counted from `base_addr`.

        Args:
            base_addr: byte within the partitions.
            base_partition: first partition.
            num_par_tiles, num_free_tiles: places along each dimension before the partition; () is one place for all.
        """

        def place(index: tuple[int, ...], partitions: int, size: int) -> tuple[int, int]:
            return (
                base_partition + _turn(index, num_par_tiles, partitions),
                base_addr + _turn(index, num_free_tiles, size),
            )

        return OnChip("sbuf", place)

    def auto_alloc(self) -> OnChip:
        """Tiles wherever there is room."""
        return self


class _Psum(OnChip):
    """PSUM as a buffer, and the ways to place tiles in it."""

    def alloc(self, func: Callable[[tuple[int, ...], int, int], tuple[int, int, int]]) -> OnChip:
        """Tiles at (bank, partition, byte within the bank) that `func(index, partitions, bytes per partition)` says."""

        def place(index: tuple[int, ...], partitions: int, size: int) -> tuple[int, int]:
            bank, partition, byte = (int(n) for n in func(index, partitions, size))
            return partition, bank * _BANK + byte

        return OnChip("psum", place)

    def mod_alloc(
        self,
        *,
        base_bank: int = 0,
        base_addr: int = 0,
        base_partition: int = 0,
        num_bank_tiles: Sequence[int] = (),
        num_par_tiles: Sequence[int] = (),
        num_free_tiles: Sequence[int] = (),
    ) -> OnChip:
        """Tiles that take turns, as in sbuf.mod_alloc; `num_bank_tiles` counts banks from `base_bank` on."""

        def place(index: tuple[int, ...], partitions: int, size: int) -> tuple[int, int]:
            bank = base_bank + _turn(index, num_bank_tiles, 1)
            byte = base_addr + _turn(index, num_free_tiles, size)
            return base_partition + _turn(index, num_par_tiles, partitions), bank * _BANK + byte

        return OnChip("psum", place)

    def auto_alloc(self) -> OnChip:
        """Tiles wherever there is room."""
        return self


def _pair(place: Sequence[int]) -> tuple[int, int]:
    partition, byte = place
    return int(partition), int(byte)


sbuf = _Sbuf("sbuf")
psum = _Psum("psum")


def _marker(function: Any = None, **_: Any) -> Any:
    """A decorator that changes nothing."""
    return _marker if function is None else function


# Hints to a compiler that is not there. They change no result.
skip_middle_end_transformations = _marker
enable_stack_allocator = _marker
force_auto_alloc = _marker


def multi_buffer(factor: int = 2) -> None:
    """A directive for loops (`directives=`), accepted and not used: tiles get places as their lifetimes allow."""


class no_reorder:
    """`with no_reorder():` keeps the order of the instructions in it; as a directive of a loop it is not used."""

    def __enter__(self) -> None:
        self._order = _ordered()
        self._order.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._order.__exit__(*error)


@contextmanager
def allocation_scope() -> Any:
    """A scope of the stack allocator; tiles live from their first use to their last, whatever the scope."""
    yield
