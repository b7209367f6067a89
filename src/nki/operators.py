"""Operators and functions that instructions are told to apply: from what kernels pass to their names.

Kernels pass the functions of nki.language (`op=nl.add`), NumPy's (`np.add`, in older kernels), or names. Each becomes
the name that stands in instructions: one of `enum class Alu` or `enum class Function` in csrc/engines/isa/program.h.

Which operators an engine has: tables "Supported Math Operators for NKI ISA" and "Supported Activation Functions for NKI
ISA" of the NKI API documentation, SDK 2.32.
"""

from __future__ import annotations

from typing import Any

from .errors import UnknownOperatorError
from .trace import source_line

__all__ = [
    "ACTIVATIONS",
    "ARITHMETIC",
    "BINARY",
    "BITWISE",
    "COMPARISONS",
    "REDUCTIONS",
    "UNARY",
    "Operator",
    "average",
    "bypass",
    "name_of",
    "prelu"
]  # fmt: skip


class Operator:
    """An operator that only names itself: no function of nki.language computes it alone."""

    __slots__ = ("__name__",)

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __repr__(self) -> str:
        return f"nki.language.{self.__name__}"

    def __reduce__(self) -> str:
        return self.__name__


bypass = Operator("bypass")  # passes its first operand on
prelu = Operator("prelu")
average = Operator("average")  # of tensor_partition_reduce

COMPARISONS = frozenset({"equal", "not_equal", "greater", "greater_equal", "less", "less_equal"})
# Bits of integers; never mixed with the others in one instruction.
BITWISE = frozenset(
    {"invert", "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift", "arithmetic_right_shift"}
)
# Arithmetic with two operands, in fp32. divide, mod and fmod exist only in simulation.
BINARY = COMPARISONS | {
    "add", "subtract", "multiply", "maximum", "minimum", "logical_and", "logical_or", "logical_xor", "power",
    "abs_max", "abs_min", "divide", "mod", "fmod"
}  # fmt: skip
# Arithmetic with one operand.
UNARY = frozenset({"abs", "square", "relu", "rsqrt", "reciprocal"})
ARITHMETIC = BINARY | UNARY
REDUCTIONS = frozenset(
    {
        "bitwise_and", "bitwise_or", "bitwise_xor", "add", "subtract", "multiply", "maximum", "minimum", "logical_and",
        "logical_or", "logical_xor"
    }
)  # fmt: skip
ACTIVATIONS = frozenset(
    {
        "copy", "square", "sigmoid", "relu", "prelu", "gelu", "gelu_dx", "gelu_apprx_tanh", "gelu_apprx_tanh_dx",
        "gelu_apprx_sigmoid", "gelu_apprx_sigmoid_dx", "silu", "silu_dx", "tanh", "softplus", "mish", "erf", "erf_dx",
        "exp", "log", "sin", "arctan", "sqrt", "rsqrt", "reciprocal", "sign", "abs"
    }
)  # fmt: skip
# Functions that nki.language composes on chip and the simulator computes at once.
COMPOSED = frozenset({"cos", "tan", "floor", "ceil", "trunc"})

_ALIASES = {
    "max": "maximum", "amax": "maximum", "min": "minimum", "amin": "minimum", "sum": "add", "mult": "multiply",
    "mul": "multiply", "prod": "multiply", "sub": "subtract", "mean": "average", "absolute": "abs", "fabs": "abs",
    "absmax": "abs_max", "absmin": "abs_min", "bitwise_not": "invert", "not_equals": "not_equal", "pow": "power",
    "float_power": "power", "true_divide": "divide", "remainder": "mod", "identity": "copy", "all": "logical_and",
    "any": "logical_or", "logical_shift_left": "left_shift", "logical_shift_right": "right_shift",
    "bitwise_left_shift": "left_shift", "bitwise_right_shift": "right_shift"
}  # fmt: skip
_NAMES = BITWISE | ARITHMETIC | ACTIVATIONS | COMPOSED | {"bypass", "average"}

# What was seen before, by the object itself: an instruction should cost no more than a look here.
known: dict[Any, str] = {name: name for name in _NAMES}


def name_of(operator: Any, op: str, operand: str) -> str:
    """The name that `operator`, passed as `operand` of instruction `op`, has in instructions.

    Raises:
        UnknownOperatorError: it is no operator.
    """
    try:
        found = known.get(operator)
    except TypeError:
        found = None
    if found is not None:
        return found
    name = operator if isinstance(operator, str) else getattr(operator, "__name__", None)
    if isinstance(name, str):
        name = _ALIASES.get(name, name)
        if name in _NAMES:
            known[operator] = name
            return name
    raise UnknownOperatorError(op=op, operand=operand, value=operator, line=source_line())
