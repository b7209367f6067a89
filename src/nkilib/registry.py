"""Which functions of PyTorch the kernels can stand in for: what `nkilib.enable` routes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from .errors import UnknownRouteError

__all__ = ["route", "routes", "table"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

# By name: PyTorch's functions, and what is called in their place.
_replacements: dict[str, dict[Callable[..., Any], Callable[..., Any]]] = {}
# Those that are routed without being named.
_defaults: set[str] = set()


def route(name: str, *functions: Callable[..., Any], default: bool = True) -> Callable[[_Function], _Function]:
    """Makes the decorated function stand in for `functions` of PyTorch, whose arguments it takes.

    It is called when a tensor among the arguments is on the device, and returns NotImplemented for whatever the kernels
    do not support: PyTorch's own function runs then.

    Args:
        name: what `nkilib.enable` calls it.
        default: whether `enable()` without names means it too.
    """

    def register(replacement: _Function) -> _Function:
        _replacements.setdefault(name, {}).update(dict.fromkeys(functions, replacement))
        if default:
            _defaults.add(name)
        return replacement

    return register


def routes() -> dict[str, bool]:
    """Names of all routes, and whether `enable()` without names means them."""
    return {name: name in _defaults for name in sorted(_replacements)}


def table(names: Iterable[str]) -> dict[Callable[..., Any], Callable[..., Any]]:
    """What stands in for which function of PyTorch; without names, for those that are routed by default.

    Raises:
        UnknownRouteError: there is no route of a name.
    """
    chosen = list(names) or sorted(_defaults)
    for name in chosen:
        if name not in _replacements:
            raise UnknownRouteError(name=name, known=", ".join(sorted(_replacements)))
    return {function: replacement for name in chosen for function, replacement in _replacements[name].items()}
