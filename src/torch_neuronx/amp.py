"""Automatic mixed precision: torch.amp with the device type filled in."""

from __future__ import annotations

import torch

__all__ = ["GradScaler", "autocast", "get_amp_supported_dtype"]


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Types that `torch.autocast("neuron", dtype=...)` takes."""
    return [torch.bfloat16, torch.float16, torch.float32]


class autocast(torch.amp.autocast):
    """`torch.autocast("neuron", ...)`."""

    def __init__(self, enabled: bool = True, dtype: torch.dtype | None = None, cache_enabled: bool = True) -> None:
        super().__init__("neuron", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """`torch.amp.GradScaler("neuron", ...)`."""

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        super().__init__("neuron", init_scale, growth_factor, backoff_factor, growth_interval, enabled)
