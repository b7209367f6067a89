"""The options of the backend `neuron`: `torch.compile(model, backend="neuron", options={...})`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from torch_neuronx.errors import BadCompileOptionError, UnknownCompileOptionError

__all__ = ["CompileOptions", "parse"]

_told: set[str] = set()


@dataclass(frozen=True)
class CompileOptions:
    """What `options` may hold.

    Attributes:
        fallback_execution: a graph that cannot be built runs op by op, as in eager mode, with one warning; else it is
            an error. Default: the knob `TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION`, turned round.
        model_name: names programs in listings, errors and profiles.
    """

    fallback_execution: bool = False
    model_name: str = "graph"


def parse(mode: str | None, options: Mapping[str, Any] | None) -> CompileOptions:
    """The options of one `torch.compile` call.

    Raises:
        UnknownCompileOptionError: there is no such option.
        BadCompileOptionError: a value of another type.
    """
    if mode not in (None, "default") and mode not in _told:
        _told.add(mode)
        warnings.warn(
            f"backend 'neuron' has one mode: mode={mode!r} is taken as 'default'. For replay without Python use "
            "torch.neuron.make_graphed_callables.",
            UserWarning,
            stacklevel=2,
        )
    from torch_neuronx import knobs

    values: dict[str, Any] = {"fallback_execution": not knobs.DISABLE_FALLBACK_EXECUTION.value}
    known = {field.name: type(field.default) for field in fields(CompileOptions)}
    for name, value in (options or {}).items():
        if name not in known:
            raise UnknownCompileOptionError(name=name, known=", ".join(known))
        if not isinstance(value, known[name]):
            raise BadCompileOptionError(name=name, value=value, expected=known[name].__name__)
        values[name] = value
    return CompileOptions(**values)
