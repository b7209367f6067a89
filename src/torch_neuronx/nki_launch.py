"""How NKI kernels run on tensors of the device: one launch on the current stream.

nki does not know this package; it loads :func:`register` through the entry point group `nki.frameworks` when it meets a
tensor that is not the host's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch._subclasses.fake_tensor import FakeTensor

import nki
from nki import _engines
from nki.arguments import Structure
from nki.element_types import DType
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
    # Tensors of the host come here when they want gradients: see _NoGradient.
    here = isinstance(value, torch.Tensor) and value.layout == torch.strided
    return here and (value.device.type in ("neuron", "cpu") or isinstance(value, FakeTensor))


class _Launchable:
    """What a specialisation needs beside its arguments to be launched on one device."""

    def __init__(self, specialization: Specialization, device: torch.device) -> None:
        self.name = specialization.name
        self.device = device
        self.shared = [(s.shape, _dtype(s.dtype)) for s in specialization.shared]
        self.groups = [
            (_capsule([specialization.programs[i] for i in group]), group) for group in specialization.groups()
        ]
        # Constants move to the device, whose allocator knows when the last launch that reads them is over.
        self.constants: list[tuple[int, int, torch.Tensor]] = []  # program, place among its addresses
        for number, program in enumerate(specialization.programs):
            in_hbm = [s for s in program.trace.storages if not s.on_chip]
            for place, storage in enumerate(in_hbm):
                if storage.role == "constant":
                    data = program.constants[storage.number].reshape(-1).view("uint8")
                    self.constants.append((number, place, torch.from_numpy(data).to(device)))

    def launch(self, addresses: list[list[int]], tensors: list[torch.Tensor]) -> None:
        for program, place, constant in self.constants:
            addresses[program][place] = constant.data_ptr()
        used = [*tensors, *(constant for _, _, constant in self.constants)] if self.constants else tensors
        for capsule, group in self.groups:
            mine = addresses[group[0]] if len(group) == 1 else [a for i in group for a in addresses[i]]
            _C.launch_foreign(capsule, self.name, used, mine)


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
    memory = [t if t.is_contiguous() else t.detach().contiguous() for t in tensors]
    arguments, shared = [m.data_ptr() for m in memory], [r.data_ptr() for r in results]
    if device.type == "cpu":
        run_at(specialization, arguments, shared)
    else:
        _launchable(specialization, device).launch(specialization.memories(arguments, shared), [*memory, *results])
    for place in specialization.written:
        if memory[place] is not tensors[place]:
            tensors[place].detach().copy_(memory[place])
    return results


def _device_of(tensors: list[torch.Tensor], kernel: str) -> torch.device:
    device = tensors[0].device
    for t in tensors:
        if t.device != device:
            devices = ", ".join(sorted({str(t.device) for t in tensors}))
            raise KernelTensorsError(kernel=kernel, devices=devices)
    return device


def _launchable(specialization: Specialization, device: torch.device) -> _Launchable:
    by_device = _launchables.setdefault(specialization, {})
    if device not in by_device:
        by_device[device] = _Launchable(specialization, device)
    return by_device[device]


@cache
def _dtype(dtype: DType) -> torch.dtype:
    # torch has no float8_e4m3; finite numbers have the same bits in its relative.
    return getattr(torch, {"float8_e4m3": "float8_e4m3fn", "tfloat32": "float32"}.get(dtype, str(dtype)))
