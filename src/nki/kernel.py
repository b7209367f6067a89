"""Kernels: functions under `nki.jit`, and what calling one does.

A call goes three steps: the arguments say which specialisation is meant (shapes, types, compile-time values, target,
grid); the specialisation is traced, checked and made a program once; the program runs, on the host's arrays here, or on
another framework's tensors where that framework has registered itself with :func:`register_framework`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.metadata import entry_points
from typing import Any

from . import arrays, trace
from .arguments import Structure, bind
from .element_types import DType
from .errors import BadGridError, NoTensorArgumentError, UnknownFrameworkError, UnknownJitOptionError
from .specialization import Request, Specialization, specialize
from .targets import INSTANCE, OVERRIDE, target_of

__all__ = ["BoundKernel", "Kernel", "PerRank", "jit", "register_framework"]

# Specialisations that a kernel keeps; a kernel called with ever new shapes must not keep them all.
_KEPT = 64

# Functions that call register_framework; called when a tensor is met that is not the host's.
_ENTRY_POINTS = "nki.frameworks"

# Recognises tensors of a framework; runs a specialisation on them.
_frameworks: list[tuple[Callable[[Any], bool], Callable[[Specialization, Structure], Any], Callable[[], str]]] = []


def register_framework(
    recognises: Callable[[Any], bool], run: Callable[[Specialization, Structure], Any], target: Callable[[], str]
) -> None:
    """Makes kernels take the tensors of another framework.

    Args:
        recognises: whether a value is such a tensor.
        run: runs a specialisation; gets the arguments, returns what the caller gets.
        target: the chip that kernels on such tensors are traced for.
    """
    _frameworks.append((recognises, run, target))


class PerRank:
    """An argument that differs between the ranks of a simulation: one value for each."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = tuple(values)


class Kernel:
    """A function written in NKI.

    Call it with tensors (NumPy, PyTorch on the CPU or on the device `neuron`, JAX) and compile-time values. `kernel[2]`
    runs it on the two physical cores of one logical core.

    Attributes:
        function: the Python function.
        target: the chip that it is for, unless another one is asked for; None: that of the tensors or the environment.
    """

    def __init__(self, function: Callable[..., Any], target: str | None = None) -> None:
        self.function = function
        self.target = target
        self._specializations: dict[Any, Specialization] = {}
        self._schedule: tuple[tuple[str, tuple[str, ...]], ...] = ()
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if trace.active() is not None:  # a kernel that uses another one: its instructions become part of the caller
            return self.function(*args, **kwargs)
        return BoundKernel(self)(*args, **kwargs)

    def __getitem__(self, grid: Any) -> BoundKernel:
        return BoundKernel(self, grid=grid_of(grid, self.__name__))

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    __name__: str

    def with_schedule(self, edges: Sequence[tuple[str, str | Sequence[str]]]) -> Kernel:
        """A kernel with more order: each edge is (name of an instruction, names of those that come before it)."""
        other = type(self)(self.function, self.target)
        flat = tuple((after, (before,) if isinstance(before, str) else tuple(before)) for after, before in edges)
        other._schedule = self._schedule + flat
        return other

    def specialize(self, args: tuple[Any, ...], kwargs: dict[str, Any], request: Request) -> Specialization:
        """What the kernel becomes for these arguments; made once for equal ones."""
        structure = Structure(bind(self.function, args, kwargs), "", _is_tensor)
        return self.specialization_of(structure, request)

    def specialization_of(self, structure: Structure, request: Request) -> Specialization:
        """The same for arguments that have been taken apart."""
        described = described_by(structure)
        key = None if structure.key is None else (structure.key, described, request)
        found = self._specializations.get(key) if key is not None else None
        if found is None:
            found = specialize(self.function, structure, described, request, self._schedule)
            if key is not None:
                if len(self._specializations) >= _KEPT:
                    self._specializations.pop(next(iter(self._specializations)))
                self._specializations[key] = found
        return found


class BoundKernel:
    """A kernel together with how it is to run."""

    def __init__(
        self,
        kernel: Kernel,
        grid: tuple[int, ...] = (),
        target: str | None = None,
        ranks: int = 1,
    ) -> None:
        self.kernel = kernel
        self.grid = grid
        self.target = target
        self.ranks = ranks

    def __getitem__(self, grid: Any) -> BoundKernel:
        return BoundKernel(self.kernel, grid_of(grid, self.kernel.__name__), self.target, self.ranks)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if trace.active() is not None:
            return self.kernel.function(*args, **kwargs)
        if self.ranks > 1:
            from .simulator import run_ranks

            return run_ranks(self, args, kwargs)
        structure = self.structure(args, kwargs)
        if not all(map(arrays.on_host, structure.tensors)):
            run, target = _framework_for(structure.tensors, self.kernel.__name__)
            return run(self.kernel.specialization_of(structure, self.request(target())), structure)
        from .simulator import run_host

        return run_host(self.kernel.specialization_of(structure, self.request()), structure)

    def request(self, default_target: str | None = None, rank: int = 0) -> Request:
        """How the kernel is to run now; the environment may have changed since the last call."""
        names = self.target or self.kernel.target, default_target, os.environ.get(OVERRIDE), os.environ.get(INSTANCE)
        precise = os.environ.get("NKI_PRECISE_FP", "1") != "0"
        return _request(names, self.grid, rank, self.ranks, precise)

    def structure(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Structure:
        structure = Structure(bind(self.kernel.function, args, kwargs), "", _is_tensor)
        if not structure.tensors:
            raise NoTensorArgumentError(kernel=self.kernel.__name__)
        return structure


@lru_cache(maxsize=1024)
def _request(names: tuple[str | None, ...], grid: tuple[int, ...], rank: int, ranks: int, precise: bool) -> Request:
    target, default_target = names[:2]
    return Request(target_of(target if target is not None else default_target), grid, rank, ranks, precise)


def _framework_for(
    tensors: Sequence[Any], kernel: str
) -> tuple[Callable[[Specialization, Structure], Any], Callable[[], str]]:
    if not _frameworks:
        for point in entry_points(group=_ENTRY_POINTS):
            point.load()()
    strangers = [t for t in tensors if not arrays.on_host(t)]
    for recognises, run, target in _frameworks:
        if all(map(recognises, strangers)):
            return run, target
    unknown = [t for t in strangers if not any(recognises(t) for recognises, _, _ in _frameworks)]
    foreign = (unknown or strangers)[0]
    raise UnknownFrameworkError(kernel=kernel, tensor=f"{type(foreign).__name__} on {foreign.device}, {foreign.layout}")


def described_by(structure: Structure) -> tuple[tuple[tuple[int, ...], DType], ...]:
    """Shape and type of each tensor. A kernel is for sizes that are numbers: symbolic ones become theirs."""
    return tuple((tuple(map(int, t.shape)), arrays.dtype_of(t)) for t in structure.tensors)


def _is_tensor(value: Any) -> bool:
    return arrays.is_array(value)


def grid_of(grid: Any, kernel: str) -> tuple[int, ...]:
    """The number of programs along each axis.

    Raises:
        BadGridError: not a positive number, or a tuple of them.
    """
    numbers = []
    for size in grid if isinstance(grid, tuple) else (grid,):
        number = getattr(size, "size", size)
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise BadGridError(kernel=kernel, grid=grid)
        numbers.append(number)
    return tuple(numbers)


def jit(fn: Callable[..., Any] | None = None, *, platform_target: str | None = None, **options: Any) -> Any:
    """Makes a kernel of a Python function. Use it as `@nki.jit`.

    Args:
        fn: the function. Tensors among its arguments arrive as :class:`~nki.tensor.NkiTensor` in HBM; everything else
            is known while the kernel is traced.
        platform_target: the chip that the kernel is written for, as "trn3"; `target=` of nki.simulate, nki.profile and
            nki.check goes before it.
        options: `mode` is accepted and has no effect.

    Returns:
        A :class:`Kernel`.

    Raises:
        UnknownJitOptionError: there is no such option.
        UnknownTargetError: there is no such chip.
    """
    unknown = set(options) - {"mode"}
    if unknown:
        raise UnknownJitOptionError(options=", ".join(sorted(unknown)))
    target = None if platform_target is None else target_of(platform_target)
    return functools.partial(Kernel, target=target) if fn is None else Kernel(fn, target)
