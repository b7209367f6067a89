"""What a well-formed kernel is: the ops there are, and a check of all that code generation relies on."""

from __future__ import annotations

from dataclasses import dataclass

from .kernel import Instruction, Int, Kernel, Variable
from .stage import Lane, lane_of
from .values import MEMORY_TYPES, SIZES

__all__ = ["ELEMENTWISE", "REDUCTIONS", "Elementwise", "KernelError", "Varying", "check", "varying"]


class KernelError(ValueError):
    """The kernel is ill-formed."""


@dataclass(frozen=True)
class Elementwise:
    """`arity` arguments, all of one of `lanes`; the result has the lane `result`, that of the arguments for None."""

    arity: int
    lanes: frozenset[Lane]
    result: Lane | None = None


_FLOATS = frozenset({Lane.F32, Lane.F64})
_INTS = frozenset({Lane.I64})
_NUMBERS = _FLOATS | _INTS
_BITS = frozenset({Lane.I64, Lane.B8})
_ALL = _NUMBERS | {Lane.B8}


def _ops(arity: int, lanes: frozenset[Lane], names: str, result: Lane | None = None) -> dict[str, Elementwise]:
    return dict.fromkeys(names.split(), Elementwise(arity, lanes, result))


# Semantics are those of PyTorch on the CPU where it has the op. `floordiv` and `mod` round down, as Python's,
# `truncdiv`, `rem` and `fmod` towards zero, as C's. An integer divided by zero gives 0, modulo zero too.
ELEMENTWISE: dict[str, Elementwise] = {
    **_ops(2, _NUMBERS, "add sub mul min max floordiv mod truncdiv pow"),
    **_ops(2, _FLOATS, "div fmod atan2 hypot copysign"),
    **_ops(2, _INTS, "rem shl shr"),
    **_ops(2, _BITS, "and or xor"),
    **_ops(3, _NUMBERS, "fma"),
    **_ops(1, _NUMBERS, "neg abs sign"),
    **_ops(1, _FLOATS, "sqrt rsqrt reciprocal floor ceil trunc nearest"),
    **_ops(1, _FLOATS, "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh"),
    **_ops(1, _FLOATS, "asinh acosh atanh erf erfc erfinv sigmoid lgamma digamma"),
    **_ops(1, _BITS, "not"),
    **_ops(2, _ALL, "eq ne lt le gt ge", Lane.B8),
    **_ops(1, _FLOATS, "isnan isinf", Lane.B8),
    **_ops(1, _NUMBERS, "signbit", Lane.B8),
}

# Lanes of what is reduced, and the result's (None: the same).
REDUCTIONS: dict[str, tuple[frozenset[Lane], Lane | None]] = {
    **dict.fromkeys(("reduce_sum", "reduce_prod", "reduce_max", "reduce_min"), (_NUMBERS, None)),
    **dict.fromkeys(("reduce_any", "reduce_all"), (frozenset({Lane.B8}), None)),
    **dict.fromkeys(("reduce_argmax", "reduce_argmin"), (_NUMBERS, Lane.I64)),
}

Varying = tuple[frozenset[int], ...]


def varying(kernel: Kernel) -> Varying:
    """Of each instruction, the dimensions along which its value changes; those of the stored value for stores."""
    result: list[frozenset[int]] = []
    for instruction in kernel.code:
        dims = frozenset[int]().union(*(result[arg] for arg in instruction.args))
        if instruction.op == "load":
            dims = frozenset(d for d, stride in enumerate(kernel.operands[instruction.operand].strides) if stride != 0)
        elif instruction.op == "index":
            dims = frozenset({instruction.dim})
        elif instruction.op in REDUCTIONS:
            dims -= frozenset(kernel.reduced)
        # There is nothing to vary along where the size is 1.
        result.append(frozenset(d for d in dims if kernel.sizes[d] != 1))
    return tuple(result)


def check(kernel: Kernel) -> None:
    """Raises KernelError, which says what is wrong, unless `kernel` is well-formed."""
    _check_shape(kernel)
    for place, instruction in enumerate(kernel.code):
        try:
            _check_instruction(kernel, place, instruction)
        except KernelError as reason:
            raise KernelError(f"instruction {place} ({instruction.op}): {reason}") from None
    _check_memory(kernel)
    if kernel.columns:
        _check_columns(kernel)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise KernelError(message)


def _is_int(value: Int) -> bool:
    if isinstance(value, Variable):
        return value.index >= 0
    return isinstance(value, int) and not isinstance(value, bool)


def _check_shape(kernel: Kernel) -> None:
    dims = len(kernel.sizes)
    _require(dims > 0, "a kernel has at least one dimension")
    for size in kernel.sizes:
        _require(_is_int(size) and (isinstance(size, Variable) or size >= 0), f"{size!r} is not a size")
    if kernel.reduced:
        first, last = kernel.reduced[0], kernel.reduced[-1]
        together = kernel.reduced == tuple(range(first, last + 1))
        _require(together and first >= 0 and last < dims, "reduced dimensions stand together, in order")
        _require(last >= dims - 2, "after the reduced dimensions there is at most one kept dimension")
    elements: dict[int, int] = {}
    for place, operand in enumerate(kernel.operands):
        _require(len(operand.strides) == dims, f"operand {place} has {len(operand.strides)} strides, not {dims}")
        _require(all(map(_is_int, (*operand.strides, operand.offset))), f"operand {place}: a stride is not an integer")
        size = SIZES[MEMORY_TYPES[operand.dtype]]
        same = operand.alias < 0 or elements.setdefault(operand.alias, size) == size
        _require(same, f"operand {place} shares memory with one whose elements have another size")


def _check_instruction(kernel: Kernel, place: int, instruction: Instruction) -> None:
    op, lane, args = instruction.op, instruction.lane, instruction.args
    for arg in args:
        _require(0 <= arg < place, f"value {arg} does not come before it")
        _require(kernel.code[arg].op != "store", f"{arg} is a store, which has no value")
    lanes = [kernel.code[arg].lane for arg in args]
    source = instruction.source or lane

    def expect(*expected: Lane) -> None:
        _require(len(args) == len(expected), f"it takes {len(expected)} arguments, not {len(args)}")
        for arg, found, wanted in zip(args, lanes, expected, strict=True):
            _require(found == wanted, f"value {arg} is {found}, not {wanted}")

    if op in ("load", "gather", "store"):
        _require(0 <= instruction.operand < len(kernel.operands), f"there is no operand {instruction.operand}")
        dtype = kernel.operands[instruction.operand].dtype
        _require(lane == lane_of(dtype), f"values of {dtype} are {lane_of(dtype)}, not {lane}")
        expect(*{"load": (), "gather": (Lane.I64,), "store": (lane,)}[op])
    elif op == "constant":
        expect()
        _check_constant(lane, instruction.constant)
    elif op == "index":
        expect()
        _require(lane == Lane.I64, "an index is i64")
        _require(0 <= instruction.dim < len(kernel.sizes), f"there is no dimension {instruction.dim}")
    elif op == "cast":
        _require(instruction.source is not None, "a cast says the lane it is from")
        expect(source)
    elif op == "round":
        _require(instruction.dtype is not None, "it says no type")
        assert instruction.dtype is not None
        _require(lane == lane_of(instruction.dtype), f"{instruction.dtype} does not round {lane}")
        expect(lane)
    elif op == "select":
        expect(Lane.B8, lane, lane)
    elif op in REDUCTIONS:
        allowed, result = REDUCTIONS[op]
        _require(bool(kernel.reduced), "the kernel has no reduced dimensions")
        _require(source in allowed, f"it does not reduce {source}")
        _require(lane == (result or source), f"its result is {result or source}, not {lane}")
        expect(source)
    else:
        _require(op in ELEMENTWISE, "there is no such op")
        rule = ELEMENTWISE[op]
        _require(source in rule.lanes, f"it has no lane {source}")
        _require(lane == (rule.result or source), f"its result is {rule.result or source}, not {lane}")
        expect(*[source] * rule.arity)


def _check_constant(lane: Lane, constant: object) -> None:
    if isinstance(constant, Variable):
        _require(lane == Lane.I64 and constant.index >= 0, "a Variable is a constant of lane i64")
    elif lane == Lane.B8:
        _require(isinstance(constant, bool), f"{constant!r} is not True or False")
    elif lane == Lane.I64:
        fits = isinstance(constant, int) and not isinstance(constant, bool) and -(2**63) <= constant < 2**63
        _require(fits, f"{constant!r} is not an integer of 64 bits")
    else:
        _require(isinstance(constant, int | float) and not isinstance(constant, bool), f"{constant!r} is not a number")


def _check_memory(kernel: Kernel) -> None:
    varies = varying(kernel)
    kept = frozenset(range(len(kernel.sizes))) - frozenset(kernel.reduced)
    stored: dict[int, int] = {}  # place of the store, by alias (or operand, as a negative number)
    gathered = {_memory(kernel, instr.operand) for instr in kernel.code if instr.op == "gather"}
    for place, instruction in enumerate(kernel.code):
        if instruction.operand < 0:
            continue
        memory = _memory(kernel, instruction.operand)
        where = f"instruction {place} ({instruction.op})"
        operand = kernel.operands[instruction.operand]
        if instruction.op == "gather":
            _require(all(stride == 0 for stride in operand.strides), f"{where}: the operand has strides")
            continue
        _require(memory not in stored, f"{where}: the memory was stored to by instruction {stored.get(memory)}")
        if instruction.op == "load":
            continue
        stored[memory] = place
        _require(memory not in gathered, f"{where}: gathers read the memory")
        moved = frozenset(d for d, stride in enumerate(operand.strides) if stride != 0 or kernel.sizes[d] == 1)
        _require(kept <= moved, f"{where}: several indices store to one element")
        partly = moved & frozenset(d for d in kernel.reduced if kernel.sizes[d] != 1)
        _require(varies[place] <= moved, f"{where}: the value varies where the operand does not")
        whole = all(d in moved for d in kernel.reduced)
        _require(not partly or whole, f"{where}: several indices store to one element")
    _require(bool(stored), "the kernel stores nothing")


def _memory(kernel: Kernel, operand: int) -> int:
    alias = kernel.operands[operand].alias
    return alias if alias >= 0 else -1 - operand


def _check_columns(kernel: Kernel) -> None:
    varies = varying(kernel)
    reduced = frozenset(kernel.reduced)
    after: set[int] = set()  # what comes after a reduction
    for place, instruction in enumerate(kernel.code):
        where = f"instruction {place} ({instruction.op})"
        depends = any(arg in after for arg in instruction.args)
        if instruction.op in REDUCTIONS:
            _require(not depends, f"{where}: it reduces what comes of a reduction, which columns cannot")
            after.add(place)
        elif depends:
            strides = kernel.operands[instruction.operand].strides if instruction.op == "store" else ()
            spread = varies[place] | {d for d, stride in enumerate(strides) if stride != 0 and kernel.sizes[d] != 1}
            _require(not spread & reduced, f"{where}: it uses a reduction beside values of the whole space")
            after.add(place)
