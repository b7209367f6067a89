"""Streams and events: torch's own generic classes, with torch.cuda's constructors and functions.

Waiting, querying and recording are torch.Stream's and torch.Event's own methods.
"""

from __future__ import annotations

from typing import Any

import torch

from . import _C
from .device import DeviceLike, _existing_device_index
from .errors import InterprocessEventError, NotANeuronStreamError

__all__ = [
    "Event",
    "Stream",
    "StreamContext",
    "current_stream",
    "default_stream",
    "set_stream",
    "stream",
]


class Stream(torch.Stream):
    """A queue of the device: its work runs in order, and independently of other streams.

    Args:
        device: where; the current device by default.
        priority: 0 is normal, -1 is high; other values mean the nearest of the two. Workers of streams of high
            priority are preferred by the host's scheduler where it allows that.
    """

    def __new__(cls, device: DeviceLike = None, priority: int = 0, **kwargs: Any) -> Stream:
        if "stream_id" in kwargs:  # An existing stream; see _wrap.
            return super().__new__(cls, priority=priority, **kwargs)
        index = _existing_device_index(device)
        low, high = _C.priority_range()
        return super().__new__(cls, torch.device("neuron", index), priority=max(high, min(low, priority)), **kwargs)

    @property
    def priority(self) -> int:
        return _C.stream_priority(self.stream_id, self.device_index)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """(lowest, highest) priority: (0, -1)."""
        return _C.priority_range()

    def __repr__(self) -> str:
        return f"<torch.neuron.Stream device={self.device} stream_id={self.stream_id}>"


class _EventType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Event) and instance.device.type == "neuron"


class Event(torch.Event, metaclass=_EventType):
    """A point in a stream, to wait for, to ask for, and to measure time between.

    Makes plain torch.Event objects, which `isinstance` knows: `elapsed_time` of torch 2.13 refuses those of a
    subclass.

    Args:
        enable_timing: `elapsed_time` (wall time, in milliseconds) works between two such events.
        blocking: accepted as torch.cuda does; `synchronize` always lets other threads run.
        interprocess: not supported.
    """

    def __new__(  # type: ignore[misc]
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> torch.Event:
        if interprocess:
            raise InterprocessEventError()
        # Without an index: the event belongs to the device of the stream that first records it.
        return torch.Event(torch.device("neuron"), enable_timing=enable_timing, blocking=blocking)


def _wrap(stream: torch.Stream) -> Stream:
    """The same stream as an object of our class."""
    return Stream(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)


def current_stream(device: DeviceLike = None) -> Stream:
    """The stream of `device` that this thread's work goes to."""
    return _wrap(torch._C._accelerator_getStream(_existing_device_index(device)))


def default_stream(device: DeviceLike = None) -> Stream:
    """The stream that work goes to when no other was chosen."""
    index = _existing_device_index(device)
    device_type = torch._C._autograd.DeviceType.PrivateUse1.value
    return Stream(stream_id=0, device_index=index, device_type=device_type)


def set_stream(stream: torch.Stream | None) -> None:
    """Makes `stream` the current one of its device, and its device the current one. None changes nothing."""
    if stream is None:
        return
    if not isinstance(stream, torch.Stream) or stream.device.type != "neuron":
        raise NotANeuronStreamError(stream=repr(stream))
    torch._C._accelerator_setStream(stream)


class StreamContext:
    """Context manager: `stream` is the current one inside, and so is its device. None changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        if stream is not None and (not isinstance(stream, torch.Stream) or stream.device.type != "neuron"):
            raise NotANeuronStreamError(stream=repr(stream))
        self.stream = stream
        self._previous: list[torch.Stream] = []

    def __enter__(self) -> None:
        if self.stream is None:
            return
        # Of the device that was current, and of the stream's: both are set back. In this order, since setting a stream
        # changes the current device.
        self._previous = [current_stream(self.stream.device), current_stream()]
        set_stream(self.stream)

    def __exit__(self, *exc_info: object) -> None:
        for previous in self._previous:
            set_stream(previous)
        self._previous = []


def stream(stream: torch.Stream | None) -> StreamContext:
    """Context manager: `stream` is the current one inside. None changes nothing."""
    return StreamContext(stream)
