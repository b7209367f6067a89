"""Device memory: how much is in use, how much is left, and giving cached memory back. Mirrors torch.cuda.memory.

Figures come from the caching allocator; *allocated* is what tensors hold, *reserved* what the allocator has taken from
the device for them. All functions work before the first allocation and start nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch

from . import _C
from .device import DeviceLike, _existing_device_index, _lazy_init

__all__ = [
    "OutOfMemoryError",
    "empty_cache",
    "empty_host_cache",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
]

OutOfMemoryError = torch.OutOfMemoryError


def memory_stats_as_nested_dict(device: DeviceLike = None) -> dict[str, Any]:
    """The statistics of :func:`memory_stats` as nested dictionaries."""
    return torch._C._accelerator_getDeviceStats(_existing_device_index(device))


def memory_stats(device: DeviceLike = None) -> OrderedDict[str, int]:
    """Statistics of the allocator, with torch.cuda's keys.

    `<what>.<pool>.<metric>`: what is allocation, segment, active, inactive_split (counts), and allocated_bytes,
    reserved_bytes, active_bytes, inactive_split_bytes, requested_bytes (bytes); pool is all, small_pool (requests below
    1 MiB) or large_pool; metric is current, peak, allocated (total so far) or freed. Then counters such as num_ooms and
    num_alloc_retries.
    """
    flat: list[tuple[str, int]] = []

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                walk(f"{prefix}.{key}" if prefix else key, inner)
        else:
            flat.append((prefix, value))

    walk("", memory_stats_as_nested_dict(device))
    return OrderedDict(sorted(flat))


def _all_pools(device: DeviceLike, group: str, metric: str) -> int:
    # Not through memory_stats: programs ask for these in every step, and flattening all figures takes far longer.
    return memory_stats_as_nested_dict(device)[group]["all"][metric]


def memory_allocated(device: DeviceLike = None) -> int:
    """Bytes that tensors hold."""
    return _all_pools(device, "allocated_bytes", "current")


def max_memory_allocated(device: DeviceLike = None) -> int:
    """The most bytes that tensors held, since the start or :func:`reset_peak_memory_stats`."""
    return _all_pools(device, "allocated_bytes", "peak")


def memory_reserved(device: DeviceLike = None) -> int:
    """Bytes that the allocator has taken from the device, for tensors and as a cache."""
    return _all_pools(device, "reserved_bytes", "current")


def max_memory_reserved(device: DeviceLike = None) -> int:
    """The most bytes that the allocator held, since the start or :func:`reset_peak_memory_stats`."""
    return _all_pools(device, "reserved_bytes", "peak")


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """The peaks start again from the current figures."""
    torch._C._accelerator_resetPeakStats(_existing_device_index(device))


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    """The totals (metrics allocated and freed, and the counters) start again from zero."""
    torch._C._accelerator_resetAccumulatedStats(_existing_device_index(device))


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """(free, total) bytes of the device, where free is what the allocator has not taken."""
    _lazy_init()  # A forked child would be told the figures that the parent had.
    free, total = torch._C._accelerator_getMemoryInfo(_existing_device_index(device))
    return free, total


def empty_cache() -> None:
    """Gives memory that no tensor uses back to the device."""
    torch._C._accelerator_emptyCache()


def empty_host_cache() -> None:
    """Gives pinned host memory that no tensor uses back to the system."""
    torch._C._accelerator_emptyHostCache()


def memory_snapshot() -> list[dict[str, Any]]:
    """All segments of all devices with their blocks, with the keys of torch.cuda.memory_snapshot."""
    return [segment for index in range(_C.device_count()) for segment in _C.memory_snapshot(index)]


# -- The table ---------------------------------------------------------------------------------------------------------

_ROWS = (
    ("allocated_bytes", "Allocated memory"),
    ("active_bytes", "Active memory"),
    ("requested_bytes", "Requested memory"),
    ("reserved_bytes", "Reserved memory"),
    ("inactive_split_bytes", "Non-releasable memory"),
    ("allocation", "Allocations"),
    ("active", "Active blocks"),
    ("segment", "Segments"),
    ("inactive_split", "Non-releasable blocks"),
)
_COLUMNS = (("current", "current"), ("peak", "peak"), ("allocated", "total alloc"), ("freed", "total freed"))
_POOLS = (("all", ""), ("large_pool", "  large pool"), ("small_pool", "  small pool"))


def memory_summary(device: DeviceLike = None, abbreviated: bool = False) -> str:
    """The statistics as a table; `abbreviated` leaves out the rows of the single pools."""
    index = _existing_device_index(device)
    stats = memory_stats(index)
    free, total = mem_get_info(index)
    width = 78
    lines = [
        "=" * width,
        f" Memory of neuron:{index} ({_bytes(free)} of {_bytes(total)} not reserved)",
        f" out of memory: {stats.get('num_ooms', 0)}    retries after emptying the cache: "
        f"{stats.get('num_alloc_retries', 0)}",
        "=" * width,
        f" {'':<22}" + "".join(f"{title:>13}" for _, title in _COLUMNS),
    ]
    for key, title in _ROWS:
        show = _bytes if key.endswith("_bytes") else str
        lines.append("-" * width)
        for pool, pool_title in _POOLS[:1] if abbreviated else _POOLS:
            cells = (show(stats.get(f"{key}.{pool}.{metric}", 0)) for metric, _ in _COLUMNS)
            lines.append(f" {pool_title or title:<22}" + "".join(f"{cell:>13}" for cell in cells))
    lines.append("=" * width)
    return "\n".join(lines) + "\n"


def _bytes(count: int) -> str:
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, 4)
    return f"{count / 1024**power:.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"
