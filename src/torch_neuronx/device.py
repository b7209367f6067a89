"""Devices: which there are, which is the current one, and what they are. Mirrors torch.cuda's functions."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from . import _C, _machine
from .errors import MissingDeviceIndexError, NoSuchDeviceError, NotANeuronDeviceError

__all__ = [
    "DeviceLike",
    "DeviceProperties",
    "can_device_access_peer",
    "current_device",
    "device",
    "device_count",
    "device_of",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "init",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "set_device",
    "synchronize",
]

# What functions take as a device: an index, "neuron", "neuron:1", a torch.device, or None for the current one.
DeviceLike: TypeAlias = int | str | torch.device | None

# Physical NeuronCores behind one device: LNC=2, the default of Trainium2 and Trainium3 (AWS Neuron documentation,
# "Logical NeuronCore configuration").
_PHYSICAL_CORES = 2
# The generation of the NeuronCore, as AWS counts it: NeuronCore-v3 in Trainium2, -v4 in Trainium3.
_CAPABILITY = {"trn2": (3, 0), "trn3": (4, 0)}

_warned_of_bad_knobs = False


def device_count() -> int:
    """Number of devices that this process sees. Starts nothing, so it is safe before a fork."""
    global _warned_of_bad_knobs
    count = _C.device_count()
    if count == 0 and not _warned_of_bad_knobs:
        # A program that asks `is_available()` and falls back to the CPU would never see the error.
        _warned_of_bad_knobs = True
        warnings.warn("no neuron device is available: " + "\n".join(_machine.problems()), stacklevel=2)
    return count


def is_available() -> bool:
    """Can the device be used? Never raises and starts nothing."""
    return device_count() > 0


def is_initialized() -> bool:
    """Has the device been used in this process?"""
    return _C.is_initialized()


def init() -> None:
    """Makes the machine now instead of at the first use. Does nothing when it exists.

    Raises:
        RuntimeError: a knob is bad, or this process was forked from one that used the device.
    """
    _C.init()


def _lazy_init() -> None:
    # PyTorch calls this once before the first tensor, but also before mere questions such as how much memory is free.
    # The machine is made when it is needed; here is only told why that would fail.
    if _C.is_in_bad_fork() or _C.device_count() == 0:
        _C.init()


def _get_device_index(device: Any, optional: bool = False, allow_cpu: bool = False) -> int:
    """The index that `device` means, with torch.cuda's rules: None and a device without index mean the current one
    where `optional`; a CPU device gives -1 where `allow_cpu`."""
    index: int | None = None
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if device.type == "cpu" and allow_cpu:
            return -1
        if device.type != "neuron":
            raise NotANeuronDeviceError(device=device)
        index = device.index
    elif isinstance(device, int):
        index = device
    elif device is not None:
        raise NotANeuronDeviceError(device=repr(device))
    if index is None:
        if not optional:
            raise MissingDeviceIndexError(device=device)
        return _C.current_device()
    return index


def _existing_device_index(device: DeviceLike) -> int:
    """The same, and the device must exist. Starts nothing."""
    index = _get_device_index(device, optional=True)
    count = _C.device_count()
    if not 0 <= index < count:
        if count == 0:
            _C.init()  # Raises what is wrong with the knobs.
        raise NoSuchDeviceError(index=index, count=count, last=count - 1)
    return index


def current_device() -> int:
    """Index of the current device of this thread."""
    return _C.current_device()


def set_device(device: DeviceLike) -> None:
    """Makes `device` the current one of this thread. A negative index changes nothing."""
    index = _get_device_index(device)
    if index >= 0:
        _C.set_device(_existing_device_index(index))


class device:
    """Context manager: `device` is the current one inside. None and negative indices change nothing."""

    def __init__(self, device: Any) -> None:
        self.idx = -1 if device is None else _get_device_index(device, optional=True)
        self.prev_idx = -1

    def __enter__(self) -> None:
        if self.idx >= 0:
            self.prev_idx = _C.exchange_device(_existing_device_index(self.idx))

    def __exit__(self, *exc_info: object) -> None:
        if self.idx >= 0:
            _C.exchange_device(self.prev_idx)


class device_of(device):
    """Context manager: the device of a tensor or storage is the current one inside. No effect for other devices."""

    def __init__(self, obj: torch.Tensor | torch.UntypedStorage | torch.TypedStorage) -> None:
        super().__init__(obj.device.index if obj.device.type == "neuron" else None)


@dataclass(frozen=True)
class DeviceProperties:
    """What a device is. `total_memory` is in bytes; `major` and `minor` are :func:`get_device_capability`;
    `multi_processor_count` is the number of physical NeuronCores behind the device."""

    name: str
    chip: str
    instance: str
    total_memory: int
    major: int
    minor: int
    multi_processor_count: int


def get_device_properties(device: DeviceLike = None) -> DeviceProperties:
    """Name, chip, instance type and memory of a device. Starts nothing."""
    facts = _C.device_properties(_existing_device_index(device))
    major, minor = _CAPABILITY[facts["chip"]]
    return DeviceProperties(
        name=facts["name"],
        chip=facts["chip"],
        instance=facts["instance"],
        total_memory=facts["total_memory"],
        major=major,
        minor=minor,
        multi_processor_count=_PHYSICAL_CORES,
    )


def get_device_name(device: DeviceLike = None) -> str:
    """Name of a device."""
    return get_device_properties(device).name


def get_device_capability(device: DeviceLike = None) -> tuple[int, int]:
    """Generation of the NeuronCore: (3, 0) for Trainium2 (NeuronCore-v3), (4, 0) for Trainium3 (NeuronCore-v4)."""
    properties = get_device_properties(device)
    return properties.major, properties.minor


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """True where there is a device: all engines of a NeuronCore take bfloat16."""
    return is_available()


def can_device_access_peer(device: DeviceLike, peer_device: DeviceLike) -> bool:
    """Can `device` reach the memory of `peer_device` directly? True for two different devices: NeuronLink joins all
    chips of an instance. False for a device and itself, as torch.cuda has it."""
    return _existing_device_index(device) != _existing_device_index(peer_device)


def synchronize(device: DeviceLike = None) -> None:
    """Waits for all work on all streams of `device`.

    Raises:
        RuntimeError: a launch failed since the last synchronisation; the text names the op, shapes and dtypes.
    """
    _C.synchronize(_existing_device_index(device))
