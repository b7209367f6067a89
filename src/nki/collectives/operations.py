"""The collectives themselves: checks of their operands, and the instruction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..isa.instruction_handle import NkiInstruction
from ..operators import name_of
from ..regions import MemoryRegion, is_hbm
from ..tensor import NkiTensor
from ..tensor_errors import CollectiveOperandError, ReplicaGroupError
from ..trace import current, source_line
from .groups import ReplicaGroup, group_of

__all__ = [
    "all_gather", "all_gather_v", "all_reduce", "all_to_all", "all_to_all_v", "collective_permute",
    "collective_permute_implicit", "collective_permute_implicit_reduce", "reduce_scatter",
]  # fmt: skip

_REDUCTIONS = ("add", "maximum", "minimum")
_METADATA = "uint32"


def _refuse(function: str, what: str) -> None:
    raise CollectiveOperandError(function=function, what=what, line=source_line())


def _tensors(function: str, srcs: Any, dsts: Any, *, hbm_only: bool = False, single: bool = False) -> None:
    """Lists of the same length, all in HBM or all in SBUF; several only in HBM."""
    for name, tensors in (("srcs", srcs), ("dsts", dsts)):
        if not isinstance(tensors, (list, tuple)) or not tensors or not all(isinstance(t, NkiTensor) for t in tensors):
            _refuse(function, f"{name} is a list of tensors, not {tensors!r}")
    if len(srcs) != len(dsts):
        _refuse(function, f"there are {len(srcs)} sources and {len(dsts)} destinations")
    tensors = [*srcs, *dsts]
    in_hbm = [is_hbm(t.buffer) for t in tensors]
    if not all(in_hbm):
        if hbm_only:
            _refuse(function, "all tensors have to be in HBM; store tiles first")
        if any(in_hbm) or any(t.buffer is not MemoryRegion.sbuf for t in tensors):
            _refuse(function, "all tensors have to be in HBM, or all in SBUF")
        single = True
    if single and len(srcs) > 1:
        _refuse(function, f"{len(srcs)} tensors at once, but here it takes one")
    for src, dst in zip(srcs, dsts, strict=True):
        if src.dtype != dst.dtype:
            _refuse(function, f"the source has the type {src.dtype} and the destination {dst.dtype}")


def _operator(function: str, op: Any) -> str:
    name = name_of(op, function, "op")
    if name not in _REDUCTIONS:
        _refuse(function, f"op={name}; there are nl.add, nl.maximum and nl.minimum")
    return name


def _dimension(function: str, dim: Any, allowed: tuple[int, ...]) -> int:
    if dim not in allowed:
        _refuse(function, f"collective_dim={dim!r}; it can be {' or '.join(map(str, allowed))} here")
    return int(dim)


def _sizes(
    function: str, srcs: Sequence[NkiTensor], dsts: Sequence[NkiTensor], dim: int, parts: int, into: int
) -> None:
    """Shapes that differ in dimension `dim` only, by `parts` (into > 0: destinations are larger; < 0: smaller)."""
    for src, dst in zip(srcs, dsts, strict=True):
        small, large = (src, dst) if into > 0 else (dst, src)
        expected = list(small.shape)
        expected[dim] *= parts if into else 1
        if tuple(expected) != large.shape:
            _refuse(
                function,
                f"the source has shape {src.shape} and the destination {dst.shape}; dimension {dim} has to differ by a "
                f"factor of {parts if into else 1}, and nothing else",
            )


def _emit(
    kind: str,
    srcs: Sequence[NkiTensor],
    dsts: Sequence[NkiTensor],
    groups: tuple[tuple[int, ...], ...],
    op: str | None,
    dimension: int,
    channels: tuple[int, ...],
    priority: int | None,
    name: str | None,
    more: dict[str, Any] | None = None,
) -> NkiInstruction:
    if priority is not None and priority not in (0, 1, 2, 3):
        _refuse(kind, f"priority={priority!r}; it is 0 to 3, lower first")
    hints = {**(more or {}), **({} if priority is None else {"priority": priority})}
    instruction = NkiInstruction(
        "collective",
        "dma",
        tuple(dsts),
        tuple(srcs),
        (kind, groups, op, dimension, channels),
        source_line(),
        name or "",
        hints or None,
    )
    current().add(instruction)
    return instruction


def all_reduce(
    srcs: list[NkiTensor],
    dsts: list[NkiTensor],
    replica_group: ReplicaGroup,
    op: Any,
    priority: int | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """Combines the tensors of all ranks of a group, element by element; each rank gets the result.

    Args:
        srcs, dsts: tensors of the same shapes and types; all in HBM, or one of each in SBUF.
        replica_group: the groups.
        op: nl.add, nl.maximum or nl.minimum.
        priority: 0 to 3, lower first, where DMA has classes (trn3).

    Raises:
        CollectiveOperandError: other tensors or another operator.
        ReplicaGroupError: this rank is in none of the groups.
    """
    _tensors("all_reduce", srcs, dsts)
    group_of("all_reduce", replica_group.groups, current())
    _sizes("all_reduce", srcs, dsts, 0, 1, 0)
    return _emit("all_reduce", srcs, dsts, replica_group.groups, _operator("all_reduce", op), 0, (), priority, name)


def all_gather(
    srcs: list[NkiTensor],
    dsts: list[NkiTensor],
    replica_group: ReplicaGroup,
    collective_dim: int,
    priority: int | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """Joins the tensors of all ranks of a group, in the order of the group; each rank gets the result.

    Args:
        srcs, dsts: all in HBM, or one of each in SBUF, there of 2 dimensions. Destinations are as many times larger in
            `collective_dim` as the group has ranks.
        replica_group: the groups.
        collective_dim: 0; in SBUF 0 or 1.
        priority: as of :func:`all_reduce`.

    Raises:
        CollectiveOperandError: other tensors or another dimension.
        ReplicaGroupError: this rank is in none of the groups.
    """
    _tensors("all_gather", srcs, dsts)
    on_chip = not is_hbm(srcs[0].buffer)
    dim = _dimension("all_gather", collective_dim, (0, 1) if on_chip else (0,))
    group = group_of("all_gather", replica_group.groups, current())
    _sizes("all_gather", srcs, dsts, dim, len(group), 1)
    return _emit("all_gather", srcs, dsts, replica_group.groups, None, dim, (), priority, name)


def reduce_scatter(
    srcs: list[NkiTensor],
    dsts: list[NkiTensor],
    replica_group: ReplicaGroup,
    collective_dim: int,
    op: Any,
    priority: int | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """Combines the tensors of all ranks of a group and cuts the result; the rank at place i gets part i.

    Args:
        srcs, dsts: all in HBM, or one of each in SBUF. Sources are as many times larger in dimension 0 as the group has
            ranks.
        replica_group: the groups.
        collective_dim: 0.
        op: nl.add, nl.maximum or nl.minimum.
        priority: as of :func:`all_reduce`.

    Raises:
        CollectiveOperandError: other tensors, another dimension or operator.
        ReplicaGroupError: this rank is in none of the groups.
    """
    _tensors("reduce_scatter", srcs, dsts)
    dim = _dimension("reduce_scatter", collective_dim, (0,))
    group = group_of("reduce_scatter", replica_group.groups, current())
    _sizes("reduce_scatter", srcs, dsts, dim, len(group), -1)
    operator = _operator("reduce_scatter", op)
    return _emit("reduce_scatter", srcs, dsts, replica_group.groups, operator, dim, (), priority, name)


def all_to_all(
    srcs: list[NkiTensor],
    dsts: list[NkiTensor],
    replica_group: ReplicaGroup,
    collective_dim: int,
    priority: int | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """Cuts each rank's tensor into as many parts as the group has ranks; the rank at place i gets part i of each.

    Args:
        srcs, dsts: tensors in HBM of the same shapes.
        replica_group: the groups.
        collective_dim: 0; the size is a multiple of the number of ranks.
        priority: as of :func:`all_reduce`.

    Raises:
        CollectiveOperandError: other tensors or another dimension.
        ReplicaGroupError: this rank is in none of the groups.
    """
    _tensors("all_to_all", srcs, dsts, hbm_only=True)
    dim = _dimension("all_to_all", collective_dim, (0,))
    group = group_of("all_to_all", replica_group.groups, current())
    _sizes("all_to_all", srcs, dsts, dim, 1, 0)
    for src in srcs:
        if src.shape[dim] % len(group):
            _refuse("all_to_all", f"{src.shape[dim]} rows do not divide among {len(group)} ranks")
    return _emit("all_to_all", srcs, dsts, replica_group.groups, None, dim, (), priority, name)


def check_variable(
    kind: str,
    srcs: list[NkiTensor],
    dsts: list[NkiTensor],
    replica_group: ReplicaGroup,
    metadata: NkiTensor,
    has_rdispls: bool,
) -> None:
    """What collectives of parts of run-time lengths ask of their operands."""
    _tensors(kind, srcs, dsts, hbm_only=True, single=True)
    group = group_of(kind, replica_group.groups, current())
    rows = 4 if has_rdispls else 3
    expected: tuple[int, ...] = (rows, len(group))
    if isinstance(metadata, NkiTensor) and not is_hbm(metadata.buffer):
        expected = (1, *expected)
    if not isinstance(metadata, NkiTensor) or metadata.dtype != _METADATA or metadata.shape != expected:
        _refuse(kind, f"metadata_tensor has to be a {_METADATA} tensor of shape {expected}, not {metadata!r}")


def emit_variable(
    kind: str,
    srcs: list[NkiTensor],
    dsts: list[NkiTensor],
    replica_group: ReplicaGroup,
    metadata: NkiTensor,
    counts_known: bool,
    has_rdispls: bool,
    priority: int | None,
    name: str | None,
) -> NkiInstruction:
    """The collective itself, of operands that have been checked."""
    # Received counts are a result unless they are known.
    outputs = [*dsts] if counts_known else [*dsts, metadata]
    return _emit(
        kind, [*srcs, metadata], outputs, replica_group.groups, None, 0, (), priority, name,
        {"recv_counts_known": counts_known, "has_rdispls": has_rdispls},
    )  # fmt: skip


def all_gather_v(
    srcs: list[NkiTensor],
    dsts: list[NkiTensor],
    replica_group: ReplicaGroup,
    metadata_tensor: NkiTensor,
    recv_counts_known: bool = False,
    has_rdispls: bool = False,
    priority: int | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """all_gather of parts whose lengths are known only when the kernel runs; tensors count as flat.

    Args:
        srcs, dsts: one tensor each, in HBM.
        replica_group: the groups.
        metadata_tensor: uint32 (3 or 4, ranks) in HBM, or (1, 3 or 4, ranks) in SBUF. Row 0: elements that this rank
            sends; row 1: where they begin in the source (both in the first column); row 2: elements received from each
            rank, written unless `recv_counts_known`; row 3, with `has_rdispls`: where they go in the destination, which
            otherwise is cut into equal parts.

    Raises:
        CollectiveOperandError: other tensors.
        ReplicaGroupError: this rank is in none of the groups.
    """
    check_variable("all_gather_v", srcs, dsts, replica_group, metadata_tensor, has_rdispls)
    return emit_variable("all_gather_v", srcs, dsts, replica_group, metadata_tensor, recv_counts_known, has_rdispls,
                         priority, name)  # fmt: skip


def all_to_all_v(
    srcs: list[NkiTensor],
    dsts: list[NkiTensor],
    replica_group: ReplicaGroup,
    metadata_tensor: NkiTensor,
    recv_counts_known: bool = False,
    has_rdispls: bool = False,
    priority: int | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """all_to_all of parts whose lengths are known only when the kernel runs; tensors count as flat.

    Args:
        As of :func:`all_gather_v`, but rows 0 and 1 of `metadata_tensor` have a column for each rank that is sent to.

    Raises:
        CollectiveOperandError: other tensors.
        ReplicaGroupError: this rank is in none of the groups.
    """
    check_variable("all_to_all_v", srcs, dsts, replica_group, metadata_tensor, has_rdispls)
    return emit_variable("all_to_all_v", srcs, dsts, replica_group, metadata_tensor, recv_counts_known, has_rdispls,
                         priority, name)  # fmt: skip


def collective_permute(
    srcs: list[NkiTensor],
    dsts: list[NkiTensor],
    source_target_pairs: Sequence[tuple[int, int]],
    priority: int | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """Sends a tensor from rank to rank as the pairs say.

    Args:
        srcs, dsts: one tensor each, in HBM, of the same shape.
        source_target_pairs: (sending rank, receiving rank); no rank sends or receives twice.

    Raises:
        CollectiveOperandError: other tensors.
        ReplicaGroupError: ranks that do not exist, or twice.
    """
    _tensors("collective_permute", srcs, dsts, hbm_only=True, single=True)
    _sizes("collective_permute", srcs, dsts, 0, 1, 0)
    pairs = tuple((int(source), int(target)) for source, target in source_target_pairs)
    ranks = current().ranks
    if any(len({pair[side] for pair in pairs}) != len(pairs) for side in (0, 1)) or any(
        not 0 <= rank < ranks for pair in pairs for rank in pair
    ):
        raise ReplicaGroupError(
            function="collective_permute", groups=pairs,
            why=f"has a rank twice on one side, or one of more than the {ranks} there are", line=source_line(),
        )  # fmt: skip
    return _emit("collective_permute", srcs, dsts, pairs, None, 0, (), priority, name)


def _channels(function: str, replica_group: ReplicaGroup, channel_ids: Sequence[int], *lists: Any) -> list[list[Any]]:
    """One tensor per channel from lists of lists."""
    channels = list(channel_ids)
    group = group_of(function, replica_group.groups, current())
    limit = 4 if len(group) == current().ranks else 2
    if channels != list(range(len(channels))) or not 0 < len(channels) <= limit:
        _refuse(function, f"channel_ids={channels}; they are 0, 1, ... and at most {limit} for this group")
    flat = []
    for by_channel in lists:
        if len(by_channel) != len(channels) or any(len(inner) != 1 for inner in by_channel):
            _refuse(function, f"there has to be a list of one tensor for each of the {len(channels)} channels")
        flat.append([inner[0] for inner in by_channel])
    return flat


def collective_permute_implicit(
    srcs_by_channel: list[list[NkiTensor]],
    dsts_by_channel: list[list[NkiTensor]],
    replica_group: ReplicaGroup,
    channel_ids: Sequence[int] = (0,),
    priority: int | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """One round of a ring: each rank sends to the next of its group and receives from the one before.

    Args:
        srcs_by_channel, dsts_by_channel: for each channel a list of one tensor; same shapes, all in HBM or all in SBUF.
        replica_group: the rings.
        channel_ids: 0, 1, ...: rings that work at the same time; at most 4 for a group of all ranks, else 2.

    Raises:
        CollectiveOperandError: other tensors or channels.
        ReplicaGroupError: this rank is in none of the groups.
    """
    function = "collective_permute_implicit"
    srcs, dsts = _channels(function, replica_group, channel_ids, srcs_by_channel, dsts_by_channel)
    for src, dst in zip(srcs, dsts, strict=True):
        _tensors(function, [src], [dst])
    _sizes(function, srcs, dsts, 0, 1, 0)
    return _emit("permute_implicit", srcs, dsts, replica_group.groups, None, 0, tuple(channel_ids), priority, name)


def collective_permute_implicit_reduce(
    srcs0_by_channel: list[list[NkiTensor]],
    srcs1_by_channel: list[list[NkiTensor]],
    dsts_by_channel: list[list[NkiTensor]],
    replica_group: ReplicaGroup,
    op: Any,
    channel_ids: Sequence[int] = (0,),
    priority: int | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """One round of a ring in which each rank sends `op(srcs0, srcs1)` to the next and gets that of the one before.

    Args:
        srcs0_by_channel, srcs1_by_channel, dsts_by_channel: for each channel a list of one tensor. In the instruction
            the first operands of all channels come before the second ones.
        op: nl.add, nl.maximum or nl.minimum.
        replica_group, channel_ids: as of :func:`collective_permute_implicit`.

    Raises:
        CollectiveOperandError: other tensors, channels or operator.
        ReplicaGroupError: this rank is in none of the groups.
    """
    function = "collective_permute_implicit_reduce"
    srcs0, srcs1, dsts = _channels(
        function, replica_group, channel_ids, srcs0_by_channel, srcs1_by_channel, dsts_by_channel
    )
    for first, second, dst in zip(srcs0, srcs1, dsts, strict=True):
        _tensors(function, [first], [dst])
        _tensors(function, [second], [dst])
    _sizes(function, srcs0, dsts, 0, 1, 0)
    _sizes(function, srcs1, dsts, 0, 1, 0)
    operator = _operator(function, op)
    kind = "permute_implicit_reduce"
    channels = tuple(channel_ids)
    return _emit(kind, [*srcs0, *srcs1], dsts, replica_group.groups, operator, 0, channels, priority, name)
