"""Values as LLVM IR: what the generators of stages and of kernels have in common.

Types, arithmetic, conversions, and how elements of memory become values and back. No fast-math flag is set, so LLVM
neither contracts nor reorders, and what it leaves undefined (conversions out of range) is spelled out.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from .stage import Dtype, Lane, lane_of

__all__ = [
    "FLOATS",
    "MEMORY_TYPES",
    "NAN",
    "SIZES",
    "TYPES",
    "VECTOR_BYTES",
    "Values",
    "float_constant",
    "loop_metadata",
    "scope_metadata",
]

FLOATS = ("float", "double")

# A b8 is one byte in memory and one bit as value: so comparisons become masks of vectors without a detour.
TYPES = {Lane.F32: "float", Lane.F64: "double", Lane.I64: "i64", Lane.B8: "i1"}
MEMORY_TYPES = {
    Dtype.F32: "float",
    Dtype.F64: "double",
    Dtype.BF16: "i16",
    Dtype.F16: "half",
    Dtype.I64: "i64",
    Dtype.I32: "i32",
    Dtype.I16: "i16",
    Dtype.I8: "i8",
    Dtype.U8: "i8",
    Dtype.BOOL: "i8",
}
SIZES = {"float": 4, "double": 8, "half": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1}

# Floating-point loops get vectors of 256 bits, what LLVM takes on x86 anyway. To be told so spares it the search among
# widths, a third of the time for bf16.
VECTOR_BYTES = 32

_SUFFIXES = {"float": "f32", "double": "f64"}
_FLOAT_BINARY = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_INT_BINARY = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}
_INTRINSICS = {
    "abs": "fabs",
    "sqrt": "sqrt",
    "floor": "floor",
    "ceil": "ceil",
    "trunc": "trunc",
    "nearest": "roundeven",
    "fma": "fma",
    "copysign": "copysign",
}
_FLOAT_PREDICATES = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
_INT_PREDICATES = {"eq": "eq", "ne": "ne", "lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge"}
_BOOL_PREDICATES = {"eq": "eq", "ne": "ne", "lt": "ult", "le": "ule", "gt": "ugt", "ge": "uge"}

# LLVM writes floating-point constants as the bits of the double of the same value.
NAN = "0x7FF8000000000000"
# Of integers with so many bits: the least one, and the first number above all.
_RANGES = {32: ("0xC1E0000000000000", "0x41E0000000000000"), 64: ("0xC3E0000000000000", "0x43E0000000000000")}


def float_constant(value: float, type_: str = "double") -> str:
    """`value`, rounded to `type_`, as LLVM writes it."""
    if type_ == "float":
        try:
            value = struct.unpack("=f", struct.pack("=f", value))[0]
        except OverflowError:  # beyond the largest float, where rounding gives infinity
            value = float("inf") if value > 0 else float("-inf")
    if value != value:
        return NAN
    return f"0x{struct.unpack('=Q', struct.pack('=d', value))[0]:016X}"


def scope_metadata(count: int) -> list[str]:
    """One alias scope for each of `count` kinds of memory: an access to one touches no other, so the vector loop needs
    no checks of overlap in front of it.

    Node 0 is the domain, 1 + k the scope k; lists of scopes follow, see :meth:`Values.scopes`.
    """
    lines = ['!0 = distinct !{!0, !"memory"}']
    lines += [f"!{1 + k} = distinct !{{!{1 + k}, !0}}" for k in range(count)]
    for k in range(count):
        others = ", ".join(f"!{1 + other}" for other in range(count) if other != k)
        lines += [f"!{1 + count + 2 * k} = !{{!{1 + k}}}", f"!{2 + count + 2 * k} = !{{{others}}}"]
    return lines


def loop_metadata(node: int, hints: dict[str, int]) -> list[str]:
    """Node `node`, for the branch at the end of a loop, gives `hints` to the vectorizer; nodes after it are taken."""
    nodes = [f"!{node + 1 + k}" for k in range(len(hints))]
    lines = [f"!{node} = distinct !{{{', '.join([f'!{node}', *nodes])}}}"]
    for name, (hint, value) in zip(nodes, hints.items(), strict=True):
        lines.append(f'{name} = !{{!"llvm.loop.{hint}", i32 {value}}}')
    return lines


class Values:
    """Lines of a function under construction. Types and values are the words that LLVM has for them."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.temporaries = 0
        self.declared: set[str] = set()

    def emit(self, operation: str) -> str:
        """One instruction with a result; returns its name."""
        name = f"%t{self.temporaries}"
        self.temporaries += 1
        self.lines.append(f"  {name} = {operation}")
        return name

    def intrinsic(self, name: str, type_: str, args: Sequence[str]) -> str:
        """A call of an intrinsic or a function of the C library, all of whose arguments have the result's type."""
        pure = "" if name.startswith("llvm.") else " nounwind willreturn memory(none)"
        self.declared.add(f"declare {type_} @{name}({', '.join([type_] * len(args))}){pure}")
        return self.emit(f"call {type_} @{name}({', '.join(f'{type_} {arg}' for arg in args)})")

    def declarations(self) -> list[str]:
        return sorted(self.declared)

    # -- Arithmetic ---------------------------------------------------------------------------------------------------

    def operation(self, op: str, type_: str, args: Sequence[str]) -> str:
        """`op` on values of `type_`, one of those that are a few instructions."""
        return self.float_operation(op, type_, args) if type_ in FLOATS else self.int_operation(op, type_, args)

    def float_operation(self, op: str, type_: str, args: Sequence[str]) -> str:
        if op in _FLOAT_BINARY:
            return self.emit(f"{_FLOAT_BINARY[op]} {type_} {args[0]}, {args[1]}")
        if op in _INTRINSICS:
            return self.intrinsic(f"llvm.{_INTRINSICS[op]}.{_SUFFIXES[type_]}", type_, args)
        if op == "neg":
            return self.emit(f"fneg {type_} {args[0]}")
        if op in _FLOAT_PREDICATES:
            return self.emit(f"fcmp {_FLOAT_PREDICATES[op]} {type_} {args[0]}, {args[1]}")
        # Equal operands (zeros of either sign among them) give the second one, as the x86 instructions do.
        smaller = self.emit(f"fcmp {'olt' if op == 'min' else 'ogt'} {type_} {args[0]}, {args[1]}")
        value = self.emit(f"select i1 {smaller}, {type_} {args[0]}, {type_} {args[1]}")
        unordered = self.emit(f"fcmp uno {type_} {args[0]}, {args[1]}")
        return self.emit(f"select i1 {unordered}, {type_} {NAN}, {type_} {value}")

    def int_operation(self, op: str, type_: str, args: Sequence[str]) -> str:
        if op in _INT_BINARY:
            return self.emit(f"{_INT_BINARY[op]} {type_} {args[0]}, {args[1]}")
        if op == "fma":
            return self.emit(f"add {type_} {self.emit(f'mul {type_} {args[0]}, {args[1]}')}, {args[2]}")
        if op == "not":
            return self.emit(f"xor {type_} {args[0]}, -1")
        if op == "neg":
            return self.emit(f"sub {type_} 0, {args[0]}")
        if op == "abs":
            negative = self.emit(f"icmp slt {type_} {args[0]}, 0")
            negated = self.emit(f"sub {type_} 0, {args[0]}")
            return self.emit(f"select i1 {negative}, {type_} {negated}, {type_} {args[0]}")
        if op in ("min", "max"):
            first = self.emit(f"icmp {'slt' if op == 'min' else 'sgt'} {type_} {args[0]}, {args[1]}")
            return self.emit(f"select i1 {first}, {type_} {args[0]}, {type_} {args[1]}")
        predicates = _BOOL_PREDICATES if type_ == "i1" else _INT_PREDICATES
        return self.emit(f"icmp {predicates[op]} {type_} {args[0]}, {args[1]}")

    # -- Conversions --------------------------------------------------------------------------------------------------

    def cast(self, from_: str, to: str, value: str) -> str:
        """`value` of type `from_` as type `to`: towards zero, and to i1 whether it is not zero."""
        if from_ == to:
            return value
        if to == "i1":
            zero, none = ("fcmp une", "0.0") if from_ in FLOATS else ("icmp ne", "0")
            return self.emit(f"{zero} {from_} {value}, {none}")
        if from_ == "i1":
            return self.emit(f"{'uitofp' if to in FLOATS else 'zext'} i1 {value} to {to}")
        if from_ in FLOATS:
            if to in FLOATS:
                return self.emit(f"{'fpext' if to == 'double' else 'fptrunc'} {from_} {value} to {to}")
            return self.float_to_int(from_, value, int(to[1:]))
        if to in FLOATS:
            return self.emit(f"sitofp {from_} {value} to {to}")
        return self.emit(f"{'sext' if from_ == 'i32' else 'trunc'} {from_} {value} to {to}")

    def float_to_int(self, type_: str, value: str, bits: int) -> str:
        # LLVM's own conversion means nothing out of range, where the x86 instruction gives the least integer.
        lowest, above = _RANGES[bits]
        enough = self.emit(f"fcmp oge {type_} {value}, {lowest}")
        below = self.emit(f"fcmp olt {type_} {value}, {above}")
        inside = self.emit(f"and i1 {enough}, {below}")
        safe = self.emit(f"select i1 {inside}, {type_} {value}, {type_} 0.0")
        converted = self.emit(f"fptosi {type_} {safe} to i{bits}")
        return self.emit(f"select i1 {inside}, i{bits} {converted}, i{bits} {-(2 ** (bits - 1))}")

    def rounded(self, dtype: Dtype, value: str, type_: str, short_nan: bool = False) -> str:
        """`value` of `type_` as if stored to `dtype` and loaded again.

        `short_nan`: if it is NaN, then one whose lower half is zero.
        """
        if dtype == Dtype.BF16:
            # To nearest, ties to even, by adding just under half a unit, or half of one where the kept part is odd.
            # Integer arithmetic, because the bf16 instructions of x86 flush subnormals.
            bits = self.emit(f"bitcast float {value} to i32")
            kept = self.emit(f"lshr i32 {bits}, 16")
            odd = self.emit(f"and i32 {kept}, 1")
            half = self.emit(f"add i32 {odd}, {0x7FFF}")
            carried = self.emit(f"add i32 {bits}, {half}")
            masked = self.emit(f"and i32 {carried}, {-0x10000}")
            result = self.emit(f"bitcast i32 {masked} to float")
            if short_nan:
                return result  # the addition cannot carry out of a NaN whose low half is zero
            nan = self.emit(f"fcmp uno float {value}, 0.0")
            return self.emit(f"select i1 {nan}, float {NAN}, float {result}")
        if dtype == Dtype.F16:
            return self.emit(f"fpext half {self.emit(f'fptrunc float {value} to half')} to float")
        if dtype in (Dtype.I32, Dtype.I16, Dtype.I8, Dtype.U8) and type_ != MEMORY_TYPES[dtype]:
            memory = MEMORY_TYPES[dtype]
            narrow = self.emit(f"trunc {type_} {value} to {memory}")
            return self.emit(f"{'zext' if dtype == Dtype.U8 else 'sext'} {memory} {narrow} to {type_}")
        return value

    # -- Memory -------------------------------------------------------------------------------------------------------

    def scopes(self, scope: int, count: int) -> str:
        """What an access says of the memory that it is to; see :func:`scope_metadata`."""
        return f"!alias.scope !{1 + count + 2 * scope}, !noalias !{2 + count + 2 * scope}"

    def load_element(self, dtype: Dtype, address: str, scopes: str, type_: str | None = None) -> str:
        """The value of `type_` (by default that of the lane) of an element of memory."""
        memory = MEMORY_TYPES[dtype]
        type_ = type_ or TYPES[lane_of(dtype)]
        value = self.emit(f"load {memory}, ptr {address}, align {SIZES[memory]}, {scopes}")
        if dtype == Dtype.BF16:
            wide = self.emit(f"zext i16 {value} to i32")
            return self.emit(f"bitcast i32 {self.emit(f'shl i32 {wide}, 16')} to float")
        if dtype == Dtype.F16:
            return self.emit(f"fpext half {value} to float")
        if dtype == Dtype.BOOL:
            return self.emit(f"icmp ne i8 {value}, 0")
        if memory != type_:
            return self.emit(f"{'zext' if dtype == Dtype.U8 else 'sext'} {memory} {value} to {type_}")
        return value

    def store_element(
        self,
        dtype: Dtype,
        value: str,
        address: str,
        scopes: str,
        *,
        type_: str | None = None,
        exact: bool = False,
        short_nan: bool = False,
    ) -> None:
        """Stores `value` of `type_` (by default that of the lane). `exact`: rounding to `dtype` would not change it."""
        memory = MEMORY_TYPES[dtype]
        type_ = type_ or TYPES[lane_of(dtype)]
        if dtype == Dtype.BF16:
            if not exact:
                value = self.rounded(dtype, value, type_, short_nan)
            bits = self.emit(f"bitcast float {value} to i32")
            value = self.emit(f"trunc i32 {self.emit(f'lshr i32 {bits}, 16')} to i16")
        elif dtype == Dtype.F16:
            value = self.emit(f"fptrunc float {value} to half")
        elif dtype == Dtype.BOOL:
            value = self.emit(f"zext i1 {value} to i8")
        elif memory != type_:
            wider = SIZES[memory] > SIZES[type_]
            value = self.emit(f"{'sext' if wider else 'trunc'} {type_} {value} to {memory}")
        self.lines.append(f"  store {memory} {value}, ptr {address}, align {SIZES[memory]}, {scopes}")
