"""Writes random programs for the fusion window: a hypothesis strategy.

The writer runs each line on the CPU as soon as it has written it, so it always knows shapes, dtypes and what shares
memory, and most lines make sense. It knows too which stream has waited for which, and writes the waits, events and
`keep` calls that make a program on two streams correct.
"""

import contextlib
import functools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import adaptive_vocabulary as say
import torch
from adaptive_programs import Machine, Program, execute
from hypothesis import strategies as st

T = TypeVar("T")

# Around the widths of vector registers and tiles of 16 to 64 elements, and the degenerate ones.
SIZES = (1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 129, 0)
# Above ATen's grain of 32768 elements per thread: two threads split these, at odd places.
LARGE = ((70_001,), (3, 25_000), (257, 300), (5, 129, 113), (2, 40_000), (1, 80_000), (40_000, 2))
DTYPES = (
    *(torch.float32,) * 10,
    *(torch.bfloat16,) * 3,
    *(torch.float16,) * 2,
    *(torch.float64,) * 2,
    *(torch.int64,) * 2,
    torch.int32,
    torch.bool,
)
# Numbers that no dtype refuses: on the device a number that does not fit is an error of the launch, not of the call.
SCALARS = (
    *("0.5", "2", "-3", "1.01", "0.1", "-0.0", "0", "1e-8", "3e4", "float('inf')", "float('-inf')", "float('nan')"),
    *("True", "torch.tensor(0.75)", "torch.tensor(3)", "torch.tensor(0.5, dtype=torch.float64)"),
)
MAX_ELEMENTS = 200_000  # of a tensor
MAX_ALIVE = 10  # tensors; above that one dies
MAX_LINES = 45
# Where parts of one tensor overlap, the result depends on the order of the elements: only one thread has one.
ONE_THREAD = 30_000


@functools.cache
def up_to(last: int) -> st.SearchStrategy[int]:
    return st.integers(0, last)


@dataclass
class Memory:
    """Of one storage: who made it, and when each stream last wrote and read it."""

    owner: int
    written: dict[int, int] = field(default_factory=dict)
    read: dict[int, int] = field(default_factory=dict)
    kept_for: set[int] = field(default_factory=set)


class NoOperand(Exception):
    """The pool has no tensor for a line of this kind."""


class Writer:
    """One program in the making."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self.draw = draw
        self.lines: list[str] = []
        self.names: dict[str, Any] = Machine("cpu").names()
        self.fixed = frozenset(self.names)
        self.memory: dict[int, Memory] = {}
        self.marks: dict[str, tuple[int, int]] = {}  # event -> stream and time
        self.stream, self.time = 0, [0, 0]
        self.seen = [[0, 0], [0, 0]]  # [stream][other]: time of `other` that `stream` has waited for
        self.count = 0
        self.two_streams = self.chance(30)
        if self.chance(20):
            self.base = self.pick(LARGE)
        else:
            dims = self.pick((1, 2, 2, 2, 3, 3, 4, 0))
            # Small leading dimensions keep products of several in bounds.
            self.base = (*(self.pick(SIZES[:9]) for _ in range(dims - 1)), self.pick(SIZES))[:dims]

    # -- Drawing

    def pick(self, options: Sequence[T]) -> T:
        return options[self.draw(up_to(len(options) - 1))]

    def chance(self, percent: int) -> bool:
        return self.draw(up_to(99)) >= 100 - percent  # shrinks towards no

    def small(self) -> int:
        return self.draw(up_to(7))

    def seed(self) -> int:
        return self.draw(up_to(2**16))

    # -- The pool

    def tensors(self, good: Callable[[torch.Tensor], bool] = lambda _: True) -> list[str]:
        return [name for name, value in self.names.items() if isinstance(value, torch.Tensor) and good(value)]

    def numbers(self) -> list[str]:
        return [name for name, value in self.names.items() if name not in self.fixed and isinstance(value, int | float)]

    def tensor(self, good: Callable[[torch.Tensor], bool] = lambda _: True) -> str:
        """A tensor of the pool, or a new one when there is none of the kind."""
        for _ in range(3):
            if found := self.tensors(good):
                return self.pick(found[::-1])  # shrinks towards the newest
            self.make()
        raise NoOperand

    def fitting(self, a: str, into: bool = False) -> str:
        """A tensor that broadcasts with `a`; `into`: to the shape of `a`."""
        shape = self.names[a].shape

        def fits(other: torch.Tensor) -> bool:
            try:
                together = torch.broadcast_shapes(shape, other.shape)
            except RuntimeError:
                return False
            return together == shape if into else math.prod(together) <= MAX_ELEMENTS

        if self.chance(12):
            return self.make(tuple(shape))
        return self.pick(found[::-1]) if (found := self.tensors(fits)) else self.make(tuple(shape))

    def scalar(self) -> str:
        numbers = self.numbers()
        return self.pick(numbers) if numbers and self.chance(25) else self.pick(SCALARS)

    # -- Writing

    def new_name(self) -> str:
        self.count += 1
        return f"t{self.count}"

    def write(self, line: str, reads: Sequence[str] = (), writes: Sequence[str] = (), on_stream: bool = True) -> None:
        """Writes a line and runs it. One that launches does so on the current stream, after what makes it correct."""
        if on_stream and self.two_streams:
            self.order(reads, writes)
            if self.stream:
                line = f"with on({self.stream}): {line}"
        # Before the line runs: it may bind an operand's name to something else.
        used = [(self.storage(name), name in writes) for name in (*reads, *writes)]
        self.lines.append(line)
        execute(line, self.names)
        self.note_memory(used if on_stream else [])

    def storage(self, name: str) -> Memory:
        return self.memory[self.names[name].untyped_storage()._cdata]

    def order(self, reads: Sequence[str], writes: Sequence[str]) -> None:
        me, other = self.stream, 1 - self.stream
        needed = 0
        for name in (*reads, *writes):
            memory = self.storage(name)
            needed = max(needed, memory.written.get(other, 0))
            if name in writes:
                needed = max(needed, memory.read.get(other, 0))
            if memory.owner != me and me not in memory.kept_for:
                memory.kept_for.add(me)
                self.write(f"keep({name}, {me})", on_stream=False)
        if needed > self.seen[me][other]:
            marks = [mark for mark, (stream, time) in self.marks.items() if stream == other and time >= needed]
            if marks and self.chance(70):
                mark = self.pick(marks)
                self.write(f"hold({me}, {mark})", on_stream=False)
                self.seen[me][other] = max(self.marks[mark][1], self.seen[me][other])
            else:
                self.write(f"wait({me}, {other})", on_stream=False)
                self.seen[me][other] = self.time[other]

    def note_memory(self, used: Sequence[tuple[Memory, bool]]) -> None:
        """What the line that was just run has read and written, and what it has made and dropped."""
        self.time[self.stream] += 1
        now = self.time[self.stream]
        for memory, is_written in used:
            memory.read[self.stream] = now
            if is_written:
                memory.written[self.stream] = now
        alive = {value.untyped_storage()._cdata for value in self.names.values() if isinstance(value, torch.Tensor)}
        self.memory = {key: self.memory.get(key) or Memory(self.stream, {self.stream: now}) for key in alive}

    def assign(self, expression: str, *operands: str) -> None:
        """A line that gives a new tensor, under a new name or under that of an operand, which dies."""
        trial = dict(self.names)
        execute(f"result = {expression}", trial)
        result = trial.get("result")
        # Most chains of random functions end in NaNs or constants, which any implementation gets right.
        if isinstance(result, torch.Tensor) and (result.numel() > MAX_ELEMENTS or (dull(result) and self.chance(85))):
            return
        name = self.pick(operands) if operands and self.chance(40) else self.new_name()
        self.write(f"{name} = {expression}", reads=operands)

    # -- Kinds of lines

    def make(self, shape: tuple[int, ...] | None = None) -> str:
        name = self.new_name()
        shape = self.shape() if shape is None else shape
        special = ", special=True" if self.chance(30) else ""
        self.write(f"{name} = make({self.seed()}, {shape}, {self.pick(DTYPES)}{special})")
        return name

    def new(self) -> None:
        self.make()

    def shape(self) -> tuple[int, ...]:
        """Like the program's base shape, or such that it broadcasts with it."""
        kind = self.pick(("same", "same", "same", "ones", "row", "column", "scalar", "last"))
        base = self.base
        if kind == "ones":
            return tuple(1 if self.chance(50) else n for n in base)
        if kind == "row":
            return base[-1:]
        if kind == "column":
            return (*base[:-1], 1) if base else ()
        if kind == "scalar":
            return ()
        return base[1:] if kind == "last" else base

    def fill(self, template: str, a: str, into: bool = False) -> tuple[str, tuple[str, ...]]:
        """The template with operands, and the tensors among them."""
        chosen = {"a": a}
        for slot in "bc":
            if f"{{{slot}}}" in template:
                chosen[slot] = self.fitting(a, into)
        text = template.format(**chosen, s=self.scalar(), t=self.scalar(), n=self.small())
        return text, tuple(dict.fromkeys(chosen.values()))

    def expression(self, templates: Sequence[str]) -> None:
        text, operands = self.fill(self.pick(templates), self.tensor())
        for _ in range(self.pick((0, 0, 0, 1, 2, 5))):  # intermediates that die at once
            text = self.pick((*say.UNARY, *say.SCALAR)).format(
                a=f"({text})", s=self.pick(SCALARS), t=self.pick(SCALARS), n=self.small()
            )
            if len(text) > 300:
                break
        self.assign(text, *operands)

    def integral(self) -> None:
        a = self.tensor(lambda x: not x.is_floating_point())
        text, operands = self.fill(self.pick((*say.UNARY_INTEGRAL, *say.BINARY_INTEGRAL)), a)
        self.assign(text, *operands)

    def in_place(self, templates: Sequence[str]) -> None:
        a = self.tensor(in_order)
        text, operands = self.fill(self.pick(templates), a, into=True)
        if not all(in_order_with(self.names[a], self.names[other]) for other in operands if other != a):
            return
        self.write(text, reads=operands, writes=(a,))

    def self_overlap(self) -> None:
        a = self.tensor(lambda x: x.dim() > 0 and x.numel() <= ONE_THREAD)
        dim = self.pick(range(self.names[a].dim()))
        part = f"{a}.narrow({dim}, {{start}}, {a}.shape[{dim}] - 1)"
        x, y = part.format(start=self.pick((0, 1))), part.format(start=self.pick((0, 1)))
        self.write(self.pick(say.SELF_OVERLAP).format(x=x, y=y), reads=(a,), writes=(a,))

    def foreach(self) -> None:
        a = self.tensor(in_order)
        text, operands = self.fill(self.pick(say.FOREACH), a, into=True)
        if all(in_order(self.names[x]) and in_order_with(self.names[a], self.names[x]) for x in operands if x != a):
            self.write(text, reads=operands, writes=operands)

    def view(self) -> None:
        a = self.tensor()
        self.assign(f"{a}{self.view_of(self.names[a])}", a)

    def view_of(self, x: torch.Tensor) -> str:
        kinds = ["unsqueeze", "detach", "reshape", "as_strided", "expand new"]
        if x.dim() > 0:
            kinds += ["slice", "slice", "select", "chunk", "squeeze", "expand", "last"]
        if x.dim() > 1:
            kinds += ["transpose", "transpose", "mT", "flatten", "diagonal"]
        if x.dim() == 4:
            kinds += ["channels_last"] * 3
        kind = self.pick(kinds)
        dim = self.pick(range(x.dim())) if x.dim() else 0
        match kind:
            case "slice":
                start, step = self.pick((0, 1, 2)), self.pick((1, 2, 3))
                return f"[{':, ' * dim}{start}::{step}]"
            case "select":
                return f".select({dim}, {self.pick((0, -1))})"
            case "chunk":
                return f".chunk(2, {dim})[{self.pick((0, -1))}]"
            case "squeeze":
                return ".squeeze()"
            case "last":
                return "[..., -1:]"
            case "expand":
                return (
                    f".expand({tuple(x.shape)})" if self.chance(50) else f"[{':, ' * dim}:1].expand({tuple(x.shape)})"
                )
            case "expand new":
                return f".expand({(2, *x.shape)})" if x.numel() <= ONE_THREAD and x.dim() < 4 else ".detach()"
            case "transpose":
                return f".transpose({dim}, {self.pick(range(x.dim()))})"
            case "unsqueeze":
                return f".unsqueeze({self.pick((0, -1))})"
            case "reshape":
                return f".reshape({self.pick((-1, tuple(reversed(x.shape)), (1, *x.shape)))})"
            case "as_strided":
                return self.window_of(x)
            case "channels_last":
                return ".contiguous(memory_format=torch.channels_last)"
            case "detach":
                return ".detach()"
        return {"mT": ".mT", "flatten": ".flatten()", "diagonal": ".diagonal(0, -2, -1)"}[kind]

    def window_of(self, x: torch.Tensor) -> str:
        """An as_strided view that stays inside the storage; may overlap itself."""
        space = x.untyped_storage().nbytes() // x.itemsize - x.storage_offset()
        rows, columns = self.pick((1, 2, 3, 8)), self.pick((1, 2, 5, 16, 17))
        steps = self.pick(((columns, 1), (1, rows), (1, 1), (2 * columns, 2), (0, 1), (1, 0), (3, 2)))
        if (rows - 1) * steps[0] + (columns - 1) * steps[1] >= space:
            return ".detach()"
        return f".as_strided(({rows}, {columns}), {steps}, {x.storage_offset()})"

    def cat(self) -> None:
        a = self.tensor(lambda x: x.dim() > 0 and x.numel() <= MAX_ELEMENTS // 2)
        shape = self.names[a].shape
        b = self.pick(self.tensors(lambda x: x.shape == shape))
        dim = self.pick(range(len(shape)))
        self.assign(f"torch.{self.pick(('cat', 'cat', 'stack'))}(({a}, {b}), {dim})", a, b)

    def matmul(self) -> None:
        # Low precision accumulates in fp32 on the device and not on the CPU: not bit-equal on purpose.
        exact = (torch.float32, torch.float64)
        a = self.tensor(lambda x: x.dim() > 0 and x.dtype in exact)
        shape, dtype = self.names[a].shape, self.names[a].dtype
        if 0 < shape[-1] <= 512 and 0 not in shape:
            self.assign(f"{a} @ make({self.seed()}, ({shape[-1]}, {self.pick((1, 5, 16))}), {dtype})", a)

    def dropout(self) -> None:
        # Draws of two streams would come in no order.
        self.stream = 0
        a = self.tensor()
        self.assign(self.pick(say.DROPOUT).format(a=a), a)

    def read(self) -> None:
        a = self.tensor(lambda x: x.numel() > 0)
        how = self.pick(
            (".flatten()[0].item()", ".float().sum().item()", ".flatten()[-1].item()", ".float().amax().item()")
        )
        self.count += 1
        self.write(f"h{self.count} = {a}{how}", reads=(a,))

    def forget(self) -> None:
        if names := self.tensors():
            self.write(f"del {self.pick(names)}", on_stream=False)

    def switch(self) -> None:
        if self.two_streams:
            self.stream = 1 - self.stream

    def mark(self) -> None:
        if self.two_streams:
            self.count += 1
            self.write(f"e{self.count} = mark({self.stream})", on_stream=False)
            self.marks[f"e{self.count}"] = (self.stream, self.time[self.stream])

    def step(self) -> None:
        kinds: tuple[tuple[int, Callable[[], None]], ...] = (
            (14, lambda: self.expression(say.UNARY)),
            (20, lambda: self.expression(say.BINARY)),
            (14, lambda: self.expression(say.SCALAR)),
            (3, lambda: self.expression(say.POWERS)),
            (8, lambda: self.expression(say.TERNARY)),
            (6, lambda: self.expression(say.CASTS)),
            (12, lambda: self.expression(say.ROW_WISE)),
            (6, lambda: self.expression(say.IDIOMS)),
            (2, self.integral),
            (8, lambda: self.in_place(say.IN_PLACE_UNARY)),
            (12, lambda: self.in_place(say.IN_PLACE_BINARY)),
            (3, self.self_overlap),
            (2, self.foreach),
            (2, lambda: self.expression(say.FOREACH_NEW)),
            (14, self.view),
            (3, self.cat),
            (2, self.matmul),
            (2, self.dropout),
            (2, self.read),
            (6, self.forget),
            (5, self.switch),
            (3, self.mark),
            (4, self.new),
            (1, lambda: self.expression(say.WRONG)),
        )
        with contextlib.suppress(NoOperand):
            self.pick([write for weight, write in kinds for _ in range(weight)])()
        if len(self.tensors()) > MAX_ALIVE:
            self.write(f"del {self.pick(self.tensors()[:4])}", on_stream=False)


def dull(x: torch.Tensor) -> bool:
    """Has `x` many elements and almost none that tells anything?"""
    if x.numel() < 8:
        return False
    finite = x[x.isfinite()] if x.is_floating_point() else x
    return finite.numel() < x.numel() // 4 or bool((finite == finite[0]).float().mean() > 0.9)


def in_order(x: torch.Tensor) -> bool:
    """May `x` be written to, with a result that is the same in every run?"""
    # 0: its elements are apart, 1: they are not, which PyTorch refuses; 2: PyTorch does not know.
    return x.numel() <= ONE_THREAD or torch._debug_has_internal_overlap(x) < 2


def in_order_with(target: torch.Tensor, source: torch.Tensor) -> bool:
    """May `target` be computed from `source`, with a result that is the same in every run?"""
    if target.numel() <= ONE_THREAD or target.untyped_storage()._cdata != source.untyped_storage()._cdata:
        return True
    same = (target.storage_offset(), target.shape, target.stride())
    return same == (source.storage_offset(), source.shape, source.stride())


@st.composite
def programs(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Program:
    """Programs of up to some 45 lines over about ten tensors."""
    writer = Writer(draw)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        writer.make()
        writer.make()
        # A flag per line and not a length: a line less is then a shorter list of draws, which shrinks well.
        while len(writer.lines) < MAX_LINES and draw(st.integers(0, 40)) < 40:
            writer.step()
    return Program(tuple(writer.lines), draw(st.integers(0, 2**16)))
