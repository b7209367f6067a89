"""`nkilib.enable`: PyTorch's own functions computed by the kernels, where they support the arguments.

A TorchFunctionMode looks at each call of a PyTorch function in the thread that enabled it. Functions of the table whose
arguments are on the device go to the op of this library, which has its own gradient; everything else, and every call
with shapes, types or options that the kernels do not support, goes on to PyTorch. That is seen before autograd and
before the dispatcher, so it works in training, in modules and under torch.compile alike, and nothing of PyTorch is
patched. What it does not see: other threads, and calls from C++ (as a gradient that PyTorch computes by itself).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from .registry import table

__all__ = ["Enabled", "disable", "enable"]

_Table = Mapping[Callable[..., Any], Callable[..., Any]]


class _Routing(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.table: _Table = {}

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        replacement = self.table.get(func)
        if replacement is not None and _suits(args, kwargs):
            result = replacement(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return func(*args, **kwargs)


def _suits(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the call is on the device, and in a state in which ours means what PyTorch's function does."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor) and value.device.type == "neuron":
            # Autocast chooses types by PyTorch's ops; the transforms of torch.func need rules that ours do not have.
            # Dynamo, which sees an interpreter in any case, refuses those itself.
            transforms = not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None
            return not transforms and not torch.is_autocast_enabled("neuron")
    return False


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.routing = _Routing()


_of_thread = _OfThread()


def _is_on(routing: _Routing) -> bool:
    return any(mode is routing for mode in _get_current_function_mode_stack())


def _set(routes: _Table) -> None:
    routing = _of_thread.routing
    routing.table = routes
    if routes and not _is_on(routing):
        routing.__enter__()
    elif not routes and _get_current_function_mode_stack()[-1:] == [routing]:
        # Below another mode it stays where it is, with nothing to do.
        routing.__exit__(None, None, None)


class Enabled:
    """What :func:`enable` returns: used in a `with` statement, it brings back what was enabled before."""

    def __init__(self, before: _Table) -> None:
        self._before = before

    def __enter__(self) -> Enabled:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _set(self._before)


def enable(*names: str) -> Enabled:
    """Routes functions of PyTorch on tensors of the device to the kernels of this library, in the current thread.

        nkilib.enable()                      # until nkilib.disable()
        with nkilib.enable("softmax"):       # until the end of the block
            ...

    Calls that the kernels do not support run as before: other types than bf16, fp16 and fp32, empty tensors, options
    that the kernels do not have, calls under autocast and in transforms of torch.func.

    Args:
        names: routes, of :func:`nkilib.routes`; without any, those that are on by default.

    Raises:
        UnknownRouteError: there is no route of a name.
    """
    before = _of_thread.routing.table
    _set(table(names))
    return Enabled(before)


def disable() -> None:
    """Routes nothing any more in the current thread."""
    _set({})
