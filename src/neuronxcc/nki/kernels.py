"""Kernels of the Beta 1 dialect: traced by this dialect's rules, then the same as any other kernel of `nki`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from nki.arguments import Structure, bind
from nki.errors import UnknownJitOptionError
from nki.kernel import BoundKernel, Kernel, grid_of
from nki.profiling import Profile, profile
from nki.trace import active as active_trace
from nki.trace import current as current_trace

from . import context
from .arguments import is_array, results, tiles
from .loops import check_loops
from .passes import merge_assignments, order_shared_memory

__all__ = [
    "Benchmarked",
    "Beta1Kernel",
    "Latency",
    "baremetal",
    "benchmark",
    "jit",
    "profiled",
    "simulate_kernel",
    "trace",
]

# What the compiler was told; there is none here.
_IGNORED = frozenset(
    {
        "mode", "additional_compile_opt", "artifacts_dir", "save_neff_name", "save_trace_name", "show_compiler_tb",
        "debug_kernel", "experimental_flags", "enable_out_of_bound_check", "kernel_return", "working_directory",
        "overwrite", "profile_nth", "warmup", "iters", "compiler_flags", "tile_size"
    }
)  # fmt: skip


class _Traced:
    """A kernel's function as the tracer of `nki` calls it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.__code__ = function.__code__
        functools.update_wrapper(self, function)
        self._function = function

    __name__: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if context.active() is not None:  # called by another kernel, whose tiles it takes as they are
            return self._function(*args, **kwargs)
        notes = context.Context()
        with context.using(notes):
            result = self._function(*tiles(args), **tiles(kwargs))
            trace = current_trace()
            check_loops(trace, notes)
            merge_assignments(trace, notes)
            order_shared_memory(trace)
            return results(result)


class Beta1Kernel(Kernel):
    """A function written in the Beta 1 dialect. Call it with NumPy arrays or tensors; grids may have any dimensions.

    Attributes:
        target: chip that it is made for, or None for the default one.
    """

    def __init__(self, function: Callable[..., Any], target: str | None = None) -> None:
        super().__init__(function if isinstance(function, _Traced) else _Traced(function))
        self.target = target

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if active_trace() is not None:
            return self.function(*args, **kwargs)
        return _Bound(self, (), self.target)(*args, **kwargs)

    def __getitem__(self, grid: Any) -> BoundKernel:
        return _Bound(self, _grid(grid, self.__name__), self.target)


class _Bound(BoundKernel):
    """A kernel of this dialect with its grid. It may have no tensors as arguments; then it gives NumPy arrays."""

    def __getitem__(self, grid: Any) -> BoundKernel:
        return _Bound(self.kernel, _grid(grid, self.kernel.__name__), self.target, self.ranks)

    def structure(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Structure:
        structure = Structure(bind(self.kernel.function, args, kwargs), "", is_array)
        if not structure.tensors:
            # An argument that nothing refers to: it says which framework the results belong to.
            structure.tensors.append(np.zeros(1, np.float32))
            structure.names.append("")
        return structure


def _grid(grid: Any, kernel: str) -> tuple[int, ...]:
    """The grid; [0] is no grid, as kernels that were never launched otherwise say."""
    return () if grid == 0 else grid_of(grid, kernel)


def _function(kernel: Any) -> Any:
    return kernel.function if isinstance(kernel, Kernel) else kernel


def _decorator(make: Callable[[Any, dict[str, Any]], Any], kernel: Any, options: dict[str, Any]) -> Any:
    unknown = set(options) - _IGNORED - {"platform_target"}
    if unknown:
        raise UnknownJitOptionError(options=", ".join(sorted(unknown)))
    return (lambda function: make(function, options)) if kernel is None else make(kernel, options)


def _kernel(function: Any, options: dict[str, Any]) -> Beta1Kernel:
    target = options.get("platform_target") or getattr(function, "target", None)
    return Beta1Kernel(_function(function), target)


def jit(func: Callable[..., Any] | None = None, mode: str = "auto", **options: Any) -> Any:
    """Makes a kernel of a function of this dialect, as a decorator or called with a function or a kernel.

    Args:
        mode: accepted; a kernel runs where its arguments are, and on the simulator for NumPy arrays.
        options: `platform_target` is the chip; flags of the compiler are accepted and not used.

    Raises:
        UnknownJitOptionError: there is no such option.
    """
    return _decorator(_kernel, func, options)


def trace(func: Callable[..., Any] | None = None, **options: Any) -> Any:
    """The same as :func:`jit`, under the name that it had before."""
    return _decorator(_kernel, func, options)


def baremetal(kernel: Any = None, **options: Any) -> Any:
    """Makes a kernel that runs on the simulator; see :func:`jit`."""
    return _decorator(_kernel, kernel, options)


class Latency:
    """Modelled latency of a kernel; the simulator has no other runs to take percentiles of."""

    def __init__(self, microseconds: float) -> None:
        self.microseconds = microseconds

    def get_latency_percentile(self, percentile: int) -> float:
        """The latency in microseconds, the same for each percentile."""
        return self.microseconds


class _Result:
    def __init__(self, latency: float) -> None:
        self.nc_latency = Latency(latency)


class Benchmarked:
    """A kernel that runs on the simulator and says how long it would take on the chip.

    Attributes:
        benchmark_result: has `nc_latency`, once the kernel was called.
        profile: the modelled profile, once the kernel was called.
    """

    def __init__(self, kernel: Any, options: dict[str, Any], grid: tuple[int, ...] = ()) -> None:
        self.kernel = _kernel(kernel, options)
        self.grid = grid
        self.benchmark_result: _Result | None = None
        self.profile: Profile | None = None

    def __getitem__(self, grid: Any) -> Benchmarked:
        self.grid = _grid(grid, self.kernel.__name__)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        bound = _Bound(self.kernel, self.grid, self.kernel.target)
        self.profile = profile(bound)(*args, **kwargs)
        self.benchmark_result = _Result(self.profile.latency_us)
        return bound(*args, **kwargs)


def benchmark(kernel: Any = None, **options: Any) -> Any:
    """Makes a kernel that also models its latency, see :class:`Benchmarked`."""
    return _decorator(Benchmarked, kernel, options)


def profiled(func: Any = None, **options: Any) -> Any:
    """Makes a kernel that also models its profile, see :class:`Benchmarked`."""
    return _decorator(Benchmarked, func, options)


def simulate_kernel(kernel: Any, *args: Any, **kwargs: Any) -> Any:
    """Runs a kernel, with or without a grid, on NumPy arrays; those that it writes are changed in place."""
    if isinstance(kernel, BoundKernel):
        return kernel(*args, **kwargs)
    return _kernel(kernel, {})(*args, **kwargs)
