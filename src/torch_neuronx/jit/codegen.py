"""Stages to LLVM IR: one scalar loop that LLVM vectorises.

The values are those of the tile kernels (csrc/engines), bit for bit but for the payloads of NaNs: no fast-math flag is
set, so LLVM neither contracts nor reorders, and what it leaves undefined (conversions out of range) is spelled out.
"""

from __future__ import annotations

from collections.abc import Sequence

from .stage import Dtype, Instruction, Kind, Lane, Operand, Reference, Stage, lane_of

__all__ = ["FUNCTION", "llvm_ir"]

# The name of the function `void (void* const* operands, const Scalar* scalars, int64 rows, int64 cols)`.
FUNCTION = "stage"

# A b8 is one byte in memory and one bit as value: so comparisons become masks of vectors without a detour.
_TYPES = {Lane.F32: "float", Lane.F64: "double", Lane.I64: "i64", Lane.B8: "i1"}
_SUFFIXES = {Lane.F32: "f32", Lane.F64: "f64", Lane.I64: "i64"}
_MEMORY_TYPES = {
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
_SIZES = {"float": 4, "double": 8, "half": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1}

_FLOAT_BINARY = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_INT_BINARY = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}
_INTRINSICS = {
    "abs": "fabs",
    "sqrt": "sqrt",
    "floor": "floor",
    "ceil": "ceil",
    "trunc": "trunc",
    "nearest": "roundeven",
}
_FLOAT_PREDICATES = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole"}
_INT_PREDICATES = {"eq": "eq", "ne": "ne", "lt": "slt", "le": "sle"}
_BOOL_PREDICATES = {"eq": "eq", "ne": "ne", "lt": "ult", "le": "ule"}

# LLVM writes floating-point constants as the bits of the double of the same value.
_NAN = "0x7FF8000000000000"
# Of integers with so many bits: the least one, and the first number above all.
_RANGES = {32: ("0xC1E0000000000000", "0x41E0000000000000"), 64: ("0xC3E0000000000000", "0x43E0000000000000")}

# Floating-point loops get vectors of 256 bits, what LLVM takes on x86 anyway. To be told so spares it the search among
# widths, a third of the time for bf16.
_VECTOR_BYTES = 32

# LLVM interleaves short loop bodies by itself and long ones never. A long body here is mostly a chain of dependent
# operations, which leaves the CPU waiting: four vectors at a time run 18 operations 1.5 (fp32) to 2.8 (fp16) times as
# fast. Values that live at the same time must fit into 16 registers, together with scalars and constants.
_LONG_BODY = 12
_REGISTERS_FOR_VALUES = 12
# Rows may be short: what does not fill all vectors of a step goes through slower loops.
_MAX_INTERLEAVE_FLAT, _MAX_INTERLEAVE_NESTED = 4, 2


def llvm_ir(stage: Stage) -> str:
    """A module with the function :data:`FUNCTION`. Equal stages give equal texts."""
    return _Module(stage).text()


def _most_alive(stage: Stage) -> int:
    """How many values are needed at the same time, at most."""
    last_use = {arg.index: k for k, instruction in enumerate(stage.code) for arg in instruction.args if arg.kind == "%"}
    alive: set[int] = set()
    most = 0
    for k, instruction in enumerate(stage.code):
        alive = {value for value in alive if last_use[value] > k}
        if instruction.out in last_use:
            assert instruction.out is not None
            alive.add(instruction.out)
        most = max(most, len(alive))
    return most


class _Module:
    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.flat = all(operand.kind == Kind.DENSE for operand in stage.operands)
        self.lines: list[str] = []
        self.values: dict[int, str] = {}
        self.scalars: dict[int, str] = {}
        self.temporaries = 0
        self.intrinsics: set[str] = set()
        # Types whose rounding would not change a value, by value: spares a store the second rounding.
        self.exact: dict[int, Dtype] = {}
        # References to f32 whose NaNs, if any, are zero in the half that bf16 drops.
        self.short_nans: set[Reference] = set()

    def text(self) -> str:
        self.prologue()
        if self.flat:
            self.flat_loop()
        else:
            self.nested_loops()
        signature = f"define void @{FUNCTION}(ptr %operands, ptr %scalars, i64 %rows, i64 %cols) nounwind"
        return "\n".join([signature + " {", *self.lines, "}", *self.declarations(), *self.metadata(), ""])

    # -- Lines --------------------------------------------------------------------------------------------------------

    def emit(self, operation: str) -> str:
        """One instruction with a result; returns its name."""
        name = f"%t{self.temporaries}"
        self.temporaries += 1
        self.lines.append(f"  {name} = {operation}")
        return name

    def intrinsic(self, name: str, type_: str, args: Sequence[str]) -> str:
        self.intrinsics.add(f"declare {type_} @{name}({', '.join([type_] * len(args))})")
        return self.emit(f"call {type_} @{name}({', '.join(f'{type_} {arg}' for arg in args)})")

    def declarations(self) -> list[str]:
        return sorted(self.intrinsics)

    def metadata(self) -> list[str]:
        # One alias scope per operand: an access to one touches no other, so the vector loop needs no checks of overlap
        # in front of it. Node 0 is the domain, 1 + k the scope of operand k; lists of scopes follow.
        count = len(self.stage.operands)
        lines = ['!0 = distinct !{!0, !"operands"}']
        lines += [f"!{1 + k} = distinct !{{!{1 + k}, !0}}" for k in range(count)]
        for k in range(count):
            others = ", ".join(f"!{1 + other}" for other in range(count) if other != k)
            lines += [f"!{self.scope(k)} = !{{!{1 + k}}}", f"!{self.other_scopes(k)} = !{{{others}}}"]
        hints = self.hints()
        if hints:
            loop = self.loop()
            nodes = [f"!{loop + 1 + k}" for k in range(len(hints))]
            lines.append(f"!{loop} = distinct !{{{', '.join([f'!{loop}', *nodes])}}}")
            lines += [
                f'{node} = !{{!"llvm.loop.{name}", i32 {value}}}'
                for node, (name, value) in zip(nodes, hints.items(), strict=True)
            ]
        return lines

    def scope(self, operand: int) -> int:
        return 1 + len(self.stage.operands) + 2 * operand

    def other_scopes(self, operand: int) -> int:
        return self.scope(operand) + 1

    def loop(self) -> int:
        """The node of the innermost loop, after those of all scopes."""
        return 1 + 3 * len(self.stage.operands)

    def back_edge(self) -> str:
        return f", !llvm.loop !{self.loop()}" if self.hints() else ""

    def hints(self) -> dict[str, int]:
        """What the vectorizer is told about the innermost loop."""
        hints: dict[str, int] = {}
        lanes = {instruction.lane for instruction in self.stage.code}
        # Integers are left to LLVM, which finds out how narrow their arithmetic can be.
        if self.flat and Lane.I64 not in lanes and lanes & {Lane.F32, Lane.F64}:
            hints["vectorize.width"] = _VECTOR_BYTES // (8 if Lane.F64 in lanes else 4)
        if len(self.stage.code) > _LONG_BODY:
            count = _MAX_INTERLEAVE_FLAT if self.flat else _MAX_INTERLEAVE_NESTED
            while count > 1 and count * _most_alive(self.stage) > _REGISTERS_FOR_VALUES:
                count //= 2
            hints["interleave.count"] = count
        return hints

    # -- Loops --------------------------------------------------------------------------------------------------------

    def prologue(self) -> None:
        self.lines.append("entry:")
        for k in range(len(self.stage.operands)):
            slot = self.emit(f"getelementptr inbounds ptr, ptr %operands, i64 {k}")
            self.lines.append(f"  %operand{k} = load ptr, ptr {slot}, align 8")
        for k, lane in self.stage.scalars.items():
            slot = self.emit(f"getelementptr inbounds i64, ptr %scalars, i64 {k}")
            if lane == Lane.B8:
                byte = self.emit(f"load i8, ptr {slot}, align 8")
                self.scalars[k] = self.emit(f"icmp ne i8 {byte}, 0")
                continue
            scalar = self.emit(f"load {_TYPES[lane]}, ptr {slot}, align 8")
            if lane == Lane.F32:
                # Once here, or else at each rounding to bf16.
                nan = self.emit(f"fcmp uno float {scalar}, 0.0")
                scalar = self.emit(f"select i1 {nan}, float {_NAN}, float {scalar}")
                self.short_nans.add(Reference("$", k))
            self.scalars[k] = scalar

    def flat_loop(self) -> None:
        self.lines += [
            "  %n = mul nsw i64 %rows, %cols",
            "  %any = icmp sgt i64 %n, 0",
            "  br i1 %any, label %loop, label %exit",
            "loop:",
            "  %i = phi i64 [ 0, %entry ], [ %i.next, %loop ]",
        ]
        for instruction in self.stage.code:
            self.instruction(instruction, {Kind.DENSE: "%i"})
        self.lines += [
            "  %i.next = add nuw nsw i64 %i, 1",
            "  %i.done = icmp eq i64 %i.next, %n",
            f"  br i1 %i.done, label %exit, label %loop{self.back_edge()}",
            "exit:",
            "  ret void",
        ]

    def nested_loops(self) -> None:
        self.lines += [
            "  %any.row = icmp sgt i64 %rows, 0",
            "  %any.col = icmp sgt i64 %cols, 0",
            "  %any = and i1 %any.row, %any.col",
            "  br i1 %any, label %row, label %exit",
            "row:",
            "  %r = phi i64 [ 0, %entry ], [ %r.next, %row.end ]",
            "  %start = mul nsw i64 %r, %cols",
        ]
        # Loads of per-row values stay in front of the inner loop: out of it LLVM could not move them past its stores.
        inner: list[Instruction] = []
        for instruction in self.stage.code:
            if instruction.op == "load" and self.operand(instruction).kind == Kind.ROW:
                self.instruction(instruction, {Kind.ROW: "%r"})
            else:
                inner.append(instruction)
        self.lines += [
            "  br label %col",
            "col:",
            "  %c = phi i64 [ 0, %row ], [ %c.next, %col ]",
            "  %i = add nsw i64 %start, %c",
        ]
        for instruction in inner:
            self.instruction(instruction, {Kind.DENSE: "%i", Kind.COLUMNS: "%c"})
        self.lines += [
            "  %c.next = add nuw nsw i64 %c, 1",
            "  %c.done = icmp eq i64 %c.next, %cols",
            f"  br i1 %c.done, label %row.end, label %col{self.back_edge()}",
            "row.end:",
            "  %r.next = add nuw nsw i64 %r, 1",
            "  %r.done = icmp eq i64 %r.next, %rows",
            "  br i1 %r.done, label %exit, label %row",
            "exit:",
            "  ret void",
        ]

    # -- Instructions -------------------------------------------------------------------------------------------------

    def operand(self, instruction: Instruction) -> Operand:
        assert instruction.memory is not None
        return self.stage.operands[instruction.memory]

    def argument(self, reference: Reference) -> str:
        return self.values[reference.index] if reference.kind == "%" else self.scalars[reference.index]

    def instruction(self, instruction: Instruction, places: dict[Kind, str]) -> None:
        if instruction.op == "store":
            self.store(instruction, places)
            return
        assert instruction.out is not None
        args = [self.argument(reference) for reference in instruction.args]
        if instruction.op == "load":
            self.exact[instruction.out] = self.operand(instruction).dtype
            value = self.load(instruction, places)
        elif instruction.op == "round":
            assert instruction.dtype is not None
            self.exact[instruction.out] = instruction.dtype
            value = self.rounded(instruction.dtype, args[0], instruction.args[0] in self.short_nans)
        elif instruction.op == "cast":
            assert instruction.result is not None
            value = self.cast(instruction.lane, instruction.result, args[0], instruction.dtype == Dtype.I32)
        elif instruction.op == "select":
            type_ = _TYPES[instruction.lane]
            value = self.emit(f"select i1 {args[0]}, {type_} {args[1]}, {type_} {args[2]}")
        elif instruction.lane in (Lane.F32, Lane.F64):
            value = self.float_operation(instruction.op, instruction.lane, args)
        else:
            value = self.int_operation(instruction.op, instruction.lane, args)
        self.values[instruction.out] = value
        if self.has_short_nans(instruction):
            self.short_nans.add(Reference("%", instruction.out))

    def has_short_nans(self, instruction: Instruction) -> bool:
        """LLVM promises that the NaN of an operation is the preferred one (only its top bit set), or a NaN that went
        in, at most made quiet."""
        if instruction.result != Lane.F32:
            return False
        if instruction.op in ("min", "max"):
            return True  # the preferred one
        if instruction.op == "load":
            return self.operand(instruction).dtype == Dtype.BF16
        if instruction.op == "round" and instruction.dtype == Dtype.BF16:
            return True
        if instruction.op == "cast" and instruction.lane != Lane.F32:
            return instruction.lane != Lane.F64
        args = instruction.args[1:] if instruction.op == "select" else instruction.args
        # Rounds to fp16 are among these: they cut a NaN's low bits off.
        return all(arg in self.short_nans for arg in args)

    def float_operation(self, op: str, lane: Lane, args: list[str]) -> str:
        type_ = _TYPES[lane]
        if op in _FLOAT_BINARY:
            return self.emit(f"{_FLOAT_BINARY[op]} {type_} {args[0]}, {args[1]}")
        if op in _INTRINSICS:
            return self.intrinsic(f"llvm.{_INTRINSICS[op]}.{_SUFFIXES[lane]}", type_, args)
        if op == "fma":
            return self.intrinsic(f"llvm.fma.{_SUFFIXES[lane]}", type_, args)
        if op == "neg":
            return self.emit(f"fneg {type_} {args[0]}")
        if op in _FLOAT_PREDICATES:
            return self.emit(f"fcmp {_FLOAT_PREDICATES[op]} {type_} {args[0]}, {args[1]}")
        # Equal operands (zeros of either sign among them) give the second one, as the x86 instructions do.
        smaller = self.emit(f"fcmp {'olt' if op == 'min' else 'ogt'} {type_} {args[0]}, {args[1]}")
        value = self.emit(f"select i1 {smaller}, {type_} {args[0]}, {type_} {args[1]}")
        unordered = self.emit(f"fcmp uno {type_} {args[0]}, {args[1]}")
        return self.emit(f"select i1 {unordered}, {type_} {_NAN}, {type_} {value}")

    def int_operation(self, op: str, lane: Lane, args: list[str]) -> str:
        type_ = _TYPES[lane]
        if op in _INT_BINARY:
            return self.emit(f"{_INT_BINARY[op]} {type_} {args[0]}, {args[1]}")
        if op == "fma":
            return self.emit(f"add i64 {self.emit(f'mul i64 {args[0]}, {args[1]}')}, {args[2]}")
        if op == "not":
            return self.emit(f"xor {type_} {args[0]}, -1")
        if op == "neg":
            return self.emit(f"sub i64 0, {args[0]}")
        if op == "abs":
            negative = self.emit(f"icmp slt i64 {args[0]}, 0")
            negated = self.emit(f"sub i64 0, {args[0]}")
            return self.emit(f"select i1 {negative}, i64 {negated}, i64 {args[0]}")
        if op in ("min", "max"):
            first = self.emit(f"icmp {'slt' if op == 'min' else 'sgt'} i64 {args[0]}, {args[1]}")
            return self.emit(f"select i1 {first}, i64 {args[0]}, i64 {args[1]}")
        predicates = _BOOL_PREDICATES if lane == Lane.B8 else _INT_PREDICATES
        return self.emit(f"icmp {predicates[op]} {type_} {args[0]}, {args[1]}")

    def cast(self, source: Lane, target: Lane, value: str, through_i32: bool) -> str:
        if source == target:
            return value
        from_, to = _TYPES[source], _TYPES[target]
        floats = (Lane.F32, Lane.F64)
        if target == Lane.B8:
            zero = "fcmp une" if source in floats else "icmp ne"
            return self.emit(f"{zero} {from_} {value}, {'0.0' if source in floats else '0'}")
        if source == Lane.B8:
            return self.emit(f"{'uitofp' if target in floats else 'zext'} i1 {value} to {to}")
        if source == Lane.I64:
            return self.emit(f"sitofp i64 {value} to {to}")
        if target == Lane.I64:
            return self.float_to_int(from_, value, 32 if through_i32 else 64)
        return self.emit(f"{'fpext' if target == Lane.F64 else 'fptrunc'} {from_} {value} to {to}")

    def float_to_int(self, type_: str, value: str, bits: int) -> str:
        # LLVM's own conversion means nothing out of range, where the x86 instruction gives the least integer.
        lowest, above = _RANGES[bits]
        enough = self.emit(f"fcmp oge {type_} {value}, {lowest}")
        below = self.emit(f"fcmp olt {type_} {value}, {above}")
        inside = self.emit(f"and i1 {enough}, {below}")
        safe = self.emit(f"select i1 {inside}, {type_} {value}, {type_} 0.0")
        converted = self.emit(f"fptosi {type_} {safe} to i{bits}")
        result = self.emit(f"select i1 {inside}, i{bits} {converted}, i{bits} {-(2 ** (bits - 1))}")
        return result if bits == 64 else self.emit(f"sext i{bits} {result} to i64")

    def rounded(self, dtype: Dtype, value: str, short_nans: bool = False) -> str:
        """`value` as if stored to `dtype` and loaded again. `short_nans`: see the attribute."""
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
            if short_nans:
                return result  # the addition cannot carry out of a NaN whose low half is zero
            nan = self.emit(f"fcmp uno float {value}, 0.0")
            return self.emit(f"select i1 {nan}, float {_NAN}, float {result}")
        memory = _MEMORY_TYPES[dtype]
        if dtype == Dtype.F16:
            return self.emit(f"fpext half {self.emit(f'fptrunc float {value} to half')} to float")
        if dtype in (Dtype.I32, Dtype.I16, Dtype.I8, Dtype.U8):
            narrow = self.emit(f"trunc i64 {value} to {memory}")
            return self.emit(f"{'zext' if dtype == Dtype.U8 else 'sext'} {memory} {narrow} to i64")
        return value

    # -- Memory -------------------------------------------------------------------------------------------------------

    def address(self, operand: int, places: dict[Kind, str]) -> str:
        tensor = self.stage.operands[operand]
        type_ = _MEMORY_TYPES[tensor.dtype]
        return self.emit(f"getelementptr inbounds {type_}, ptr %operand{operand}, i64 {places[tensor.kind]}")

    def scopes(self, operand: int) -> str:
        return f"!alias.scope !{self.scope(operand)}, !noalias !{self.other_scopes(operand)}"

    def load(self, instruction: Instruction, places: dict[Kind, str]) -> str:
        assert instruction.memory is not None
        dtype = self.operand(instruction).dtype
        type_ = _MEMORY_TYPES[dtype]
        address = self.address(instruction.memory, places)
        value = self.emit(f"load {type_}, ptr {address}, align {_SIZES[type_]}, {self.scopes(instruction.memory)}")
        if dtype == Dtype.BF16:
            wide = self.emit(f"zext i16 {value} to i32")
            return self.emit(f"bitcast i32 {self.emit(f'shl i32 {wide}, 16')} to float")
        if dtype == Dtype.F16:
            return self.emit(f"fpext half {value} to float")
        if dtype == Dtype.BOOL:
            return self.emit(f"icmp ne i8 {value}, 0")
        if lane_of(dtype) == Lane.I64 and dtype != Dtype.I64:
            return self.emit(f"{'zext' if dtype == Dtype.U8 else 'sext'} {type_} {value} to i64")
        return value

    def store(self, instruction: Instruction, places: dict[Kind, str]) -> None:
        assert instruction.memory is not None
        dtype = self.operand(instruction).dtype
        type_ = _MEMORY_TYPES[dtype]
        (reference,) = instruction.args
        value = self.argument(reference)
        if dtype == Dtype.BF16:
            if reference.kind == "$" or self.exact.get(reference.index) != dtype:
                value = self.rounded(dtype, value, reference in self.short_nans)
            bits = self.emit(f"bitcast float {value} to i32")
            value = self.emit(f"trunc i32 {self.emit(f'lshr i32 {bits}, 16')} to i16")
        elif dtype == Dtype.F16:
            value = self.emit(f"fptrunc float {value} to half")
        elif dtype == Dtype.BOOL:
            value = self.emit(f"zext i1 {value} to i8")
        elif lane_of(dtype) == Lane.I64 and dtype != Dtype.I64:
            value = self.emit(f"trunc i64 {value} to {type_}")
        address = self.address(instruction.memory, places)
        self.lines.append(
            f"  store {type_} {value}, ptr {address}, align {_SIZES[type_]}, {self.scopes(instruction.memory)}"
        )
