"""Instructions of the DMA engines: copies, transposes and sums between HBM and SBUF."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import errors
from ..limits import DMA_COMPUTE_SOURCES, PARTITIONS
from ..operators import name_of
from ..tensor import NkiTensor
from ..trace import Trace, current
from .enums import dge_mode as DescriptorMode
from .enums import engine as Engine
from .enums import oob_mode as OutOfBounds
from .instruction_handle import NkiInstruction
from .validation import (
    UNKNOWN,
    choose,
    emit,
    fail,
    integer,
    number,
    refuse,
    require_generation,
    require_member,
    require_region,
    require_same_dtype,
    tensor,
)

__all__ = ["dma_compute", "dma_copy", "dma_transpose"]

ERROR = OutOfBounds.error
ANY = DescriptorMode.unknown
_MEMORIES = ("sbuf", "private_hbm", "shared_hbm")
_MODES = {member.value: member for member in DescriptorMode}
_PERMUTATIONS = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}


def _reachable(view: Any, op: str, operand: str) -> NkiTensor:
    """An operand of a DMA: anywhere but in PSUM, from any partition."""
    if view.__class__ is not NkiTensor:
        view = tensor(view, op, operand)
    storage = view.storage
    if storage.region == "psum":
        require_region(view, op, operand, *_MEMORIES)
    elif storage.region == "sbuf" and view.shape[0] > PARTITIONS:
        fail(
            errors.PartitionLimitError,
            op=op,
            operand=operand,
            shape=view.shape,
            partitions=view.shape[0],
            limit=PARTITIONS,
        )
    return view


def _skips(mode: Any, op: str) -> bool:
    if mode is ERROR:
        return False
    require_member(mode, OutOfBounds, op, "oob_mode")
    return True


def _priority(trace: Trace, priority: Any, op: str) -> int:
    require_generation(trace, 4, op, "priority")
    value = integer(priority, op, "priority")
    if not 0 <= value <= 3:
        fail(errors.OperandValueError, op=op, operand="priority", value=value, allowed="0 (highest) to 3")
    return value


def dma_copy(
    dst: NkiTensor,
    src: NkiTensor,
    priority: int | None = None,
    oob_mode: OutOfBounds = ERROR,
    dge_mode: DescriptorMode = ANY,
    engine: Engine = UNKNOWN,
    name: str | None = None,
) -> NkiInstruction:
    """Copies `src` to `dst`, both in HBM or SBUF, element after element; shapes may differ, the number of elements not.

    Types are converted through fp32. Views with scalar_offset or vector_offset (.ap, .select, .vector_select) gather or
    scatter with values that are known only when the kernel runs.

    Args:
        priority: 0 (highest) to 3; NeuronCore-v4.
        oob_mode: what happens to run-time indices that are out of bounds.
        dge_mode: who makes the descriptors.
        engine: sync or scalar, which start hwdge.

    Raises:
        WrongBufferError: an operand in PSUM.
        ElementCountError: different numbers of elements.
        DescriptorModeError, GenerationError: the mode cannot do this, or does not exist on this chip.
    """
    trace = current()
    if dst.__class__ is not NkiTensor or dst.storage.region == "psum" or dst.shape[0] > PARTITIONS:
        dst = _reachable(dst, "dma_copy", "dst")
    if src.__class__ is not NkiTensor or src.storage.region == "psum" or src.shape[0] > PARTITIONS:
        src = _reachable(src, "dma_copy", "src")
    if dst.shape != src.shape and dst.size != src.size:
        fail(
            errors.ElementCountError,
            op="dma_copy",
            operand="dst",
            shape=dst.shape,
            count=dst.size,
            per="in all",
            expected=src.size,
            reason=f"as many as src {src.shape} has",
        )
    if dst.dtype is not src.dtype and (dst.dtype.kind == "packed" or src.dtype.kind == "packed"):
        require_same_dtype(dst, src, "dma_copy", "dst", "src", "packed MX types are not converted; .view() one of them")
    skip = oob_mode is not ERROR and _skips(oob_mode, "dma_copy")
    hints: dict[str, Any] | None = None
    if dge_mode is not ANY or engine is not UNKNOWN or priority is not None:
        hints = {}
        if priority is not None:
            hints["priority"] = _priority(trace, priority, "dma_copy")
        dge_mode = _mode(dge_mode, "dma_copy")
        hints["dge_mode"] = _descriptors(trace, dge_mode, dst, src)
        if engine is not UNKNOWN:
            hints["engine"] = choose(engine, ("sync", "scalar", "gpsimd"), "dma_copy", " for descriptors")
            if dge_mode is not DescriptorMode.hwdge and hints["engine"] != "gpsimd":
                fail(
                    errors.DescriptorModeError,
                    op="dma_copy",
                    mode=dge_mode.name,
                    reason="engine= says who starts hardware descriptor generation, that is dge_mode.hwdge",
                )
    return emit(trace, "dma_copy", "dma", (dst,), (src,), (skip,), name, hints)


def _mode(mode: Any, op: str) -> DescriptorMode:
    """A member of dge_mode. Numbers of members pass too: many kernels of nki-library 0.3 have dge_mode=3."""
    if mode.__class__ is int and mode in _MODES:
        return _MODES[mode]
    require_member(mode, DescriptorMode, op, "dge_mode")
    return mode


def _descriptors(trace: Trace, mode: Any, dst: NkiTensor, src: NkiTensor) -> str:
    """The name of `mode`, which has to be able to copy `src` to `dst`."""
    kinds = {view.dynamic.kind for view in (dst, src) if view.dynamic is not None}
    reason = ""
    if mode is DescriptorMode.hwdge:
        require_generation(trace, 3, "dma_copy", "dge_mode.hwdge")
        if "vector" in kinds:
            reason = "only the software generates descriptors for a vector_offset (dge_mode.swdge)"
        elif dst.dtype != src.dtype:
            reason = f"hardware descriptor generation does not convert {src.dtype} to {dst.dtype}"
    elif mode is DescriptorMode.none and kinds:
        reason = "descriptors that the host makes have fixed addresses, these depend on run-time values"
    if reason:
        fail(errors.DescriptorModeError, op="dma_copy", mode=mode._name_, reason=reason)
    name: str = mode._name_
    return name


def dma_transpose(
    dst: NkiTensor,
    src: NkiTensor,
    axes: Sequence[int] | None = None,
    priority: int | None = None,
    dge_mode: DescriptorMode = ANY,
    oob_mode: OutOfBounds = ERROR,
    name: str | None = None,
) -> NkiInstruction:
    """Transposes `src` (HBM or SBUF) into `dst` (SBUF, the same type) with the DMA engines.

    Args:
        axes: (1, 0), (2, 1, 0) or (3, 1, 2, 0), by the number of dimensions; that is also the default.
        dge_mode: hwdge needs 2-byte elements, at most 128 in the last dimension, and rows in sixteens.
        oob_mode: skip is for a `src` with a vector_offset, whose rows are gathered first: `dst = src[indices].T`, the
            indices (uint32 in SBUF) read column by column.

    Raises:
        TransposeAxesError: another permutation.
        OperandShapeError: `dst` has another shape than that gives.
        DescriptorModeError: the mode, or gathering, cannot do this.
    """
    op = "dma_transpose"
    trace = current()
    dst = _reachable(dst, op, "dst")
    src = _reachable(src, op, "src")
    require_region(dst, op, "dst", "sbuf")
    require_same_dtype(dst, src, op, "dst", "src", "a transpose does not convert")
    shape = src.shape
    permutation = _PERMUTATIONS.get(len(shape))
    if permutation is None or (axes is not None and tuple(axes) != permutation):
        refuse(errors.TransposeAxesError, op=op, axes=axes, shape=shape)
    expected = tuple(shape[axis] for axis in permutation)
    if dst.shape != expected:
        fail(
            errors.OperandShapeError,
            op=op,
            operand="dst",
            shape=dst.shape,
            expected=f"{expected}, src {shape} with its axes as {permutation}",
        )
    dge_mode = _mode(dge_mode, op)
    gathers = src.dynamic is not None and src.dynamic.kind == "vector"
    reason = _gather_problem(src) if gathers else ""
    if gathers:
        require_generation(trace, 3, op, "a vector_offset")
        if dge_mode in (DescriptorMode.hwdge, DescriptorMode.none):
            reason = "rows are gathered by software descriptors (dge_mode.swdge)"
    elif dge_mode is DescriptorMode.hwdge:
        require_generation(trace, 3, op, "dge_mode.hwdge")
        reason = _hardware_problem(shape, src.dtype.itemsize)
    elif dge_mode is not ANY:
        reason = "a transpose without a vector_offset is done by hardware descriptors (dge_mode.hwdge)"
    if reason:
        fail(errors.DescriptorModeError, op=op, mode=dge_mode.name, reason=reason)
    skip = _skips(oob_mode, op)
    if skip and not gathers:
        fail(
            errors.DescriptorModeError,
            op=op,
            mode=dge_mode.name,
            reason="oob_mode.skip is for a src with a vector_offset",
        )
    hints: dict[str, Any] = {"dge_mode": dge_mode.name}
    if priority is not None:
        hints["priority"] = _priority(trace, priority, op)
    return emit(trace, op, "dma", (dst,), (src,), (permutation, skip), name, hints)


def _hardware_problem(shape: tuple[int, ...], itemsize: int) -> str:
    """Why the hardware's descriptors cannot transpose; rules of dma_transpose in the documentation of nki.isa 2.32."""
    if itemsize != 2:
        return "hardware descriptors transpose elements of 2 bytes"
    if shape[-1] > 128:
        return f"hardware descriptors transpose at most 128 elements of the last dimension of src {shape}"
    if len(shape) == 2 and shape[0] != 16:
        return f"hardware descriptors transpose 16 rows of a matrix, src is {shape}"
    if len(shape) > 2 and (shape[0] not in (1, 2, 4, 8, 16) or shape[0] * shape[-2] % 16):
        return f"dimension 0 of src {shape} has to be 1, 2, 4, 8 or 16, and its product with dimension -2 in sixteens"
    return ""


def _gather_problem(src: NkiTensor) -> str:
    """Why rows of `src` cannot be gathered and transposed; rules of dma_transpose, as above."""
    shape = src.shape
    index = src.dynamic.index if src.dynamic else None
    if not isinstance(index, NkiTensor):
        return ""
    rows = index.shape[0]
    columns = index.size // rows if rows else 0
    if index.storage.region != "sbuf" or index.dtype != "uint32" or index.ndim != 2:
        return "the indices have to be a uint32 matrix in SBUF"
    if src.storage.region == "sbuf":
        return "src has to lie in HBM where its rows are gathered"
    if src.dtype.itemsize != 2 or shape[-1] > 128:
        return f"gathered rows have elements of 2 bytes, at most 128 in the last dimension of src {shape}"
    if len(shape) == 4 and 1 not in shape[1:3]:
        return f"one of the middle dimensions of src {shape} has to be 1 where its rows are gathered"
    if shape[0] % 16 or rows % 16 or not 16 <= rows <= 128 or (columns > 1 and rows != 128):
        return (
            f"{shape[0]} rows of src and the indices {index.shape} have to come in sixteens (128 with several columns)"
        )
    if index.size < shape[0]:
        return f"there are {index.size} indices for {shape[0]} rows"
    return ""


def dma_compute(
    dst: NkiTensor,
    srcs: Sequence[NkiTensor],
    reduce_op: Any = "add",
    scales: Sequence[float] | None = None,
    unique_indices: bool = True,
    oob_mode: OutOfBounds = ERROR,
    name: str | None = None,
) -> NkiInstruction:
    """`dst = srcs[0] + srcs[1] + ...`, computed in fp32 by the DMA engines on their way.

    With a vector_offset in one of exactly two sources, `dst` is read, added to and written: as the other source, or as
    the scattered one itself.

    Args:
        dst, srcs: in HBM or SBUF, with as many elements each; at most 16 sources.
        reduce_op: nl.add.
        scales: all 1.0.
        unique_indices: has to be True.
    """
    op = "dma_compute"
    trace = current()
    dst = _reachable(dst, op, "dst")
    sources = tuple(_reachable(src, op, f"srcs[{i}]") for i, src in enumerate(srcs))
    if not 1 <= len(sources) <= DMA_COMPUTE_SOURCES:
        fail(
            errors.OperandValueError,
            op=op,
            operand="the number of srcs",
            value=len(sources),
            allowed=f"1 to {DMA_COMPUTE_SOURCES}",
        )
    if (operator := name_of(reduce_op, op, "reduce_op")) != "add":
        fail(errors.OperatorError, op=op, operand="reduce_op", name=operator, allowed="nl.add")
    factors = (1.0,) * len(sources) if scales is None else tuple(float(number(s, op, "scales")) for s in scales)
    if len(factors) != len(sources) or any(factor != 1.0 for factor in factors):
        fail(errors.OperandValueError, op=op, operand="scales", value=scales, allowed="1.0 for each source, or None")
    for i, src in enumerate(sources):
        if src.size != dst.size:
            fail(
                errors.ElementCountError,
                op=op,
                operand=f"srcs[{i}]",
                shape=src.shape,
                count=src.size,
                per="in all",
                expected=dst.size,
                reason=f"as many as dst {dst.shape} has",
            )
    gathered = [src for src in sources if src.dynamic is not None and src.dynamic.kind == "vector"]
    if gathered or (dst.dynamic is not None and dst.dynamic.kind == "vector"):
        if len(sources) != 2:
            fail(
                errors.DescriptorModeError,
                op=op,
                mode="swdge",
                reason=f"with a vector_offset there are exactly two sources, here {len(sources)}",
            )
        if not any(src.storage is dst.storage for src in sources):
            fail(
                errors.DescriptorModeError,
                op=op,
                mode="swdge",
                reason="with a vector_offset one of the sources has to be dst itself",
            )
        if not unique_indices:
            fail(errors.OperandValueError, op=op, operand="unique_indices", value=unique_indices, allowed="True")
    return emit(trace, op, "dma", (dst,), sources, ("add", factors, _skips(oob_mode, op)), name)
