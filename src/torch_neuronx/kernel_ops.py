"""NKI kernels as PyTorch ops: one node in compiled graphs, with gradients where they are registered.

@nki_op("mylib::double")
def double(x: torch.Tensor) -> torch.Tensor:
    return double_kernel(x)

@nki_op("mylib::scale_", mutates_args={"x"})
def scale_(x: torch.Tensor, by: float) -> None:
    scale_kernel(x, by)

wrap_nki(double_kernel)(x)          # without a name of its own
wrap_nki(double_kernel)[2](x)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.library import CustomOpDef

from nki.arguments import Structure, bind
from nki.errors import NotAKernelError
from nki.kernel import BoundKernel, Kernel, grid_of
from nki.specialization import Specialization

from . import nki_launch

__all__ = ["WrappedKernel", "nki_op", "wrap_nki"]


def nki_op(
    name: str,
    fn: Callable[..., Any] | None = None,
    /,
    *,
    mutates_args: str | Iterable[str] = (),
    schema: str | None = None,
) -> Any:
    """Registers a typed function that calls NKI kernels as a PyTorch op.

    Args:
        name: "namespace::name".
        fn: the function; without it, a decorator is returned. Its tensors and results must be annotated unless `schema`
            is given. It may prepare arguments, call kernels and combine their results; its result may not share memory
            with its arguments.
        mutates_args: names of the arguments that the kernels write.
        schema: as of torch.library.custom_op.

    Returns:
        A torch.library.CustomOpDef: `register_autograd` gives it a gradient. Shapes for compilers come from tracing the
        kernels; `register_fake` replaces that.
    """

    def register(function: Callable[..., Any]) -> CustomOpDef:
        op = torch.library.custom_op(name, function, mutates_args=mutates_args, schema=schema)
        op.register_fake(function)
        return op

    return register if fn is None else register(fn)


def wrap_nki(kernel: Kernel | BoundKernel) -> WrappedKernel:
    """A kernel that can be called in code under torch.compile, where it is one node of the graph.

    Raises:
        NotAKernelError: `kernel` was not made by `nki.jit`.
    """
    if isinstance(kernel, BoundKernel):
        return WrappedKernel(kernel)
    if not isinstance(kernel, Kernel):
        raise NotAKernelError(function="wrap_nki", kernel=kernel)
    return WrappedKernel(BoundKernel(kernel))


class WrappedKernel:
    """See :func:`wrap_nki`. `wrapped[grid]` chooses the grid."""

    def __init__(self, bound: BoundKernel) -> None:
        self._bound = bound

        def call(*args: Any, **kwargs: Any) -> Any:
            return _call(bound, args, kwargs)

        # Dynamo puts this function into its graph as it is; what is traced later is the op that it calls.
        self._call = torch.compiler.allow_in_graph(call)

    def __getitem__(self, grid: Any) -> WrappedKernel:
        bound = self._bound
        grid = grid_of(grid, bound.kernel.__name__)
        return WrappedKernel(BoundKernel(bound.kernel, grid, bound.target, bound.ranks))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)


def _call(bound: BoundKernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    structure = Structure(bind(bound.kernel.function, args, kwargs), "", _is_tensor)
    tensors = structure.tensors
    specialization = bound.kernel.specialization_of(structure, bound.request(nki_launch.target()))
    made = _run(specialization, tensors)
    results = (tensors[o.argument] if o.argument >= 0 else made[o.shared].view(o.shape) for o in specialization.outputs)
    return specialization.result.rebuilt(results)


def _run(specialization: Specialization, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    number = _number(specialization)
    if not specialization.written:
        return torch.ops.neuron.nki_kernel(tensors, number)
    # An op may write arguments or return new tensors, but not both: results are arguments that it writes.
    results = nki_launch.empty_results(specialization, tensors[0].device)
    written = [tensors[place] for place in sorted(specialization.written)]
    read = [t for place, t in enumerate(tensors) if place not in specialization.written]
    torch.ops.neuron.nki_kernel_([*written, *results], read, number)
    return results


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


# What the numbers in graphs stand for.
_specializations: list[Specialization] = []
_numbers: dict[Specialization, int] = {}


def _number(specialization: Specialization) -> int:
    number = _numbers.get(specialization)
    if number is None:
        number = _numbers[specialization] = len(_specializations)
        _specializations.append(specialization)
    return number


@torch.library.custom_op("neuron::nki_kernel", mutates_args=())
def _nki_kernel(tensors: Sequence[torch.Tensor], number: int) -> list[torch.Tensor]:
    return nki_launch.launch(_specializations[number], list(tensors))


@_nki_kernel.register_fake
def _shapes(tensors: Sequence[torch.Tensor], number: int) -> list[torch.Tensor]:
    return nki_launch.empty_results(_specializations[number], tensors[0].device)


@torch.library.custom_op("neuron::nki_kernel_", mutates_args={"written"})
def _nki_kernel_(written: Sequence[torch.Tensor], read: Sequence[torch.Tensor], number: int) -> None:
    specialization = _specializations[number]
    places = sorted(specialization.written)
    by_place = dict(zip(places, written, strict=False))
    rest = iter(read)
    tensors = [by_place[p] if p in by_place else next(rest) for p in range(len(places) + len(read))]
    nki_launch.launch(specialization, tensors, list(written[len(places) :]))


@_nki_kernel_.register_fake
def _nothing_new(written: Sequence[torch.Tensor], read: Sequence[torch.Tensor], number: int) -> None:
    pass
