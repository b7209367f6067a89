"""Instructions of kernels as LLVM IR, one at a time; the loops around them are those of :mod:`.kernel_code`.

A value of lane i64 that is known to fit is an i32; see :mod:`.kernel_ranges`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from . import kernel_math
from .kernel import Instruction, Kernel, Variable
from .kernel_ranges import fits, ranges
from .stage import Dtype, Lane
from .values import FLOATS, MEMORY_TYPES, TYPES, Values, float_constant

__all__ = ["KernelValues", "Place"]

_DIVISIONS = ("floordiv", "mod", "truncdiv", "rem")
_ORDERS = ("lt", "le", "gt", "ge")


@dataclass
class Place:
    """Where in the loops code is being written, and what is known there."""

    values: dict[int, str] = field(default_factory=dict)  # by instruction
    addresses: dict[int, str] = field(default_factory=dict)  # by operand
    indices: dict[int, str] = field(default_factory=dict)  # by dimension; i64
    position: str = "0"  # in the order of the loops over reduced dimensions

    def copy(self) -> Place:
        return Place(dict(self.values), dict(self.addresses), dict(self.indices), self.position)


class KernelValues(Values):
    """The function of a kernel under construction."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.kernel = kernel
        self.ranges = ranges(kernel)
        self.variables: dict[int, str] = {}
        self.functions: dict[str, str] = {}  # of mathematics, by name
        # Operands that share memory share a scope, and the address: so LLVM sees that a store meets only its own load.
        aliases: dict[int, int] = {}
        self.base: list[int] = []  # operand that stands for the memory
        for k, operand in enumerate(kernel.operands):
            self.base.append(aliases.setdefault(operand.alias, k) if operand.alias >= 0 else k)
        # As in :mod:`.codegen`: what a store need not round again, and NaNs without low bits.
        self.exact: dict[int, Dtype] = {}
        self.short_nans: set[int] = set()

    # -- Types --------------------------------------------------------------------------------------------------------

    def type_of(self, place: int) -> str:
        instruction = self.kernel.code[place]
        narrow = instruction.lane == Lane.I64 and fits(self.ranges[place])
        return "i32" if narrow else TYPES[instruction.lane]

    def argument(self, arg: int, at: Place, type_: str | None = None) -> str:
        """The value of an instruction, as `type_` (an integer may be asked for with more or fewer bits)."""
        value, has = at.values[arg], self.type_of(arg)
        return value if type_ is None or type_ == has else self.cast(has, type_, value)

    # -- Memory -------------------------------------------------------------------------------------------------------

    def operand_scopes(self, operand: int) -> str:
        # One scope for each operand, and one for scratch memory and accumulators after them.
        return self.scopes(self.base[operand], len(self.kernel.operands) + 1)

    def scratch_scopes(self) -> str:
        return self.scopes(len(self.kernel.operands), len(self.kernel.operands) + 1)

    def store(self, place: int, at: Place) -> None:
        instruction = self.kernel.code[place]
        dtype = self.kernel.operands[instruction.operand].dtype
        (arg,) = instruction.args
        self.store_element(
            dtype,
            at.values[arg],
            at.addresses[instruction.operand],
            self.operand_scopes(instruction.operand),
            type_=self.type_of(arg),
            exact=self.exact.get(arg) == dtype,
            short_nan=arg in self.short_nans,
        )

    # -- Instructions -------------------------------------------------------------------------------------------------

    def instruction(self, place: int, at: Place) -> None:
        """Computes one value that is not that of a reduction."""
        at.values[place] = self._value(place, self.kernel.code[place], at)
        if self._has_short_nans(self.kernel.code[place]):
            self.short_nans.add(place)

    def _value(self, place: int, instruction: Instruction, at: Place) -> str:
        op, args, type_ = instruction.op, instruction.args, self.type_of(place)
        if op == "constant":
            return self._constant(instruction, type_)
        if op == "index" and self.kernel.sizes[instruction.dim] == 1:
            return "0"
        if op == "index":
            return self.cast("i64", type_, at.indices[instruction.dim])
        if op in ("load", "gather"):
            return self._load(place, instruction, at, type_)
        if op == "cast":
            return self.cast(self.type_of(args[0]), type_, at.values[args[0]])
        if op == "round":
            assert instruction.dtype is not None
            self.exact[place] = instruction.dtype
            from_ = self.type_of(args[0])
            value = self.rounded(instruction.dtype, at.values[args[0]], from_, args[0] in self.short_nans)
            return self.cast(from_, type_, value) if from_ != type_ else value
        if op == "select":
            condition, a, b = (self.argument(arg, at, "i1" if k == 0 else type_) for k, arg in enumerate(args))
            return self.emit(f"select i1 {condition}, {type_} {a}, {type_} {b}")
        lane = instruction.source or instruction.lane
        if lane == Lane.I64:
            return self._int_value(place, instruction, at, type_)
        values = [at.values[arg] for arg in args]
        if lane == Lane.B8:
            return self.int_operation(op, "i1", values)
        return self._float_value(instruction, TYPES[lane], values)

    def _constant(self, instruction: Instruction, type_: str) -> str:
        constant = instruction.constant
        if isinstance(constant, Variable):
            return self.variables[constant.index]
        if type_ in FLOATS:
            assert constant is not None
            return float_constant(float(constant), type_)
        if type_ == "i1":
            return "true" if constant else "false"
        return str(constant)

    def _load(self, place: int, instruction: Instruction, at: Place, type_: str) -> str:
        operand = instruction.operand
        dtype = self.kernel.operands[operand].dtype
        self.exact[place] = dtype
        address = at.addresses[operand]
        if instruction.op == "gather":
            offset = self.argument(instruction.args[0], at, "i64")
            address = self.emit(f"getelementptr {MEMORY_TYPES[dtype]}, ptr {address}, i64 {offset}")
        return self.load_element(dtype, address, self.operand_scopes(operand), type_)

    def _has_short_nans(self, instruction: Instruction) -> bool:
        if instruction.lane != Lane.F32:
            return False
        if instruction.op in ("load", "gather"):
            return self.kernel.operands[instruction.operand].dtype == Dtype.BF16
        if instruction.op in ("constant", "min", "max") or instruction.dtype == Dtype.BF16:
            return True
        if instruction.op in kernel_math.FUNCTIONS:
            return False  # they take numbers to pieces
        if instruction.op == "cast":
            return instruction.source != Lane.F64
        args = instruction.args[1:] if instruction.op == "select" else instruction.args
        return all(arg in self.short_nans for arg in args)

    # -- Floating point -----------------------------------------------------------------------------------------------

    def function(self, instruction: Instruction) -> kernel_math.Function | None:
        """The function that an instruction calls."""
        type_ = TYPES[instruction.source or instruction.lane]
        called = instruction.op in kernel_math.FUNCTIONS and (type_ in FLOATS or instruction.op == "pow")
        return kernel_math.function(instruction.op, type_) if called else None

    def _float_value(self, instruction: Instruction, type_: str, args: list[str]) -> str:
        function = self.function(instruction)
        if function is None:
            return self.float_operation(instruction.op, type_, args)
        self.functions[function.name] = function.definition
        self.declared |= function.declared
        return self.emit(f"call {function.result} @{function.name}({', '.join(f'{type_} {arg}' for arg in args)})")

    # -- Integers -----------------------------------------------------------------------------------------------------

    def _int_value(self, place: int, instruction: Instruction, at: Place, type_: str) -> str:
        op, args = instruction.op, instruction.args
        narrow = all(self.type_of(arg) == "i32" for arg in args) and type_ != "i64"
        # Shifts and powers leave any range.
        work = "i32" if narrow and op not in ("shl", "shr", "pow") else "i64"
        values = [self.argument(arg, at, work) for arg in args]
        result = work
        if op in _DIVISIONS:
            value = self._division(op, work, args, values)
        elif op in ("shl", "shr"):
            value = self._shift(op, values)
        elif op == "pow":
            value = self._float_value(instruction, "i64", values)
        elif op == "signbit":
            value, result = self.emit(f"icmp slt {work} {values[0]}, 0"), "i1"
        elif op == "sign":
            positive = self.cast("i1", work, self.emit(f"icmp sgt {work} {values[0]}, 0"))
            negative = self.cast("i1", work, self.emit(f"icmp slt {work} {values[0]}, 0"))
            value = self.emit(f"sub {work} {positive}, {negative}")
        elif op in _ORDERS and work == "i32" and self._differ_in_32_bits(args):
            value, result = self._order(op, values), "i1"
        else:
            value = self.int_operation(op, work, values)
            result = type_ if type_ == "i1" else work
        return self.cast(result, type_, value) if result != type_ else value

    def _differ_in_32_bits(self, args: tuple[int, ...]) -> bool:
        a, b = (self.ranges[arg] for arg in args)
        return a is not None and b is not None and fits((a[0] - b[1], a[1] - b[0])) and fits((b[0] - a[1], b[1] - a[0]))

    def _order(self, op: str, values: list[str]) -> str:
        # By the sign of the difference: LLVM would make a comparison of an index one of 64 bits, with half the vector.
        a, b = values if op in ("lt", "ge") else reversed(values)
        less = self.emit(f"icmp slt i32 {self.emit(f'sub i32 {a}, {b}')}, 0")
        return less if op in ("lt", "gt") else self.emit(f"xor i1 {less}, true")

    def _division(self, op: str, type_: str, args: tuple[int, ...], values: list[str]) -> str:
        remainder = op in ("mod", "rem")
        dividend, divisor = self.ranges[args[0]], self.ranges[args[1]]
        a, b = values
        if dividend and divisor and dividend[0] >= 0 and divisor[0] > 0:
            return self.emit(f"{'urem' if remainder else 'udiv'} {type_} {a}, {b}")
        # The instruction of the CPU traps at zero and where the quotient has one bit too many: there it divides by 1.
        by_zero = self.emit(f"icmp eq {type_} {b}, 0")
        negated = self.emit(f"icmp eq {type_} {b}, -1")
        replaced = self.emit(f"or i1 {by_zero}, {negated}")
        safe = b if divisor and divisor[0] > 0 else self.emit(f"select i1 {replaced}, {type_} 1, {type_} {b}")
        quotient = self.emit(f"sdiv {type_} {a}, {safe}")
        rest = self.emit(f"sub {type_} {a}, {self.emit(f'mul {type_} {quotient}, {safe}')}")
        if op in ("floordiv", "mod"):
            inexact = self.emit(f"icmp ne {type_} {rest}, 0")
            differ = self.emit(f"icmp slt {type_} {self.emit(f'xor {type_} {rest}, {safe}')}, 0")
            down = self.emit(f"and i1 {inexact}, {differ}")
            if remainder:
                return self.emit(f"add {type_} {rest}, {self.emit(f'select i1 {down}, {type_} {safe}, {type_} 0')}")
            quotient = self.emit(f"sub {type_} {quotient}, {self.cast('i1', type_, down)}")
        if remainder:
            return rest
        if safe == b:
            return quotient
        minus = self.emit(f"sub {type_} 0, {a}")
        quotient = self.emit(f"select i1 {negated}, {type_} {minus}, {type_} {quotient}")
        return self.emit(f"select i1 {by_zero}, {type_} 0, {type_} {quotient}")

    def _shift(self, op: str, values: list[str]) -> str:
        # As PyTorch: by fewer than 0 or more than 63 places nothing is left, of a negative number shifted right -1.
        a, by = values
        inside = self.emit(f"icmp ult i64 {by}, 64")
        if op == "shl":
            shifted = self.emit(f"shl i64 {a}, {self.emit(f'select i1 {inside}, i64 {by}, i64 0')}")
            return self.emit(f"select i1 {inside}, i64 {shifted}, i64 0")
        return self.emit(f"ashr i64 {a}, {self.emit(f'select i1 {inside}, i64 {by}, i64 63')}")
