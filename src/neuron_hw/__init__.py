"""The hardware in numbers: chips, instance types, and what instructions, transfers and collectives cost.

Every number is a :class:`Fact`: a float with its unit, the public document that states it and what other documents say.
Costs are formulas over these numbers; none is fitted to a measurement of a whole kernel. docs/model-accuracy.md puts
what follows from them beside every public measurement.
"""

from __future__ import annotations

from .chips import CHIPS, Chip, chip
from .collective_costs import collective_time
from .dma_costs import EngineShare, dma_efficiency, shares_of_rows, transfer_time
from .engine_costs import Operand, engine_cycles, matmul_cycles, mx_matmul_cycles, transpose_cycles
from .facts import Conflict, Fact, UnknownMachineError
from .instances import INSTANCES, InstanceType, Topology, instance_type

__all__ = [
    "CHIPS",
    "INSTANCES",
    "Chip",
    "Conflict",
    "EngineShare",
    "Fact",
    "InstanceType",
    "Operand",
    "Topology",
    "UnknownMachineError",
    "chip",
    "collective_time",
    "dma_efficiency",
    "engine_cycles",
    "instance_type",
    "matmul_cycles",
    "mx_matmul_cycles",
    "shares_of_rows",
    "transfer_time",
    "transpose_cycles",
]
