"""Copies call arguments to a device without losing what a kernel may look at.

``Tensor.to`` packs a strided view and breaks the sharing of memory between two arguments. A sample that exists to test
just that would no longer test it, so tensors are rebuilt here on a copy of their storage.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """Applies ``function`` to everything that is not a container, and rebuilds the containers."""
    if isinstance(value, torch.Size):
        return value
    if isinstance(value, PackedSequence):
        # Its batch sizes are host memory on every device.
        moved = [map_leaves(function, item) for item in (value.data, value.sorted_indices, value.unsorted_indices)]
        return PackedSequence(moved[0], value.batch_sizes, *moved[1:])
    if isinstance(value, tuple):
        items = [map_leaves(function, item) for item in value]
        if type(value) is tuple:
            return tuple(items)
        # Named tuples take their fields one by one, torch.return_types a sequence.
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, list):
        return [map_leaves(function, item) for item in value]
    if isinstance(value, dict):
        return type(value)((key, map_leaves(function, item)) for key, item in value.items())
    return function(value)


def leaves(value: Any) -> list[Any]:
    """The leaves of ``value`` in a fixed order."""
    found: list[Any] = []

    def keep(leaf: Any) -> Any:
        found.append(leaf)
        return leaf

    map_leaves(keep, value)
    return found


def tensors(value: Any) -> Iterator[Tensor]:
    """The tensors among the leaves of ``value``."""
    return (leaf for leaf in leaves(value) if isinstance(leaf, Tensor))


class Placement:
    """Puts copies of values on one device. One instance serves one call, so that sharing within the call is kept."""

    def __init__(
        self, device: torch.device, widen: Iterable[torch.dtype] = (), into: torch.dtype = torch.float32
    ) -> None:
        """With ``widen``, tensors and arguments of these dtypes become ``into`` on the way."""
        self.device = device
        self._into = into
        self._widen = frozenset(widen)
        self._moved = False
        self._placed: dict[int, Tensor] = {}
        self._bytes: dict[int, Tensor] = {}
        self._keep_alive: list[Any] = []

    def seed(self, seed: int) -> None:
        """Seeds the default generators of the host and of this device.

        ``torch.manual_seed`` does that too, and formats a stack trace for each accelerator that is not there.
        """
        torch.default_generator.manual_seed(seed)
        if self.device.type not in ("cpu", "meta"):
            torch.get_device_module(self.device).manual_seed_all(seed)

    def default_device(self) -> contextlib.AbstractContextManager[Any]:
        """Makes this device the default one for a call to which nothing placed so far could tell the device."""
        return contextlib.nullcontext() if self._moved else self.device

    def __call__(self, value: Any) -> Any:
        """Returns ``value`` with its tensors, generators and device names moved to this placement's device."""
        return map_leaves(self._leaf, value)

    def _leaf(self, leaf: Any) -> Any:
        if isinstance(leaf, (Tensor, torch.device)) or (isinstance(leaf, str) and leaf == "cpu"):
            self._moved = True
        if isinstance(leaf, Tensor):
            if id(leaf) not in self._placed:
                self._placed[id(leaf)] = self._tensor(leaf)
                self._keep_alive.append(leaf)
            return self._placed[id(leaf)]
        if isinstance(leaf, torch.dtype):
            return self._into if leaf in self._widen else leaf
        if isinstance(leaf, torch.Generator):
            return torch.Generator(device=self.device).manual_seed(leaf.initial_seed())
        if isinstance(leaf, torch.device) and leaf.type == "cpu":
            return self.device
        if isinstance(leaf, str) and leaf == "cpu":
            return str(self.device)
        return leaf

    def _tensor(self, source: Tensor) -> Tensor:
        if source.device.type != "cpu":
            return source  # a meta tensor in an error input is part of the mistake
        if source.layout is not torch.strided or source.is_nested or source.is_quantized:
            copy = source.detach().clone().to(self.device)
        else:
            copy = self._strided(source.detach())
        if source.dtype in self._widen:
            copy = copy.to(self._into)
        copy.requires_grad_(source.requires_grad)
        return torch.nn.Parameter(copy, source.requires_grad) if isinstance(source, torch.nn.Parameter) else copy

    def _strided(self, source: Tensor) -> Tensor:
        if source.is_conj():
            return self._strided(source.conj()).conj()
        if source.is_neg():
            return torch._neg_view(self._strided(torch._neg_view(source)))
        flat = self._storage(source.untyped_storage())
        whole = flat[: flat.numel() - flat.numel() % source.itemsize].view(source.dtype)
        return whole.as_strided(source.size(), source.stride(), source.storage_offset()).detach()

    def _storage(self, storage: torch.UntypedStorage) -> Tensor:
        key = storage._cdata
        if key not in self._bytes:
            self._keep_alive.append(storage)
            flat = torch.empty(0, dtype=torch.uint8).set_(storage)
            self._bytes[key] = torch.empty_like(flat, device=self.device).copy_(flat)
        return self._bytes[key]
