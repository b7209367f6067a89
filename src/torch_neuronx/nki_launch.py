"""How NKI kernels run on tensors of the device: one launch on the current stream.

nki does not know this package; it loads :func:`register` through the entry point group `nki.frameworks` when it meets a
tensor that is not the host's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch._subclasses.fake_tensor import FakeTensor

import nki
from nki import _engines
from nki.arguments import Structure
from nki.simulator import run_at
from nki.specialization import Program, Specialization
from nki.targets import target_of

from . import _C, knobs
from .errors import KernelTensorsError, NoKernelGradientError

__all__ = ["empty_results", "launch", "register", "run", "target"]


def register() -> None:
    """Makes kernels take tensors of the device, and the stand-ins that compilers trace with."""
    _engines.set_host(_C.tensor_engine_host())
    nki.register_framework(_recognises, run, target)


def target() -> str:
    """The chip that kernels on the device are traced for."""
    return target_of(knobs.EMU_INSTANCE.value.partition(".")[0])


def _recognises(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.device.type == "neuron" or isinstance(value, FakeTensor))


class _Launchable:
    """What a specialisation needs beside its arguments to be launched on one device."""

    def __init__(self, specialization: Specialization, device: torch.device) -> None:
        self.groups = [
            (_capsule([specialization.programs[i] for i in group]), group) for group in specialization.groups()
        ]
        # Constants move to the device, whose allocator knows when the last launch that reads them is over.
        self.constants = [
            [
                torch.from_numpy(program.constants[s.number].reshape(-1).view("uint8")).to(device)
                if s.role == "constant"
                else None
                for s in program.trace.storages
            ]
            for program in specialization.programs
        ]


def _capsule(programs: list[Program]) -> Any:
    lines = [[f"{i.line[0]}:{i.line[1]}" for i in program.trace.instructions] for program in programs]
    return _engines.capsule([program.executable for program in programs], lines)


_launchables: WeakKeyDictionary[Specialization, dict[torch.device, _Launchable]] = WeakKeyDictionary()


def run(specialization: Specialization, structure: Structure) -> Any:
    """Launches a kernel on the current stream; returns what the kernel returned, with tensors of the device.

    Raises:
        KernelTensorsError: the tensors are on different devices.
    """
    tensors = structure.tensors
    made: Sequence[torch.Tensor]
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        made = _NoGradient.apply(specialization, *tensors)
    else:
        made = launch(specialization, tensors)
    for place in specialization.written:
        torch.autograd.graph.increment_version(tensors[place])
    results = (tensors[o.argument] if o.argument >= 0 else made[o.shared].view(o.shape) for o in specialization.outputs)
    return specialization.result.rebuilt(results)


class _NoGradient(torch.autograd.Function):
    """A kernel on tensors that want gradients: it has none of its own."""

    @staticmethod
    def forward(ctx: Any, specialization: Specialization, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.kernel = specialization.name
        return tuple(launch(specialization, list(tensors)))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        raise NoKernelGradientError(kernel=ctx.kernel)


def empty_results(specialization: Specialization, device: torch.device) -> list[torch.Tensor]:
    """Memory for the kernel's own tensors in shared HBM."""
    return [torch.empty(s.shape, dtype=_dtype(s.dtype), device=device) for s in specialization.shared]


def launch(
    specialization: Specialization, tensors: list[torch.Tensor], results: list[torch.Tensor] | None = None
) -> list[torch.Tensor]:
    """Runs a kernel on its tensor arguments, in order; returns its own tensors in shared HBM: `results`, or new ones.

    On the device this is one launch on the current stream for each group of programs. CPU tensors are computed with at
    once; for stand-ins there is nothing to compute.
    """
    device = _device_of(tensors, specialization.name)
    if results is None:
        results = empty_results(specialization, device)
    if any(isinstance(t, FakeTensor) for t in tensors):
        return results
    # What the kernel works on: the tensors themselves, unless they have gaps or another type in its memory.
    memory = [
        t.detach().to(_dtype(dtype)).contiguous()
        for t, dtype in zip(tensors, specialization.argument_types, strict=True)
    ]
    shared = [
        t if t.dtype == _dtype(dtype) else torch.empty(t.shape, dtype=_dtype(dtype), device=device)
        for t, dtype in zip(results, specialization.shared_types, strict=True)
    ]
    if device.type == "cpu":
        run_at(specialization, [m.data_ptr() for m in memory], [s.data_ptr() for s in shared])
    else:
        _enqueue(specialization, memory, shared, device)
    for place in specialization.written:
        if memory[place].data_ptr() != tensors[place].data_ptr():
            tensors[place].detach().copy_(memory[place])
    for result, s in zip(results, shared, strict=True):
        if result is not s:
            result.copy_(s)
    return results


def _device_of(tensors: list[torch.Tensor], kernel: str) -> torch.device:
    devices = {t.device for t in tensors}
    if len(devices) > 1:
        raise KernelTensorsError(kernel=kernel, devices=", ".join(sorted(map(str, devices))))
    return devices.pop()


def _enqueue(
    specialization: Specialization, memory: list[torch.Tensor], shared: list[torch.Tensor], device: torch.device
) -> None:
    launchable = _launchable(specialization, device)
    addresses = specialization.memories([m.data_ptr() for m in memory], [s.data_ptr() for s in shared])
    for program, constants in enumerate(launchable.constants):
        for place, constant in enumerate(constants):
            if constant is not None:
                addresses[program][place] = constant.data_ptr()
    used = [*memory, *shared, *(c for cs in launchable.constants for c in cs if c is not None)]
    for capsule, group in launchable.groups:
        hbm = [address for i in group for address in _in_hbm(specialization.programs[i], addresses[i])]
        _C.launch_foreign(capsule, specialization.name, used, hbm)


def _in_hbm(program: Program, addresses: list[int]) -> list[int]:
    return [a for a, storage in zip(addresses, program.trace.storages, strict=True) if not storage.on_chip]


def _launchable(specialization: Specialization, device: torch.device) -> _Launchable:
    by_device = _launchables.setdefault(specialization, {})
    if device not in by_device:
        by_device[device] = _Launchable(specialization, device)
    return by_device[device]


def _dtype(dtype: Any) -> torch.dtype:
    # float8_e4m3 is unknown to torch, and has no bits that its relative does not have.
    return getattr(torch, {"float8_e4m3": "float8_e4m3fn", "tfloat32": "float32"}.get(str(dtype), str(dtype)))
