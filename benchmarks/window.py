"""The peers of benchmarks of the fusion window: CPU eager, Inductor, and the device with the window off and on."""

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.section import Settings, synchronizer

# The window may cost a program that gains nothing from it this much.
BOUND_ON_TO_OFF = 1.03


@dataclass(frozen=True)
class Peer:
    """Where and how a workload runs."""

    name: str
    device: torch.device
    window: bool | None = None  # None: this device has none
    compiled: bool = False  # by Inductor

    def scope(self) -> AbstractContextManager[Any]:
        """The fusion window as this peer has it."""
        return (
            contextlib.nullcontext()
            if self.window is None
            else torch.get_device_module(self.device).adaptive_eager(self.window)
        )

    def prepared(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as this peer runs it."""
        return torch.compile(function, backend="inductor", dynamic=False) if self.compiled else function

    def milliseconds(self, function: Callable[[], Any], calls: int) -> float:
        """Per call, of `calls` calls and one wait. All results live until then: the window computes nothing else."""
        wait = synchronizer(self.device)
        with self.scope():
            wait()
            start = time.perf_counter()
            results = [function() for _ in range(calls)]
            wait()
            elapsed = time.perf_counter() - start
            del results
            return elapsed / calls * 1e3


def peers(settings: Settings, inductor: bool = False) -> list[Peer]:
    """The reference first, the subject last. Inductor takes part when both the settings and the section say so."""
    reference, subject = torch.device(settings.reference), torch.device(settings.subject)
    has_window = subject.type == "neuron"
    found = [Peer(settings.reference, reference)]
    if inductor and settings.inductor:
        found.append(Peer("Inductor", reference, compiled=True))
    found.append(Peer("window off", subject, window=False if has_window else None))
    found.append(Peer("window on", subject, window=True if has_window else None))
    return found


def against(taking_part: Sequence[Peer]) -> Mapping[str, float | None]:
    """What the subject is compared with besides the reference."""
    return {peer.name: None if peer.compiled else BOUND_ON_TO_OFF for peer in taking_part[1:-1]}


def compiler_found() -> bool:
    """Is there the C++ compiler that Inductor needs?"""
    return shutil.which(os.environ.get("CXX") or "g++") is not None


def same_bits(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Are all elements of all tensors the same, down to the sign of zeros?"""

    def flat(tensor: Tensor) -> Tensor:
        return tensor.detach().cpu().reshape(-1).view(torch.uint8)

    return len(actual) == len(expected) and all(
        a.shape == e.shape and a.dtype == e.dtype and torch.equal(flat(a), flat(e))
        for a, e in zip(actual, expected, strict=True)
    )
