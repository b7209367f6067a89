"""One kernel for one set of shapes, types and compile-time values: traced, checked, and made a program."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from . import _engines
from .allocation import Allocation, allocate_on_chip
from .arguments import Structure, call, tensors_of
from .checks import check_cores, check_program, check_trace
from .element_types import DType
from .errors import (
    OutputNotInSharedHbmError,
    ProgramsDisagreeError,
    ResultNotTensorError,
    UnknownScheduleNameError,
)
from .storage import Storage
from .tensor import NkiTensor
from .trace import Trace, tracing

__all__ = ["Output", "Program", "Request", "Specialization", "specialize"]


@dataclass(frozen=True)
class Request:
    """How a kernel is to run: chip, programs along each axis of the grid, and place among ranks.

    `precise` is false where NKI_PRECISE_FP=0 keeps tiles of low precision in fp32.
    """

    target: str
    grid: tuple[int, ...] = ()
    rank: int = 0
    ranks: int = 1
    precise: bool = True


@dataclass(frozen=True)
class Output:
    """A returned tensor. `argument` is its place among the tensor arguments when it is one of them, else -1."""

    shape: tuple[int, ...]
    dtype: DType
    shared: int  # place among the kernel's own tensors in shared HBM
    argument: int = -1


@dataclass
class Program:
    """One program of the grid: its trace, and the same made ready to run."""

    trace: Trace
    executable: _engines.Program
    allocation: Allocation

    @cached_property
    def shared(self) -> list[Storage]:
        """The kernel's own tensors in shared HBM, which all programs of the grid see."""
        return [s for s in self.trace.storages if s.region == "shared_hbm" and s.role not in ("argument", "constant")]

    @cached_property
    def constants(self) -> dict[int, np.ndarray[Any, Any]]:
        """The bytes of each constant, by number of its storage."""
        return {
            s.number: np.ascontiguousarray(s.data, s.dtype.numpy) for s in self.trace.storages if s.role == "constant"
        }


@dataclass(eq=False)
class Specialization:
    """A kernel that is ready to run.

    Attributes:
        name: of the kernel.
        request: how it runs.
        programs: one per point of the grid.
        arguments: shape and type of each tensor argument.
        written: places of the arguments that the kernel writes.
        outputs: returned tensors, in order.
        result: the nest that the kernel returned them in.
    """

    name: str
    request: Request
    programs: list[Program]
    arguments: tuple[tuple[tuple[int, ...], DType], ...]
    written: frozenset[int]
    outputs: list[Output]
    result: Structure
    problems: list[Exception] = field(default_factory=list)

    @property
    def shared(self) -> list[Storage]:
        """The kernel's own tensors in shared HBM."""
        return self.programs[0].shared

    @cached_property
    def _places(self) -> list[tuple[list[int], list[tuple[int, int]], list[tuple[int, int]]]]:
        """Per program the addresses of its storages in HBM, as far as they are known, and which of them are those of
        arguments and of the kernel's own tensors: pairs of (place, which)."""
        found = []
        for program in self.programs:
            known: list[int] = []
            arguments: list[tuple[int, int]] = []
            shared: list[tuple[int, int]] = []
            for storage in program.trace.storages:
                if storage.on_chip:
                    continue
                if storage.role == "argument":
                    arguments.append((len(known), storage.position))
                elif storage.role != "constant" and storage.region == "shared_hbm":
                    shared.append((len(known), len(shared)))
                constant = program.constants.get(storage.number)
                known.append(0 if constant is None else constant.ctypes.data)
            found.append((known, arguments, shared))
        return found

    def memories(self, arguments: Sequence[int], shared: Sequence[int]) -> list[list[int]]:
        """Addresses of all storages in HBM, program by program; 0 where the machine finds a place.

        Args:
            arguments: address of each tensor argument.
            shared: address of each of the kernel's own tensors in shared HBM.
        """
        found = []
        for known, of_arguments, of_shared in self._places:
            addresses = known.copy()
            for place, which in of_arguments:
                addresses[place] = arguments[which]
            for place, which in of_shared:
                addresses[place] = shared[which]
            found.append(addresses)
        return found

    def groups(self) -> list[list[int]]:
        """Programs that run together: the two of a logical core, or each by itself."""
        count = len(self.programs)
        if self.request.grid == (2,):
            return [[0, 1]]
        return [[i] for i in range(count)]


def specialize(
    function: Callable[..., Any],
    structure: Structure,
    described: tuple[tuple[tuple[int, ...], DType], ...],
    request: Request,
    schedule: tuple[tuple[str, tuple[str, ...]], ...] = (),
    gather: bool = False,
) -> Specialization:
    """Traces `function`, checks what it does and makes programs of it.

    Args:
        structure: the arguments; their tensors are replaced by views in HBM.
        described: shape and type of each tensor argument.
        schedule: further order among named instructions.
        gather: keeps problems in `problems` instead of raising the first.

    Raises:
        NkiError: the kernel does what the chip cannot do, or no result comes of it.
    """
    problems: list[Exception] | None = [] if gather else None
    with _without_collections():
        traced = [
            _program(function, structure, described, request, point, schedule, problems)
            for point in itertools.product(*map(range, request.grid))
        ]
    programs = [program for program, _ in traced]
    _check_agreement(function.__name__, programs)
    if request.grid == (2,):
        check_cores([program.trace for program in programs])
    first = programs[0]
    written = {
        view.storage.position
        for program in programs
        for instruction in program.trace.instructions
        for view in instruction.out
        if isinstance(view, NkiTensor) and view.storage.role == "argument"
    }
    places = {storage.number: place for place, storage in enumerate(first.shared)}
    outputs = [
        Output(v.shape, v.dtype, places.get(v.storage.number, -1), v.storage.position) for v in traced[0][1].tensors
    ]
    return Specialization(
        function.__name__, request, programs, described, frozenset(written), outputs, traced[0][1], problems or []
    )


def _program(
    function: Callable[..., Any],
    structure: Structure,
    described: tuple[tuple[tuple[int, ...], DType], ...],
    request: Request,
    point: tuple[int, ...],
    schedule: tuple[tuple[str, tuple[str, ...]], ...],
    problems: list[Exception] | None,
) -> tuple[Program, Structure]:
    trace = Trace(request.target, request.grid, point, request.rank, request.ranks, problems=problems)
    result = _run(function, structure, described, trace)
    _add_edges(trace, schedule)
    _mark_outputs(function.__name__, trace, result)
    check_trace(trace)
    executable = _engines.Program(trace.instructions, trace.storages, trace.registers, request.precise)
    allocation = allocate_on_chip(trace, executable.lifetimes())
    check_program(trace, executable, allocation, function.__name__)
    return Program(trace, executable, allocation), result


@contextmanager
def _without_collections() -> Iterator[None]:
    """A trace is many objects that all stay: looking for garbage among them takes two fifths of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * shape[i + 1]
    return tuple(strides)


def _run(
    function: Callable[..., Any],
    structure: Structure,
    described: tuple[tuple[tuple[int, ...], DType], ...],
    trace: Trace,
) -> Structure:
    views = []
    # As on the chip: one core has its arguments to itself, two share them.
    region = "shared_hbm" if len(trace.grid) == 1 and trace.grid[0] > 1 else "private_hbm"
    code = function.__code__
    line = (code.co_filename, code.co_firstlineno, function.__name__)
    for position, ((shape, dtype), name) in enumerate(zip(described, structure.names, strict=True)):
        sizes = shape or (1,)
        storage = Storage(position, region, sizes, dtype, name=name, line=line, role="argument", position=position)
        trace.storages.append(storage)
        views.append(NkiTensor(storage, dtype, sizes, _row_major(sizes)))
    with tracing(trace):
        return tensors_of(call(function, structure.rebuilt(iter(views))), "result")


def _add_edges(trace: Trace, schedule: tuple[tuple[str, tuple[str, ...]], ...]) -> None:
    for after, before in schedule:
        for name in (after, *before):
            if name not in trace.named:
                raise UnknownScheduleNameError(name=name, names=", ".join(trace.named) or "none")
        trace.named[after].after += tuple(trace.named[name] for name in before)


def _mark_outputs(kernel: str, trace: Trace, result: Structure) -> None:
    from .trace import report

    with tracing(trace):
        if result.key is None or _has_other_values(result.key):
            report(ResultNotTensorError(kernel=kernel, result=result.key))
        for name, view in zip(result.names, result.tensors, strict=True):
            storage = view.storage
            if storage.role == "argument":
                continue
            whole = view.offset == 0 and view.dtype == storage.dtype and view.size == storage.free
            if storage.region != "shared_hbm" or not whole or view.strides != _row_major(view.shape):
                report(
                    OutputNotInSharedHbmError(
                        kernel=kernel, name=name, tensor=storage, region=storage.region, line=storage.line
                    )
                )
            storage.role = "output"


def _has_other_values(key: Any) -> bool:
    kind, inner = key
    if kind in ("tensor", "NoneType"):
        return False
    if isinstance(inner, tuple):
        return any(k is None or _has_other_values(k) for _, k in inner)
    return True


def _check_agreement(kernel: str, programs: list[Program]) -> None:
    def described(program: Program) -> list[tuple[Any, ...]]:
        return [(s.shape, s.dtype) for s in program.shared]

    first = described(programs[0])
    for number, program in enumerate(programs[1:], 1):
        if described(program) != first:
            raise ProgramsDisagreeError(kernel=kernel, program=number, first=first, other=described(program))
