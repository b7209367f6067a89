"""Stages as text: the contract between the tile kernels (csrc/engines) and machine code.

A stage is straight-line code on the elements of some tensors, one line each for operands, scalars and instructions:

    operand 0 f32 dense in
    operand 1 bf16 columns in
    operand 2 bf16 dense out
    scalar 0 f32
    %0 = load f32 @0
    %1 = load f32 @1
    %2 = fma f32 %0 %1 $0
    %3 = round bf16 %2
    store @2 %3

:func:`parse` checks all that code generation relies on, so that what it accepts compiles. Imports nothing of ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

__all__ = ["Dtype", "Instruction", "Kind", "Lane", "Operand", "Reference", "Stage", "StageError", "lane_of", "parse"]


class StageError(ValueError):
    """The text is no stage."""


class Lane(StrEnum):
    """What a value is; narrower types are widened to one of these when they are loaded."""

    F32 = "f32"
    F64 = "f64"
    I64 = "i64"
    B8 = "b8"


class Dtype(StrEnum):
    """Element types of memory."""

    F32 = "f32"
    F64 = "f64"
    BF16 = "bf16"
    F16 = "f16"
    I64 = "i64"
    I32 = "i32"
    I16 = "i16"
    I8 = "i8"
    U8 = "u8"
    BOOL = "bool"


_LANES = {
    Dtype.F32: Lane.F32,
    Dtype.BF16: Lane.F32,
    Dtype.F16: Lane.F32,
    Dtype.F64: Lane.F64,
    Dtype.BOOL: Lane.B8,
}


def lane_of(dtype: Dtype) -> Lane:
    """The lane that holds values of `dtype`."""
    return _LANES.get(dtype, Lane.I64)


class Kind(StrEnum):
    """Where element (r, c) of an operand lies: at r * cols + c, at r, or at c."""

    DENSE = "dense"
    ROW = "row"
    COLUMNS = "columns"


@dataclass(frozen=True)
class Operand:
    """One tensor. The elements of one that is read and written lie at the same places for both."""

    dtype: Dtype
    kind: Kind
    read: bool
    written: bool


@dataclass(frozen=True)
class Reference:
    """An argument: the value `%index` or the scalar `$index`."""

    kind: Literal["%", "$"]
    index: int


@dataclass(frozen=True)
class Instruction:
    """One line of code. `lane` is that of the arguments (of the two choices of a select), `result` that of `out`; a
    store has neither `out` nor `result`. `memory` is for loads and stores only, `dtype` for rounds and casts
    through i32."""

    op: str
    lane: Lane
    args: tuple[Reference, ...]
    out: int | None = None
    result: Lane | None = None
    memory: int | None = None
    dtype: Dtype | None = None


@dataclass(frozen=True)
class Stage:
    """`scalars` are the used entries of the array of scalars, by place."""

    operands: tuple[Operand, ...]
    scalars: Mapping[int, Lane]
    code: tuple[Instruction, ...]


_FLOATS = frozenset({Lane.F32, Lane.F64})
_NUMBERS = _FLOATS | {Lane.I64}
_BITS = frozenset({Lane.I64, Lane.B8})
_ALL = _NUMBERS | {Lane.B8}

# Number of arguments and the lanes they may have, of the ops `%out = op LANE arguments`.
_OPS: dict[str, tuple[int, frozenset[Lane]]] = {
    **dict.fromkeys(("add", "sub", "mul", "min", "max"), (2, _NUMBERS)),
    "div": (2, _FLOATS),
    "fma": (3, _NUMBERS),
    **dict.fromkeys(("neg", "abs"), (1, _NUMBERS)),
    **dict.fromkeys(("sqrt", "floor", "ceil", "trunc", "nearest"), (1, _FLOATS)),
    **dict.fromkeys(("eq", "ne", "lt", "le"), (2, _ALL)),
    "select": (3, _ALL),
    **dict.fromkeys(("and", "or", "xor"), (2, _BITS)),
    "not": (1, _BITS),
}
_COMPARISONS = frozenset({"eq", "ne", "lt", "le"})

_OPERAND = re.compile(r"operand (\d+) (\w+) (\w+) (in|out|inout)")
_SCALAR = re.compile(r"scalar (\d+) (\w+)")
_STORE = re.compile(r"store @(\d+) ([%$])(\d+)")
_VALUE = re.compile(r"%(\d+) = (\w+) (.+)")
_ARGUMENT = re.compile(r"([%$])(\d+)")
_MEMORY = re.compile(r"@(\d+)")


def parse(text: str) -> Stage:
    """The stage that `text` describes.

    Raises:
        StageError: the text is not one, with the line and what is wrong with it.
    """
    parser = _Parser()
    for line in text.splitlines():
        if line.strip():
            try:
                parser.line(line.strip())
            except ValueError as reason:
                raise StageError(f"stage line {line.strip()!r}: {reason}") from None
    if not any(instruction.op == "store" for instruction in parser.code):
        raise StageError("the stage stores nothing")
    return Stage(tuple(parser.operands), parser.scalars, tuple(parser.code))


class _Parser:
    def __init__(self) -> None:
        self.operands: list[Operand] = []
        self.scalars: dict[int, Lane] = {}
        self.code: list[Instruction] = []
        self.lanes: dict[int, Lane] = {}
        self.stored: set[int] = set()

    def line(self, line: str) -> None:
        if match := _OPERAND.fullmatch(line):
            self.operand(int(match[1]), Dtype(match[2]), Kind(match[3]), match[4])
        elif match := _SCALAR.fullmatch(line):
            if int(match[1]) in self.scalars:
                raise ValueError("the scalar stands there already")
            self.scalars[int(match[1])] = Lane(match[2])
        elif match := _STORE.fullmatch(line):
            self.store(int(match[1]), self.argument(match[2] + match[3]))
        elif match := _VALUE.fullmatch(line):
            self.value(int(match[1]), match[2], match[3].split())
        else:
            raise ValueError("it is neither an operand, a scalar nor an instruction")

    def operand(self, index: int, dtype: Dtype, kind: Kind, use: str) -> None:
        if index != len(self.operands):
            raise ValueError("operands are numbered from 0 without gaps")
        if use != "in" and kind != Kind.DENSE:
            raise ValueError("only dense operands can be written")
        self.operands.append(Operand(dtype, kind, read=use != "out", written=use != "in"))

    def store(self, memory: int, value: Reference) -> None:
        operand = self.memory(memory)
        if not operand.written:
            raise ValueError("the operand is not written")
        if memory in self.stored:
            raise ValueError("the operand is stored already")
        self.stored.add(memory)
        lane = lane_of(operand.dtype)
        self.expect(value, lane)
        self.code.append(Instruction("store", lane, (value,), memory=memory))

    def value(self, out: int, op: str, words: list[str]) -> None:
        if out in self.lanes:
            raise ValueError(f"%{out} is defined already")
        if op == "load":
            instruction = self.load(out, words)
        elif op == "cast":
            source, target, value = self.words(words, 3)
            lane = Lane(source)
            argument = self.argument(value)
            self.expect(argument, lane)
            # Through i32 a value ends in the lane of i32; out of its range the way makes a difference.
            through = Dtype.I32 if target == Dtype.I32 else None
            if through and lane not in _FLOATS:
                raise ValueError("only floating point is cast through i32")
            instruction = Instruction(op, lane, (argument,), out, Lane.I64 if through else Lane(target), dtype=through)
        elif op == "round":
            dtype_name, value = self.words(words, 2)
            dtype = Dtype(dtype_name)
            argument = self.argument(value)
            self.expect(argument, lane_of(dtype))
            instruction = Instruction(op, lane_of(dtype), (argument,), out, lane_of(dtype), dtype=dtype)
        else:
            instruction = self.operation(out, op, words)
        self.code.append(instruction)
        assert instruction.result is not None
        self.lanes[out] = instruction.result

    def load(self, out: int, words: list[str]) -> Instruction:
        lane_name, place = self.words(words, 2)
        match = _MEMORY.fullmatch(place)
        if not match:
            raise ValueError(f"{place!r} is not an operand")
        memory, lane = int(match[1]), Lane(lane_name)
        operand = self.memory(memory)
        if not operand.read:
            raise ValueError("the operand is not read")
        if memory in self.stored:
            raise ValueError("the operand is loaded after it was stored")
        if lane != lane_of(operand.dtype):
            raise ValueError(f"{operand.dtype} is loaded as {lane_of(operand.dtype)}")
        return Instruction("load", lane, (), out, lane, memory)

    def operation(self, out: int, op: str, words: list[str]) -> Instruction:
        if op not in _OPS:
            raise ValueError(f"there is no op {op!r}")
        count, lanes = _OPS[op]
        lane_name, *values = self.words(words, 1 + count)
        lane = Lane(lane_name)
        if lane not in lanes:
            raise ValueError(f"{op} has no lane {lane}")
        args = tuple(self.argument(value) for value in values)
        for place, argument in enumerate(args):
            self.expect(argument, Lane.B8 if op == "select" and place == 0 else lane)
        return Instruction(op, lane, args, out, Lane.B8 if op in _COMPARISONS else lane)

    def words(self, words: list[str], count: int) -> list[str]:
        if len(words) != count:
            raise ValueError(f"{count} words should follow the op")
        return words

    def memory(self, index: int) -> Operand:
        if index >= len(self.operands):
            raise ValueError(f"there is no operand {index}")
        return self.operands[index]

    def argument(self, word: str) -> Reference:
        match = _ARGUMENT.fullmatch(word)
        if not match:
            raise ValueError(f"{word!r} is neither a value nor a scalar")
        return Reference("%" if match[1] == "%" else "$", int(match[2]))

    def expect(self, argument: Reference, lane: Lane) -> None:
        name = f"{argument.kind}{argument.index}"
        found = (self.lanes if argument.kind == "%" else self.scalars).get(argument.index)
        if found is None:
            raise ValueError(f"{name} is not defined")
        if found != lane:
            raise ValueError(f"{name} is {found}, not {lane}")
