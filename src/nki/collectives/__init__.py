"""nki.collectives: exchange of tensors between the cores of a group of ranks.

Each call is one instruction, "collective", on the DMA engines. Its attributes are (kind, groups, op, dimension,
channels): the name of the function (for rings "permute_implicit" and "permute_implicit_reduce"), the groups as tuples
of ranks (for collective_permute the pairs), the operator or None, the dimension along which tensors are cut and joined,
and for rings the numbers of the channels. Sources and destinations
are its operands; where there are several, they correspond in order.

    import nki.collectives as ncc
"""

from __future__ import annotations

from .groups import (
    ReplicaGroup,
    collective_permute_implicit_current_processing_rank_id,
    rank_id,
)
from .operations import (
    all_gather,
    all_gather_v,
    all_reduce,
    all_to_all,
    all_to_all_v,
    collective_permute,
    collective_permute_implicit,
    collective_permute_implicit_reduce,
    reduce_scatter,
)
from .split import all_gather_v_prepare, all_gather_v_trigger, all_to_all_v_prepare, all_to_all_v_trigger

__all__ = [
    "ReplicaGroup",
    "all_gather",
    "all_gather_v",
    "all_gather_v_prepare",
    "all_gather_v_trigger",
    "all_reduce",
    "all_to_all",
    "all_to_all_v",
    "all_to_all_v_prepare",
    "all_to_all_v_trigger",
    "collective_permute",
    "collective_permute_implicit",
    "collective_permute_implicit_current_processing_rank_id",
    "collective_permute_implicit_reduce",
    "rank_id",
    "reduce_scatter",
]
