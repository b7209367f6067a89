"""What collectives cost: latency of each step plus bytes over the bandwidth of the links.

Algorithms and the sizes at which they change are those that "Neuron: Intra-node Collective Communications" names for a
trn2 node; steps between nodes are from "Neuron: Inter-node Collective Communications". The pages give no bandwidths of
single links; each chip's own into the instance is used, of which half goes each way.
"""

from __future__ import annotations

from .facts import Fact
from .instances import InstanceType

__all__ = ["HOP", "NETWORK_HOP", "algorithm", "collective_time", "traffic"]

_INTRA = "Neuron: Intra-node Collective Communications"
HOP = Fact(1500, "ns", f"{_INTRA}: 1 to 2 us per step of a ring")
NETWORK_HOP = Fact(15000, "ns", "Neuron: Inter-node Collective Communications: about 15 us from HBM to HBM")
MESH_LIMIT = Fact(1 << 20, "bytes", f"{_INTRA}: mesh up to 1 MB")
HALVING_LIMIT = Fact(56 << 20, "bytes", f"{_INTRA}: recursive doubling and halving up to 56 MB, rings beyond")


def algorithm(size: int) -> str:
    """ "mesh", "halving" (recursive doubling and halving) or "ring", by the bytes of the message."""
    return "mesh" if size < MESH_LIMIT else "halving" if size <= HALVING_LIMIT else "ring"


def traffic(kind: str, size: int, ranks: int) -> float:
    """Bytes that each rank sends.

    Args:
        kind: "all_reduce", "all_gather", "reduce_scatter", "all_to_all", or a permutation.
        size: bytes of the whole message: the gathered or the reduced tensor.
    """
    if kind == "all_reduce":
        return 2 * size * (ranks - 1) / ranks
    if kind.startswith(("all_gather", "reduce_scatter", "all_to_all")):
        return size * (ranks - 1) / ranks
    return float(size)


def collective_time(instance: InstanceType, kind: str, size: int, ranks: int) -> float:
    """ns of one collective.

    Args:
        instance: where it runs; ranks beyond its logical cores lie in other instances.
        kind, size: see :func:`traffic`.
        ranks: logical cores that take part.
    """
    if ranks < 2:
        return 0.0
    inside = min(ranks, instance.logical_cores)
    outside = -(-ranks // instance.logical_cores)
    time = _inside(instance, kind, size, inside)
    if outside > 1:
        topology = instance.topology
        near = outside <= topology.servers
        rate = topology.server_bandwidth / 2 * instance.chips if near else topology.network
        steps = (outside - 1) * (2 if kind == "all_reduce" else 1)
        time += steps * (HOP if near else NETWORK_HOP) + traffic(kind, size, outside) / max(float(rate), 1e-9)
    return time


def _inside(instance: InstanceType, kind: str, size: int, ranks: int) -> float:
    per_chip = instance.chip.logical_cores
    phases = 2 if kind == "all_reduce" else 1
    if ranks <= per_chip:  # within a chip everything goes through its own memory
        rate = instance.chip.hbm_bandwidth / per_chip / 2
    else:
        rate = instance.topology.bandwidth / 2 / per_chip
    chosen = algorithm(size)
    if kind.startswith(("permute", "collective_permute")):
        steps = 1.0
    elif chosen == "mesh":
        steps = 1.0 * phases
    elif chosen == "halving":
        steps = phases * float((ranks - 1).bit_length())
    else:
        steps = phases * (ranks - 1) / 2
    return steps * HOP + traffic(kind, size, ranks) / rate
