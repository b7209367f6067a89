"""Groups of ranks, and who this core is among them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..isa.registers import VirtualRegister, register_alloc
from ..language.objects import NKIObject
from ..tensor_errors import ReplicaGroupError
from ..trace import Trace, current, source_line

__all__ = ["ReplicaGroup", "collective_permute_implicit_current_processing_rank_id", "group_of", "rank_id"]


class ReplicaGroup(NKIObject):
    """Ranks that take part in a collective, each group for itself: `ReplicaGroup([[0, 1], [2, 3]])`.

    Attributes:
        groups: tuples of ranks, no rank in two of them. In rings, a rank sends to the next of its group.

    Raises:
        ReplicaGroupError: overlapping or empty groups.
    """

    def __init__(self, groups: Any) -> None:
        if isinstance(groups, ReplicaGroup):
            groups = groups.groups
        try:
            self.groups: tuple[tuple[int, ...], ...] = tuple(tuple(int(rank) for rank in group) for group in groups)
        except TypeError as error:
            raise ReplicaGroupError(
                function="ReplicaGroup", groups=groups, why="is no list of lists of ranks", line=source_line()
            ) from error
        ranks = [rank for group in self.groups for rank in group]
        if not ranks or not all(self.groups) or len(set(ranks)) != len(ranks) or min(ranks) < 0:
            raise ReplicaGroupError(
                function="ReplicaGroup",
                groups=[list(group) for group in self.groups],
                why="has an empty group, or a rank in two of them",
                line=source_line(),
            )

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return iter(self.groups)

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, place: int) -> tuple[int, ...]:
        return self.groups[place]


def group_of(function: str, groups: Sequence[Sequence[int]], trace: Trace) -> tuple[int, ...]:
    """The group that this core belongs to.

    Raises:
        ReplicaGroupError: none, or a rank that does not exist.
    """
    why = None
    if any(rank >= trace.ranks for group in groups for rank in group):
        why = f"names ranks that do not exist: there are {trace.ranks}"
    for group in groups:
        if why is None and trace.rank in group:
            return tuple(group)
    raise ReplicaGroupError(
        function=function,
        groups=[list(group) for group in groups],
        why=why or f"does not contain rank {trace.rank}, on which the kernel runs",
        line=source_line(),
    )


def rank_id(name: str | None = None) -> VirtualRegister:
    """A register with the rank of this core among those that collectives connect."""
    return register_alloc(current().rank)


def collective_permute_implicit_current_processing_rank_id(
    iteration_id: int, replica_group: ReplicaGroup, channel_id: int = 0, name: str | None = None
) -> VirtualRegister:
    """A register with the rank whose data this core has in a round of a ring.

    Args:
        iteration_id: the round. In round 0 it is the core's own data; in each further one that of the rank before.
        replica_group: the rings.
        channel_id: channel of the ring; all go the same way round.

    Raises:
        ReplicaGroupError: this rank is in none of the groups.
    """
    trace = current()
    group = group_of("collective_permute_implicit_current_processing_rank_id", replica_group.groups, trace)
    return register_alloc(group[(group.index(trace.rank) - iteration_id) % len(group)])
