"""Stages to LLVM IR: one scalar loop that LLVM vectorises.

The values are those of the tile kernels (csrc/engines), bit for bit but for the payloads of NaNs.
"""

from __future__ import annotations

from .stage import Dtype, Instruction, Kind, Lane, Operand, Reference, Stage
from .values import MEMORY_TYPES, NAN, TYPES, VECTOR_BYTES, Values, loop_metadata, scope_metadata

__all__ = ["FUNCTION", "llvm_ir"]

# The name of the function `void (void* const* operands, const Scalar* scalars, int64 rows, int64 cols)`.
FUNCTION = "stage"

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


class _Module(Values):
    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.stage = stage
        self.flat = all(operand.kind == Kind.DENSE for operand in stage.operands)
        self.values: dict[int, str] = {}
        self.scalars: dict[int, str] = {}
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

    def metadata(self) -> list[str]:
        hints = self.hints()
        lines = scope_metadata(len(self.stage.operands))
        return lines + loop_metadata(self.loop(), hints) if hints else lines

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
            hints["vectorize.width"] = VECTOR_BYTES // (8 if Lane.F64 in lanes else 4)
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
            scalar = self.emit(f"load {TYPES[lane]}, ptr {slot}, align 8")
            if lane == Lane.F32:
                # Once here, or else at each rounding to bf16.
                nan = self.emit(f"fcmp uno float {scalar}, 0.0")
                scalar = self.emit(f"select i1 {nan}, float {NAN}, float {scalar}")
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
            short_nan = instruction.args[0] in self.short_nans
            value = self.rounded(instruction.dtype, args[0], TYPES[instruction.lane], short_nan)
        elif instruction.op == "cast":
            assert instruction.result is not None
            from_, to = TYPES[instruction.lane], TYPES[instruction.result]
            if instruction.dtype == Dtype.I32:
                value = self.cast("i32", to, self.cast(from_, "i32", args[0]))
            else:
                value = self.cast(from_, to, args[0])
        elif instruction.op == "select":
            type_ = TYPES[instruction.lane]
            value = self.emit(f"select i1 {args[0]}, {type_} {args[1]}, {type_} {args[2]}")
        else:
            value = self.operation(instruction.op, TYPES[instruction.lane], args)
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

    # -- Memory -------------------------------------------------------------------------------------------------------

    def address(self, operand: int, places: dict[Kind, str]) -> str:
        tensor = self.stage.operands[operand]
        type_ = MEMORY_TYPES[tensor.dtype]
        return self.emit(f"getelementptr inbounds {type_}, ptr %operand{operand}, i64 {places[tensor.kind]}")

    def load(self, instruction: Instruction, places: dict[Kind, str]) -> str:
        assert instruction.memory is not None
        address = self.address(instruction.memory, places)
        scopes = self.scopes(instruction.memory, len(self.stage.operands))
        return self.load_element(self.operand(instruction).dtype, address, scopes)

    def store(self, instruction: Instruction, places: dict[Kind, str]) -> None:
        assert instruction.memory is not None
        dtype = self.operand(instruction).dtype
        (reference,) = instruction.args
        self.store_element(
            dtype,
            self.argument(reference),
            self.address(instruction.memory, places),
            self.scopes(instruction.memory, len(self.stage.operands)),
            exact=reference.kind == "%" and self.exact.get(reference.index) == dtype,
            short_nan=reference in self.short_nans,
        )
