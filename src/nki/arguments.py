"""Arguments and results of a kernel: where tensors stand in them, and what else a specialisation depends on."""

from __future__ import annotations

import enum
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from . import arrays
from .errors import KernelArgumentError
from .tensor import NkiTensor

__all__ = ["Structure", "bind", "call", "constant_key", "tensors_of"]


_signature = lru_cache(maxsize=1024)(inspect.signature)  # looking at a function takes longer than a small kernel


def bind(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by parameter name, defaults filled in.

    Raises:
        KernelArgumentError: they do not fit the kernel's signature.
    """
    try:
        bound = _signature(function).bind(*args, **kwargs)
    except TypeError as reason:
        raise KernelArgumentError(kernel=function.__name__, reason=str(reason)) from None
    bound.apply_defaults()
    return dict(bound.arguments)


def call(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Calls `function` with what :func:`bind` returned."""
    signature = _signature(function)
    bound = inspect.BoundArguments(signature, OrderedDict(arguments))
    return function(*bound.args, **bound.kwargs)


class Structure:
    """A nest of tuples, lists and dicts with tensors in it, taken apart into the tensors and the rest.

    Attributes:
        tensors: in the order of the nest.
        names: how each is reached, as in `weights[0]`.
        key: what the rest is, hashable; None when it cannot be compared.
    """

    def __init__(self, value: Any, name: str, is_tensor: Callable[[Any], bool]) -> None:
        self.tensors: list[Any] = []
        self.names: list[str] = []
        self._is_tensor = is_tensor
        self._value = value
        self.key = self._walk(value, name)

    def _walk(self, value: Any, name: str) -> Any:
        if self._is_tensor(value):
            self.tensors.append(value)
            self.names.append(name)
            return ("tensor", len(self.tensors) - 1)
        if isinstance(value, dict):
            inner = [(k, self._walk(v, f"{name}[{k!r}]" if name else str(k))) for k, v in value.items()]
        elif isinstance(value, (tuple, list)):
            inner = [(None, self._walk(v, f"{name}[{i}]" if name else f"result {i}")) for i, v in enumerate(value)]
        else:
            return constant_key(value)
        if any(key is None for _, key in inner):
            return None
        return (type(value).__name__, tuple(inner))

    def rebuilt(self, replacements: Iterator[Any]) -> Any:
        """The nest with other tensors in the places of its own, in order."""
        return self._rebuild(self._value, replacements)

    def _rebuild(self, value: Any, replacements: Iterator[Any]) -> Any:
        if self._is_tensor(value):
            return next(replacements)
        if isinstance(value, dict):
            return {k: self._rebuild(v, replacements) for k, v in value.items()}
        if isinstance(value, (tuple, list)):
            inner = [self._rebuild(v, replacements) for v in value]
            if hasattr(value, "_fields"):  # a named tuple
                return type(value)(*inner)
            return type(value)(inner)
        return value


def constant_key(value: Any) -> Any:
    """Something hashable that is equal for equal compile-time values; None when there is nothing of the kind."""
    if value is None or isinstance(value, (bool, int, float, str, bytes, enum.Enum)):
        return (type(value).__name__, value)
    if callable(value) and not hasattr(value, "__dict__"):
        return ("function", value)
    if inspect.isfunction(value) or inspect.isbuiltin(value) or inspect.isclass(value):
        return ("function", value)
    fields = getattr(value, "__dict__", None)
    if fields is not None and not arrays.is_array(value):
        inner = [(name, constant_key(field)) for name, field in sorted(fields.items())]
        if all(key is not None for _, key in inner):
            return (type(value), tuple(inner))
    try:
        hash(value)
    except TypeError:
        return None
    return (type(value), value)


def tensors_of(result: Any, name: str) -> Structure:
    """The tensors that a kernel returned."""
    return Structure(result, name, lambda value: isinstance(value, NkiTensor))
