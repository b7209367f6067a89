"""Random numbers: one generator per device, which gives the numbers that the CPU gives for the same seed.

Mirrors torch.cuda.random. Seeding starts nothing: it takes effect before the first use of the device as well.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from . import _C
from .device import DeviceLike, _existing_device_index

__all__ = [
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]


def _generator(device: DeviceLike = None) -> torch.Generator:
    return _C.default_generators()[_existing_device_index(device)]


def manual_seed(seed: int) -> None:
    """Seeds the current device's generator."""
    _generator().manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds the generators of all devices. `torch.manual_seed` calls this."""
    for index in range(_C.device_count()):
        _generator(index).manual_seed(int(seed))


def seed() -> None:
    """Seeds the current device's generator with a number nobody chose."""
    _generator().seed()


def seed_all() -> None:
    """Seeds the generators of all devices with one number nobody chose."""
    manual_seed_all(_generator(0).seed())


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return _generator().initial_seed()


def get_rng_state(device: DeviceLike = "neuron") -> torch.Tensor:
    """State of a device's generator, as a ByteTensor on the CPU."""
    return _generator(device).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """States of the generators of all devices."""
    return [get_rng_state(index) for index in range(_C.device_count())]


def set_rng_state(new_state: torch.Tensor, device: DeviceLike = "neuron") -> None:
    """Sets the state of a device's generator to one that :func:`get_rng_state` gave."""
    _generator(device).set_state(new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Sets the states of the generators of all devices."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)
