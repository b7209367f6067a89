"""Which chip a kernel is traced for."""

from __future__ import annotations

import os
from types import MappingProxyType

from .errors import UnknownTargetError

__all__ = ["GENERATIONS", "INSTANCE", "OVERRIDE", "target_of"]

# The variables that choose a chip where nothing else does; the first one wins.
OVERRIDE, INSTANCE = "NEURON_PLATFORM_TARGET_OVERRIDE", "NEURON_EMU_INSTANCE"

# Generation of the NeuronCore in each chip.
GENERATIONS = MappingProxyType({"trn1": 2, "trn2": 3, "trn3": 4})
_ALIASES = MappingProxyType(
    {"inf2": "trn1", "gen2": "trn1", "gen3": "trn2", "gen4": "trn3", "nc2": "trn1", "nc3": "trn2", "nc4": "trn3"}
)


def target_of(target: str | None = None) -> str:
    """The chip named by `target`, or else by NEURON_PLATFORM_TARGET_OVERRIDE, NEURON_EMU_INSTANCE, or "trn2".

    Raises:
        UnknownTargetError: there is no such chip.
    """
    if target is None:
        instance = os.environ.get(INSTANCE, "trn2").partition(".")[0]
        target = os.environ.get(OVERRIDE) or instance
    name = target.lower()
    name = _ALIASES.get(name, name)
    # trn1n, trn2u, trn3u: the same chip in another instance.
    name = name if name in GENERATIONS else name[:4]
    if name not in GENERATIONS:
        raise UnknownTargetError(target=target, known=", ".join((*GENERATIONS, *_ALIASES)))
    return name
