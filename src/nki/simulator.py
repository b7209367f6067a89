"""Running kernels on arrays of the host: `nki.simulate`, and what a call with NumPy arrays or CPU tensors does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import _engines, arrays
from .arguments import Structure
from .element_types import DType
from .errors import (
    DeadlockError,
    KernelFaultError,
    NotAKernelError,
    OutOfBoundsAccessError,
    PerRankError,
    ReadOnlyArgumentError,
)
from .kernel import BoundKernel, Kernel, PerRank
from .specialization import Specialization

__all__ = ["fault_error", "poisoned", "run_at", "run_host", "run_ranks", "simulate"]

# What fresh memory of integers holds; that of floats holds NaN.
_INTEGER_POISON = 4


def simulate(kernel: Kernel | BoundKernel, *, target: str | None = None, ranks: int = 1) -> BoundKernel:
    """A kernel that runs on the simulated core, whatever the arrays it is called with.

    Args:
        kernel: made by `nki.jit`, with or without a grid.
        target: "trn1", "trn2" or "trn3"; by default what NEURON_PLATFORM_TARGET_OVERRIDE or the emulated instance says.
        ranks: cores that collectives connect. With more than one, arguments that differ between them are
            :class:`PerRank`, and the result is a list, one entry per rank.

    Raises:
        NotAKernelError: `kernel` was not made by `nki.jit`.
    """
    if isinstance(kernel, BoundKernel):
        return BoundKernel(kernel.kernel, kernel.grid, target or kernel.target, ranks)
    if not isinstance(kernel, Kernel):
        raise NotAKernelError(function="nki.simulate", kernel=kernel)
    return BoundKernel(kernel, (), target, ranks)


def poisoned(shape: tuple[int, ...], dtype: DType) -> np.ndarray[Any, Any]:
    """Memory as the chip would hand it out: of no use until it is written."""
    if dtype.is_float and dtype != "float8_e8m0fnu":
        return np.full(shape, np.nan, dtype.numpy)
    if dtype.kind == "bool":
        return np.ones(shape, dtype.numpy)
    return np.full(shape, _INTEGER_POISON, dtype.numpy)


class _Arguments:
    """The tensor arguments as contiguous memory, and the way back for those that are written."""

    def __init__(self, specialization: Specialization, structure: Structure) -> None:
        self.specialization = specialization
        self.given = structure.tensors
        self.names = structure.names
        self.views = [arrays.to_numpy(t) for t in structure.tensors]
        self.memory = [np.ascontiguousarray(view) for view in self.views]
        for place in specialization.written:
            if not self.views[place].flags.writeable:
                raise ReadOnlyArgumentError(kernel=specialization.name, name=structure.names[place])
        self.shared = [poisoned(s.shape, s.dtype) for s in specialization.shared]

    def addresses(self) -> list[list[int]]:
        return self.specialization.memories([m.ctypes.data for m in self.memory], [s.ctypes.data for s in self.shared])

    def results(self) -> Any:
        for place in self.specialization.written:
            view, memory = self.views[place], self.memory[place]
            if memory is not view and not np.shares_memory(memory, view):
                view[...] = memory.reshape(view.shape)
        like = self.given[0]
        outputs = (
            self.given[o.argument]
            if o.argument >= 0
            else arrays.from_numpy(self.shared[o.shared].reshape(o.shape), like)
            for o in self.specialization.outputs
        )
        return self.specialization.result.rebuilt(outputs)


def run_host(specialization: Specialization, structure: Structure) -> Any:
    """Runs on the arrays of `structure`; those that the kernel writes are changed in place.

    Returns:
        What the kernel returned, with arrays of the arguments' framework in the places of tensors.

    Raises:
        KernelFaultError: what only shows when a kernel runs, as an index out of bounds.
    """
    arguments = _Arguments(specialization, structure)
    run_at(specialization, [m.ctypes.data for m in arguments.memory], [s.ctypes.data for s in arguments.shared])
    return arguments.results()


def run_at(specialization: Specialization, arguments: Sequence[int], shared: Sequence[int]) -> None:
    """Runs all programs of the grid on memory of the host.

    Args:
        arguments: address of each tensor argument, whose elements follow each other.
        shared: address of each of the kernel's own tensors in shared HBM.

    Raises:
        KernelFaultError: what only shows when a kernel runs, as an index out of bounds.
    """
    addresses = specialization.memories(arguments, shared)
    for group in specialization.groups():
        _run(specialization, [specialization.programs[i].executable for i in group], [addresses[i] for i in group])


def run_ranks(bound: BoundKernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Runs one program per rank, connected by collectives.

    Raises:
        PerRankError: a PerRank argument has another number of values than there are ranks.
    """
    specializations, arguments = [], []
    for rank in range(bound.ranks):
        structure = bound.structure(
            tuple(_of_rank(a, rank, bound.ranks) for a in args),
            {name: _of_rank(a, rank, bound.ranks) for name, a in kwargs.items()},
        )
        request = bound.request(rank=rank)
        specialization = bound.kernel.specialization_of(structure, request)
        specializations.append(specialization)
        arguments.append(_Arguments(specialization, structure))
    _run(
        specializations[0],
        [s.programs[0].executable for s in specializations],
        [a.addresses()[0] for a in arguments],
    )
    return [a.results() for a in arguments]


def _of_rank(value: Any, rank: int, ranks: int) -> Any:
    if not isinstance(value, PerRank):
        # Each rank has memory of its own.
        return arrays.copied(value)
    if len(value.values) != ranks:
        raise PerRankError(values=len(value.values), ranks=ranks)
    return value.values[rank]


def _run(
    specialization: Specialization, programs: Sequence[_engines.Program], memories: Sequence[Sequence[int]]
) -> None:
    try:
        _engines.run(programs, memories, print=_print)
    except _engines.ProgramFault as fault:
        raise fault_error(specialization, fault.kind, fault.instruction, fault.program, str(fault.detail)) from None


def fault_error(specialization: Specialization, kind: str, instruction: int, program: int, detail: str) -> Exception:
    """The error of the catalogue for what went wrong while a kernel ran."""
    trace = specialization.programs[min(program, len(specialization.programs) - 1)].trace
    line = trace.instructions[instruction].line if 0 <= instruction < len(trace.instructions) else None
    op = trace.instructions[instruction].op if line else "?"
    classes = {"out_of_bounds": OutOfBoundsAccessError, "deadlock": DeadlockError}
    return classes.get(kind, KernelFaultError)(kernel=specialization.name, op=op, detail=detail, line=line)


def _print(prefix: str, values: np.ndarray[Any, Any]) -> None:
    print(f"{prefix}{values}")
