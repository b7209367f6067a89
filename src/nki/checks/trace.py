"""Checks that need nothing but the instructions."""

from __future__ import annotations

from ..errors import AccumulationAfterReadError, PreparedCollectiveError
from ..instruction import Instruction
from ..loops import check_loops
from ..tensor import NkiTensor
from ..trace import Trace, report, tracing

__all__ = ["check_trace"]


def check_trace(trace: Trace) -> None:
    """Reports through :func:`~nki.trace.report`.

    Raises:
        LoopLeftError, EscapedTensorError: a dynamic loop was left early, or a tensor of its body is used outside of it.
        PreparedCollectiveError: a collective was prepared and not triggered.
        AccumulationAfterReadError: a matmul goes on adding to sums that have been read already.
    """
    with tracing(trace):
        check_loops(trace)
        _check_prepared(trace)
        _check_accumulation(trace)


def _check_prepared(trace: Trace) -> None:
    if trace.prepared is not None:
        why = f"the prepare of {trace.prepared.kind} has no trigger"
        report(PreparedCollectiveError(why=why, line=trace.prepared.instruction.line))


Box = tuple[int, int, int, int]


def box_of(view: NkiTensor) -> Box:
    """The partitions and elements within them that a view on chip can touch: first and one past the last of each."""
    free = view.storage.free * view.storage.dtype.itemsize // view.dtype.itemsize
    partition, begin = divmod(view.offset, free)
    reach = sum((size - 1) * stride for size, stride in zip(view.shape[1:], view.strides[1:], strict=True))
    return (partition, partition + view.shape[0], begin, begin + reach + 1)


def overlap(a: Box, b: Box) -> bool:
    return a[0] < b[1] and b[0] < a[1] and a[2] < b[3] and b[2] < a[3]


def _check_accumulation(trace: Trace) -> None:
    """An accumulating matmul without a say (`accumulate=None`) begins anew only on memory that nobody has written.

    A loop around an accumulation that reuses the tile therefore adds to the sums of the round before, which were read
    out already: on the chip as here, and hardly ever what was meant.
    """
    read: dict[int, list[tuple[Box, Instruction]]] = {}
    for instruction in trace.instructions:
        for view in instruction.args:
            if isinstance(view, NkiTensor) and view.storage.region == "psum":
                read.setdefault(view.storage.number, []).append((box_of(view), instruction))
        for place, view in enumerate(instruction.out):
            if not isinstance(view, NkiTensor) or view.storage.region != "psum":
                continue
            readers = read.get(view.storage.number)
            if not readers:
                continue
            box = box_of(view)
            implicit = instruction.op in ("matmul", "matmul_mx") and instruction.attrs[0] is None and place == 0
            if implicit:
                for seen, reader in readers:
                    if overlap(seen, box):
                        report(
                            AccumulationAfterReadError(
                                tensor=view.storage,
                                reader=f"{reader.op} in line {reader.line[1]}",
                                line=instruction.line,
                            )
                        )
                        break
            read[view.storage.number] = [r for r in readers if not overlap(r[0], box)]
