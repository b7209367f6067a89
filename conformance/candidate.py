"""The device under test, as the suites see it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


class Candidate:
    """Runs calls on a device and waits for them. The harness's own tests put faulty devices in its place."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)

    def prepare(self) -> None:
        """Makes the device usable; called once in each process, before the first case."""
        if self.device.type != "cpu":
            torch.empty(0, device=self.device)
            # Results carry an index; so must the device that they are compared with.
            self.device = torch.empty(0, device=self.device).device

    def run(self, entry: str, call: Callable[[], T]) -> T:
        """Makes one call for ``entry``; the device may still be working when it returns."""
        del entry
        return call()

    def synchronize(self) -> None:
        """Waits for all work of the device; errors of that work are raised here."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)


def load(specification: str) -> Candidate:
    """A device name ("neuron", "cpu", "neuron:1"), or "module:function" where the function returns a ``Candidate``."""
    module, _, function = specification.partition(":")
    if function and not function.isdigit():
        made = getattr(importlib.import_module(module), function)()
        if not isinstance(made, Candidate):
            raise TypeError(
                f"{specification} returned {type(made).__name__}, expected a conformance.candidate.Candidate"
            )
        return made
    return Candidate(specification)
