"""The instance types and how the chips in them are connected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from .chips import Chip, chip
from .facts import Fact, UnknownMachineError

__all__ = ["INSTANCES", "InstanceType", "Topology", "instance_type"]

_TRN1 = "Neuron: Trn1 Architecture"
_TRN2 = "Neuron: Trn2 Architecture"
_TRN3 = "Neuron: Trn3 Architecture"


@dataclass(frozen=True)
class Topology:
    """How chips are connected.

    Attributes:
        kind: "none", "torus" or "switch".
        shape: chips along each dimension of the torus; () otherwise.
        bandwidth: GB/s of one chip into it, both directions together.
        servers: instances that are connected without the network (an UltraServer); 1 for a lone instance.
        server_bandwidth: GB/s of one chip to other instances of the UltraServer.
        network: GB/s of the instance into the network (EFA).
    """

    kind: str
    shape: tuple[int, ...]
    bandwidth: Fact
    servers: int
    server_bandwidth: Fact
    network: Fact


@dataclass(frozen=True)
class InstanceType:
    """An instance type. Attributes: name; target ("trn1", ...); chips in it; topology."""

    name: str
    target: str
    chips: int
    topology: Topology

    @property
    def chip(self) -> Chip:
        return chip(self.target)

    @property
    def logical_cores(self) -> int:
        """Devices that a framework sees with the default logical NeuronCore configuration."""
        return self.chips * self.chip.logical_cores

    @property
    def hbm_bytes_per_logical_core(self) -> int:
        return int(self.chip.hbm_bytes) // self.chip.logical_cores


def _topology(
    kind: str, shape: tuple[int, ...], gb: float, gbit: float, source: str, servers: int = 1, server_gb: float = 0
) -> Topology:
    network = Fact(gbit / 8, "GB/s", source)
    return Topology(kind, shape, Fact(gb, "GB/s", source), servers, Fact(server_gb, "GB/s", source), network)


_3XLARGE = "inference: one Trainium2 chip; nki-library's collective tests name the type, no page specifies it"

_ALL = (
    InstanceType("trn1.2xlarge", "trn1", 1, _topology("none", (), 0, 25, _TRN1)),
    InstanceType("trn1.32xlarge", "trn1", 16, _topology("torus", (4, 4), 384, 800, _TRN1)),
    InstanceType("trn1n.32xlarge", "trn1", 16, _topology("torus", (4, 4), 384, 1600, _TRN1)),
    InstanceType("trn2.3xlarge", "trn2", 1, _topology("none", (), 0, 0, _3XLARGE)),
    InstanceType("trn2.48xlarge", "trn2", 16, _topology("torus", (4, 4), 1024, 3200, _TRN2)),
    InstanceType("trn2u.48xlarge", "trn2", 16, _topology("torus", (4, 4), 1024, 3200, _TRN2, 4, 256)),
    InstanceType("trn3.gen1", "trn3", 16, _topology("switch", (), 256, 3200, _TRN3, 4, 320)),
    InstanceType("trn3.gen2", "trn3", 4, _topology("switch", (), 256, 800, _TRN3, 36, 448)),
)

INSTANCES: Mapping[str, InstanceType] = MappingProxyType({i.name: i for i in _ALL})


def instance_type(name: str) -> InstanceType:
    """The instance type of that name, e.g. "trn2.48xlarge".

    Raises:
        UnknownMachineError: there is none.
    """
    found = INSTANCES.get(name)
    if found is None:
        raise UnknownMachineError("instance type", name, tuple(INSTANCES))
    return found
