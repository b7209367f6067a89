"""Writing the straight-line code of a kernel: what all writers of kernels have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch

from torch_neuronx.jit.kernel import Instruction, Int, Variable
from torch_neuronx.jit.stage import Lane
from torch_neuronx.targets import graph as g
from torch_neuronx.targets.graph import Size

from .elements import DTYPES, Value, as_number, lane

__all__ = ["NARROW", "InstructionWriter"]

# Integer results of these may not fit their type.
_WRAPPING = frozenset({"add", "sub", "mul", "neg", "abs", "pow", "shl", "floordiv", "truncdiv"})
# Integers shorter than their lane.
NARROW = frozenset({torch.int32, torch.int16, torch.int8, torch.uint8})


class InstructionWriter:
    """See :class:`.elements.Writer`. Equal instructions are written once."""

    def __init__(self) -> None:
        self._code: list[Instruction] = []
        self._ints: list[Any] = []  # sizes behind the variables
        self._known: dict[Any, Value] = {}  # instructions by content

    def op(self, name: str, args: Sequence[Value], dtype: torch.dtype) -> Value:
        of = args[1] if name == "select" else args[0]
        source = lane(of.dtype) if lane(of.dtype) != lane(dtype) else None
        value = self._emit(Instruction(name, lane(dtype), tuple(a.place for a in args), source=source), dtype)
        return self.rounded(value) if name in _WRAPPING and dtype in NARROW else value

    def constant(self, number: Any, dtype: torch.dtype) -> Value:
        expression = g.size_of(number) if isinstance(number, torch.SymInt) else number
        if isinstance(expression, sympy.Expr):
            value = self._emit(Instruction("constant", Lane.I64, constant=self._int(expression)), torch.int64)
            return self.convert(value, dtype)
        number = as_number(expression, dtype)
        # -0.0 and 0.0 are equal, and so are True and 1.
        return self._emit(Instruction("constant", lane(dtype), constant=number), dtype, key=repr(number))

    def constant_size(self, size: Size) -> Value:
        """A size as value."""
        if isinstance(size, int):
            return self.constant(size, torch.int64)
        return self._emit(Instruction("constant", Lane.I64, constant=self._int(size)), torch.int64)

    def convert(self, value: Value, dtype: torch.dtype) -> Value:
        if value.dtype == dtype:
            return value
        source, target = lane(value.dtype), lane(dtype)
        result = value
        if source != target:
            result = self._emit(Instruction("cast", target, (value.place,), source=source), dtype)
        narrow = dtype in NARROW and value.dtype != torch.bool and not _fits(value.dtype, dtype)
        return self.rounded(Value(result.place, dtype)) if narrow else Value(result.place, dtype)

    def rounded(self, value: Value) -> Value:
        memory = DTYPES[value.dtype]
        if value.dtype in (torch.float32, torch.float64, torch.int64, torch.bool):
            return value
        return self._emit(Instruction("round", lane(value.dtype), (value.place,), dtype=memory), value.dtype)

    def _emit(self, instruction: Instruction, dtype: torch.dtype, key: Any = None) -> Value:
        key = (instruction, key)
        if key not in self._known:
            self._append(instruction, key)
            self._known[key] = Value(len(self._code) - 1, dtype)
        return Value(self._known[key].place, dtype)

    def _append(self, instruction: Instruction, key: Any) -> None:
        self._code.append(instruction)

    def _int(self, size: Size) -> Int:
        if isinstance(size, int):
            return size
        if size not in self._ints:
            self._ints.append(size)
        return Variable(self._ints.index(size))


def _fits(source: torch.dtype, target: torch.dtype) -> bool:
    a, b = torch.iinfo(source) if not source.is_floating_point else None, torch.iinfo(target)
    return a is not None and b.min <= a.min and a.max <= b.max
