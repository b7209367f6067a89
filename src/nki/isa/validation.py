"""What instructions check of their operands, and how they get into the trace.

Every function here is on the way of each instruction that is traced: the checks are plain comparisons, and texts are
made only when one fails.
"""

from __future__ import annotations

from math import prod
from typing import Any, NoReturn

from .. import errors
from ..element_types import DType
from ..errors import NkiError
from ..limits import ENGINE_ELEMENTS, PARTITIONS
from ..targets import GENERATIONS
from ..tensor import NkiTensor
from ..trace import Register, Trace, current, report, source_line
from .enums import engine as Engine
from .instruction_handle import NkiInstruction

__all__ = [
    "FLOATS", "FP32", "INTEGERS", "SCALES", "SMALL", "UNKNOWN", "WORDS", "choose", "column", "emit", "extent", "fail",
    "integer", "is_word", "no_gpsimd_in_psum", "number", "psum_pair", "refuse", "require_dtype", "require_generation",
    "require_integers", "require_member", "require_region", "require_same_dtype", "require_shape", "require_size",
    "tensor"
]  # fmt: skip

UNKNOWN = Engine.unknown

# Operands that may be .indirect() views on NeuronCore-v4: "Tensor indirection" in the documentation of nki.isa 2.32.
INDIRECT = frozenset(
    (op, operand)
    for op, operands in {
        "tensor_copy": "dst src",
        "tensor_copy_predicated": "dst predicate",
        "nc_matmul": "dst stationary moving",
        "nc_matmul_mx": "dst stationary moving stationary_scale moving_scale",
        "tensor_tensor": "dst data1",
        "tensor_scalar": "dst data",
        "tensor_reduce": "dst data",
        "tensor_scalar_cumulative": "dst src",
        "tensor_scalar_reduce": "dst data",
        "activation": "dst data",
        "activation_reduce": "dst data",
        "activate2": "dst data",
        "exponential": "dst src",
    }.items()
    for operand in operands.split()
)

_STARTS = {1: "0, 32, 64 or 96", 2: "0 or 64", 3: "0", 4: "0"}
_CHIPS = {generation: chip for chip, generation in GENERATIONS.items()}


def fail(mistake: type[NkiError], /, **facts: Any) -> None:
    """Reports a mistake; tracing goes on where `nki.check` gathers them."""
    report(mistake(line=source_line(), **facts))


def refuse(mistake: type[NkiError], /, **facts: Any) -> NoReturn:
    """Reports a mistake after which the instruction means nothing."""
    raise mistake(line=source_line(), **facts)


def emit(
    trace: Trace,
    op: str,
    engine: str,
    out: tuple[Any, ...],
    args: tuple[Any, ...],
    attrs: tuple[Any, ...],
    name: str | None,
    hints: dict[str, Any] | None = None,
) -> NkiInstruction:
    """Appends an instruction to `trace`."""
    instruction = NkiInstruction(op, engine, out, args, attrs, source_line(), name or "", hints)
    trace.add(instruction)
    return instruction


def tensor(view: Any, op: str, operand: str) -> NkiTensor:
    """`view`, which has to be a tensor, in any memory."""
    if isinstance(view, NkiTensor):
        return view
    refuse(errors.NotATensorError, op=op, operand=operand, value=view)


def extent(view: Any, op: str, operand: str) -> tuple[int, int]:
    """Partitions and elements per partition of an operand on chip, which an engine has to be able to reach."""
    if view.__class__ is not NkiTensor and not isinstance(view, NkiTensor):
        refuse(errors.NotATensorError, op=op, operand=operand, value=view)
    storage = view.storage
    if storage.region != "sbuf" and storage.region != "psum":
        require_region(view, op, operand, "sbuf", "psum")
        return 1, view.size
    shape = view.shape
    partitions = shape[0]
    rank = len(shape)
    elements = shape[1] if rank == 2 else shape[1] * shape[2] if rank == 3 else prod(shape[1:])
    if view.offset or storage.address is not None:
        start = view.offset // view.strides[0]
        if storage.address is not None:
            start += storage.address[0]
        if start and (start & 31 or partitions > 64 or (partitions > 32 and start & 63)):
            fail(
                errors.StartPartitionError,
                op=op,
                operand=operand,
                shape=shape,
                start=start,
                partitions=partitions,
                allowed=_STARTS[(partitions + 31) // 32],
            )
    if partitions > PARTITIONS:
        fail(errors.PartitionLimitError, op=op, operand=operand, shape=shape, partitions=partitions, limit=PARTITIONS)
    if elements > ENGINE_ELEMENTS:
        fail(
            errors.FreeSizeError,
            op=op,
            operand=operand,
            shape=shape,
            count=elements,
            allowed=f"at most {ENGINE_ELEMENTS}",
            cure="Use several instructions.",
        )
    if view.dynamic is not None and view.dynamic.kind != "scalar":
        _check_dynamic(view, op, operand)
    return partitions, elements


def _check_dynamic(view: NkiTensor, op: str, operand: str) -> None:
    kind = view.dynamic.kind if view.dynamic else ""
    reason = ""
    if kind == "vector":
        reason = "only DMA takes a vector_offset"
    elif (op, operand) not in INDIRECT:
        reason = "this operand takes no .indirect() view; gather it first with nisa.tensor_copy"
    if reason:
        fail(errors.DynamicOperandError, op=op, operand=operand, shape=view.shape, kind=kind, reason=reason)
    require_generation(current(), 4, op, f"an .indirect() view as {operand}")


def require_size(
    view: NkiTensor, size: tuple[int, int], like: tuple[int, int], op: str, operand: str, other: NkiTensor, name: str
) -> None:
    """Reports that `view` of `size` (partitions, elements each) does not fit `other`, called `name`, of size `like`."""
    if size[0] != like[0]:
        fail(
            errors.PartitionMismatchError,
            op=op,
            operand=operand,
            shape=view.shape,
            partitions=size[0],
            other=name,
            other_shape=other.shape,
            expected=like[0],
        )
    elif size[1] != like[1]:
        fail(
            errors.ElementCountError,
            op=op,
            operand=operand,
            shape=view.shape,
            count=size[1],
            per="per partition",
            expected=like[1],
            reason=f"as many as {name} {other.shape} has",
        )


def require_shape(view: NkiTensor, size: tuple[int, int], expected: tuple[int, int], op: str, operand: str) -> None:
    """Reports an operand whose (partitions, elements per partition) are not `expected`."""
    if size != expected:
        fail(
            errors.OperandShapeError,
            op=op,
            operand=operand,
            shape=view.shape,
            expected=f"{expected[0]} partitions of {expected[1]} element{'s' * (expected[1] != 1)}",
        )


_CURES = {
    "hbm": "Load it first: nisa.dma_copy(dst=<tile in SBUF>, src=...).",
    "psum": "Copy it to SBUF with nisa.tensor_copy.",
    "sbuf": "",
}


def require_region(view: NkiTensor, op: str, operand: str, *allowed: str) -> None:
    """Reports an operand outside of the memories `allowed`."""
    region = view.storage.region
    if region not in allowed:
        cure = _CURES["hbm" if region.endswith("hbm") else region]
        if allowed == ("psum",):
            cure = "Allocate it with buffer=nl.psum."
        elif operand.startswith("dst") and region.endswith("hbm"):
            cure = "Write to a tile on chip, then nisa.dma_copy it to HBM."
        fail(
            errors.WrongBufferError,
            op=op,
            operand=operand,
            shape=view.shape,
            region=region,
            allowed=" or ".join(allowed),
            cure=cure,
        )


def psum_pair(op: str, first: str, second: str, engine: str = "vector") -> None:
    """Reports two inputs in PSUM."""
    fail(errors.BothInPsumError, op=op, first=first, second=second, engine=engine)


def require_dtype(view: NkiTensor, allowed: frozenset[str], op: str, operand: str, cure: str = "") -> None:
    if view.dtype not in allowed:
        fail(
            errors.OperandDtypeError,
            op=op,
            operand=operand,
            dtype=view.dtype,
            allowed=", ".join(sorted(allowed)),
            cure=cure,
        )


def require_same_dtype(
    first: NkiTensor, second: NkiTensor, op: str, name: str, other: str, rule: str = "they have to be the same"
) -> None:
    if first.dtype is not second.dtype and first.dtype != second.dtype:
        fail(
            errors.DtypeMismatchError,
            op=op,
            first=name,
            first_dtype=first.dtype,
            second=other,
            second_dtype=second.dtype,
            rule=rule,
        )


def require_integers(view: NkiTensor, op: str, operand: str, operator: str) -> None:
    """Reports a float operand of a bitwise operator."""
    if not view.dtype.is_integer:
        fail(
            errors.OperandDtypeError,
            op=op,
            operand=operand,
            dtype=view.dtype,
            allowed=f"integers, because nl.{operator} works on bits",
            cure="View it as integers with .view(nl.int32), or use an arithmetic operator.",
        )


def require_generation(trace: Trace, generation: int, op: str, what: str = "this instruction") -> None:
    if GENERATIONS[trace.target] < generation:
        fail(errors.GenerationError, op=op, what=what, needed=generation, chip=_CHIPS[generation], target=trace.target)


def require_member(value: Any, enum: Any, op: str, operand: str) -> None:
    """Refuses what is no member of `enum`; numbers are none either."""
    if value.__class__ is not enum:
        refuse(
            errors.EnumMemberError,
            op=op,
            operand=operand,
            value=value,
            enum=enum.__name__,
            members=", ".join(member.name for member in enum),
        )


def choose(engine: Any, allowed: tuple[str, ...], op: str, reason: str = "") -> str:
    """The name of `engine`, which the kernel asked for and has to be one of `allowed`."""
    require_member(engine, Engine, op, "engine")
    name: str = engine._name_
    if name not in allowed:
        fail(
            errors.EngineError,
            op=op,
            engine=name,
            reason=reason,
            allowed=" or ".join(f"engine.{other}" for other in allowed),
        )
    return name


def no_gpsimd_in_psum(engine: str, op: str, *operands: tuple[str, Any]) -> None:
    """The GpSimd engine has no way to PSUM."""
    if engine == "gpsimd":
        for operand, view in operands:
            if isinstance(view, NkiTensor) and view.storage.region == "psum":
                fail(
                    errors.EngineError,
                    op=op,
                    engine="gpsimd",
                    reason=f", because {operand} {view.shape} lies in psum, which that engine does not reach",
                    allowed="engine.vector",
                )


def number(value: Any, op: str, operand: str, allowed: str = "a number") -> float:
    """A number that is known while tracing."""
    kind = value.__class__
    if kind is float or kind is int or kind is bool:
        return value
    if isinstance(value, (NkiTensor, Register, str)) or not hasattr(value, "__float__"):
        refuse(errors.NotANumberError, op=op, operand=operand, value=value, allowed=allowed)
    return value.item() if hasattr(value, "item") else float(value)


def integer(value: Any, op: str, operand: str) -> int:
    """An integer that is known while tracing."""
    if value.__class__ is int:
        return value
    if isinstance(value, (NkiTensor, Register, str, float)) or not hasattr(value, "__index__"):
        refuse(errors.NotANumberError, op=op, operand=operand, value=value, allowed="an integer")
    return int(value.__index__())


def column(
    value: Any, op: str, operand: str, partitions: int, dtypes: frozenset[str] | None = None, cure: str = ""
) -> Any:
    """A number, or a tile of one element per partition."""
    kind = value.__class__
    if kind is float or kind is int:
        return value
    if kind is not NkiTensor and not isinstance(value, NkiTensor):
        return number(value, op, operand, f"a number or a tile of {partitions} partitions with one element each")
    size = extent(value, op, operand)
    if size != (partitions, 1):
        require_shape(value, size, (partitions, 1), op, operand)
    if dtypes is not None and value.dtype not in dtypes:
        require_dtype(value, dtypes, op, operand, cure)
    return value


FP32 = frozenset({"float32"})
FLOATS = frozenset(
    {"float32", "tfloat32", "bfloat16", "float16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2"}
)  # fmt: skip
SMALL = FLOATS | {"int8", "uint8", "int16", "uint16"}
INTEGERS = frozenset({"int8", "uint8", "int16", "uint16", "int32", "uint32"})
WORDS = frozenset({"int32", "uint32"})
SCALES = frozenset({"float8_e8m0fnu", "uint8"})


def is_word(dtype: DType) -> bool:
    """Whether the GpSimd engine computes with integers of this type as they are."""
    return dtype in WORDS
