"""Devices with known faults, for the tests of the conformance harness. Loaded in its worker processes by name."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

import torch

from conformance.candidate import Candidate
from conformance.compare import Observation
from conformance.placement import map_leaves

T = TypeVar("T")


def _tensors_mapped(function: Callable[[torch.Tensor], torch.Tensor], observed: T) -> T:
    assert isinstance(observed, Observation)
    results = map_leaves(lambda leaf: function(leaf) if isinstance(leaf, torch.Tensor) else leaf, observed.results)
    return Observation(results, observed.inputs, observed.versions)  # type: ignore[return-value]


def _column_major(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.mT.contiguous().mT if tensor.dim() > 1 else tensor


class FaultyDevice(Candidate):
    """The CPU, except that some entries go wrong in the way that their fault says."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self._calls: Counter[str] = Counter()
        self._late: str | None = None

    def run(self, entry: str, call: Callable[[], T]) -> T:
        self._calls[entry] += 1
        match entry:
            case "abs":
                os.abort()
            case "ceil":
                time.sleep(3600)
            case "cos":
                self._late = "the work of cos failed after its launch"
        observed = call()
        match entry:
            case "exp":
                return _tensors_mapped(lambda tensor: tensor * 1.001, observed)
            case "sin" if self._calls[entry] % 2 == 0:
                return _tensors_mapped(lambda tensor: tensor + 1, observed)
            case "tan":
                return _tensors_mapped(lambda tensor: tensor.double(), observed)
            case "mm":
                return _tensors_mapped(_column_major, observed)
        return observed

    def synchronize(self) -> None:
        late, self._late = self._late, None
        if late is not None:
            raise RuntimeError(late)


def faulty() -> Candidate:
    """A device with a fault of each kind."""
    return FaultyDevice()


class DyingDevice(Candidate):
    """The CPU, except that the process does not survive its own end."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self._at_exit = _AbortWhenCollected()


class _AbortWhenCollected:
    def __del__(self) -> None:
        os.abort()


def dying() -> Candidate:
    """A device whose teardown crashes."""
    return DyingDevice()
