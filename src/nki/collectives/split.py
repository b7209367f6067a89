"""Variable collectives in two steps: what depends on the counts alone is done before the data is there.

A prepare looks at the metadata as it is then, which is kept in a tensor of its own; the trigger moves the data.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..base_errors import NkiError
from ..isa.dma import dma_copy
from ..isa.instruction_handle import NkiInstruction
from ..memory import allocate
from ..regions import MemoryRegion
from ..tensor import NkiTensor
from ..tensor_errors import PreparedCollectiveError
from ..trace import current, source_line
from .groups import ReplicaGroup
from .operations import check_variable, emit_variable

__all__ = ["all_gather_v_prepare", "all_gather_v_trigger", "all_to_all_v_prepare", "all_to_all_v_trigger"]


@dataclass
class Prepared:
    """A collective between its two steps."""

    kind: str
    instruction: NkiInstruction
    srcs: list[NkiTensor]
    dsts: list[NkiTensor]
    group: ReplicaGroup
    metadata: NkiTensor
    kept: NkiTensor
    counts_known: bool
    has_rdispls: bool
    priority: int | None


def all_gather_v_prepare(
    srcs: list[NkiTensor],
    dsts: list[NkiTensor],
    replica_group: ReplicaGroup,
    metadata_tensor: NkiTensor,
    recv_counts_known: bool = False,
    has_rdispls: bool = False,
    priority: int | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """The first step of an all_gather_v, see there for the arguments. `srcs` may be filled after it.

    Returns:
        What :func:`all_gather_v_trigger` takes; it has to be triggered before another collective is prepared.

    Raises:
        CollectiveOperandError, ReplicaGroupError: as all_gather_v.
        PreparedCollectiveError: another one is prepared, and was not triggered.
    """
    return _prepare(
        "all_gather_v", srcs, dsts, replica_group, metadata_tensor, recv_counts_known, has_rdispls, priority, name
    )


def all_to_all_v_prepare(
    srcs: list[NkiTensor],
    dsts: list[NkiTensor],
    replica_group: ReplicaGroup,
    metadata_tensor: NkiTensor,
    recv_counts_known: bool = False,
    has_rdispls: bool = False,
    priority: int | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """The first step of an all_to_all_v; as :func:`all_gather_v_prepare`."""
    return _prepare(
        "all_to_all_v", srcs, dsts, replica_group, metadata_tensor, recv_counts_known, has_rdispls, priority, name
    )


def all_gather_v_trigger(prepare_instr: NkiInstruction, name: str | None = None) -> NkiInstruction:
    """The second step of an all_gather_v: reads the sources, writes the destinations.

    Raises:
        PreparedCollectiveError: `prepare_instr` is not what the last all_gather_v_prepare returned.
    """
    return _trigger("all_gather_v", prepare_instr, name)


def all_to_all_v_trigger(prepare_instr: NkiInstruction, name: str | None = None) -> NkiInstruction:
    """The second step of an all_to_all_v; as :func:`all_gather_v_trigger`."""
    return _trigger("all_to_all_v", prepare_instr, name)


def _mistake(why: str) -> NkiError:
    return PreparedCollectiveError(why=why, line=source_line())


def _prepare(
    kind: str,
    srcs: list[NkiTensor],
    dsts: list[NkiTensor],
    group: ReplicaGroup,
    metadata: NkiTensor,
    counts_known: bool,
    has_rdispls: bool,
    priority: int | None,
    name: str | None,
) -> NkiInstruction:
    trace = current()
    if trace.prepared is not None:
        raise _mistake(f"{kind}_prepare follows the prepare of {trace.prepared.kind}, which was not triggered")
    check_variable(kind, srcs, dsts, group, metadata, has_rdispls)
    kept = allocate(MemoryRegion.private_hbm, metadata.shape[-2:], metadata.dtype)
    instruction = dma_copy(dst=kept, src=metadata, name=name)
    trace.prepared = Prepared(kind, instruction, srcs, dsts, group, metadata, kept, counts_known, has_rdispls, priority)
    return instruction


def _trigger(kind: str, prepare: NkiInstruction, name: str | None) -> NkiInstruction:
    trace = current()
    prepared = trace.prepared
    if prepared is None or prepared.instruction is not prepare or prepared.kind != kind:
        raise _mistake(f"{kind}_trigger takes what the last {kind}_prepare returned, once")
    trace.prepared = None
    instruction = emit_variable(
        kind,
        prepared.srcs,
        prepared.dsts,
        prepared.group,
        prepared.kept,
        prepared.counts_known,
        prepared.has_rdispls,
        prepared.priority,
        name,
    )
    if not prepared.counts_known:
        received = (slice(None), slice(2, 3)) if len(prepared.metadata.shape) == 3 else slice(2, 3)
        dma_copy(dst=prepared.metadata[received], src=prepared.kept[2:3])
    return instruction
