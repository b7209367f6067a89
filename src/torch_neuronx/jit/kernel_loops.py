"""The function of a kernel: its frame, addresses of operands, and loops.

Loops test at their top; LLVM turns them round, and vectorises the innermost ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from .kernel import Int, Kernel, Variable
from .kernel_check import varying
from .kernel_values import KernelValues, Place
from .values import MEMORY_TYPES, loop_metadata, scope_metadata

__all__ = ["FUNCTION", "Function", "Loop"]

# The name of the function
# `void (char* const* operands, const int64_t* ints, char* scratch, int64_t begin, int64_t end)`.
FUNCTION = "kernel"

# See :mod:`.codegen` for why.
_LONG_BODY = 12
_REGISTERS_FOR_VALUES = 12
_ALIVE_IN_FUNCTION = 4


@dataclass
class Loop:
    """A loop being written. `values` are what it carries from one iteration to the next."""

    number: int
    index: str
    types: list[str]
    values: list[str]
    patches: list[int]  # lines that wait for the end
    step: int


class Function(KernelValues):
    """What the forms of kernels have in common."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.varies = varying(kernel)
        self.label = "entry"
        self.loops = 0
        self.hinted: list[dict[str, int]] = []
        self.stack: list[str] = []  # arrays that live for the whole call

    def text(self) -> str:
        at = Place()
        # Nothing is loaded unless there is something to do: an empty tensor may have no memory.
        self.lines += ["  %some = icmp slt i64 %begin, %end", "  br i1 %some, label %work, label %exit", "work:"]
        self.label = "work"
        self._prologue(at)
        self.work(at)
        self.lines += ["  br label %exit", "exit:", "  ret void"]
        signature = (
            f"define void @{FUNCTION}(ptr noalias readonly %operands, ptr noalias readonly %ints, "
            "ptr noalias %scratch, i64 %begin, i64 %end) nounwind"
        )
        functions = [self.functions[name] for name in sorted(self.functions)]
        body = [signature + " {", "entry:", *self.stack, *self.lines, "}"]
        return "\n".join([*body, *functions, *self.declarations(), *self._metadata(), ""])

    def work(self, at: Place) -> None:
        """Writes units `%begin` to `%end`: each form of kernel has its own loops."""
        raise NotImplementedError

    def _prologue(self, at: Place) -> None:
        kernel = self.kernel
        numbers = [*kernel.sizes, *(i.constant for i in kernel.code)]
        numbers += [number for operand in kernel.operands for number in (*operand.strides, operand.offset)]
        for index in sorted({number.index for number in numbers if isinstance(number, Variable)}):
            slot = self.emit(f"getelementptr inbounds i64, ptr %ints, i64 {index}")
            self.variables[index] = self.emit(f"load i64, ptr {slot}, align 8, !invariant.load !{self._empty_node()}")
        for k, operand in enumerate(kernel.operands):
            if self.base[k] == k:
                slot = self.emit(f"getelementptr inbounds ptr, ptr %operands, i64 {k}")
                pointer = self.emit(f"load ptr, ptr {slot}, align 8, !invariant.load !{self._empty_node()}")
                at.addresses[k] = self.moved(k, pointer, self.number(operand.offset), "1")
            else:
                at.addresses[k] = at.addresses[self.base[k]]

    # -- Metadata -----------------------------------------------------------------------------------------------------

    def _empty_node(self) -> int:
        return 3 * (len(self.kernel.operands) + 1) + 1

    def _metadata(self) -> list[str]:
        lines = [*scope_metadata(len(self.kernel.operands) + 1), f"!{self._empty_node()} = !{{}}"]
        node = self._empty_node() + 1
        for hints in self.hinted:
            lines += loop_metadata(node, hints)
            node += 1 + len(hints)
        return lines

    def _hint(self, hints: dict[str, int]) -> str:
        """What the branch at the end of a loop says."""
        if not hints:
            return ""
        node = self._empty_node() + 1 + sum(1 + len(earlier) for earlier in self.hinted)
        self.hinted.append(hints)
        return f", !llvm.loop !{node}"

    def hints(self, body: Sequence[int], most: int) -> dict[str, int]:
        """For the innermost loop with the instructions `body`, interleaved up to `most` times.

        Nothing of the width: where LLVM cannot vectorise, it would tell the user that it was asked to.
        """
        functions = [f for place in body if (f := self.function(self.kernel.code[place]))]
        if any(function.scalar for function in functions):
            return {}
        if len(body) + sum(function.length for function in functions) <= _LONG_BODY:
            return {}
        alive = self._most_alive(body) + (_ALIVE_IN_FUNCTION if functions else 0)
        while most > 1 and most * alive > _REGISTERS_FOR_VALUES:
            most //= 2
        return {"interleave.count": most}

    def _most_alive(self, body: Sequence[int]) -> int:
        """How many values of `body` are needed at the same time, at most."""
        inside = set(body)
        last_use = {arg: place for place in body for arg in self.kernel.code[place].args if arg in inside}
        alive: set[int] = set()
        most = 0
        for place in body:
            alive = {value for value in alive if last_use[value] > place}
            if place in last_use:
                alive.add(place)
            most = max(most, len(alive))
        return most

    # -- Numbers and addresses ----------------------------------------------------------------------------------------

    def number(self, value: Int) -> str:
        """`value` as a word of LLVM."""
        return self.variables[value.index] if isinstance(value, Variable) else str(value)

    def product(self, *factors: str) -> str:
        """Of integers of 64 bits; what is known is multiplied here."""
        known = prod(int(factor) for factor in factors if _is_number(factor))
        names = [factor for factor in factors if not _is_number(factor)]
        if known == 0 or not names:
            return str(known)
        result = names[0]
        for factor in [*names[1:], *([str(known)] if known != 1 else [])]:
            result = self.emit(f"mul nsw i64 {result}, {factor}")
        return result

    def total(self, a: str, b: str) -> str:
        if _is_number(a) and _is_number(b):
            return str(int(a) + int(b))
        if "0" in (a, b):
            return b if a == "0" else a
        return self.emit(f"add nsw i64 {a}, {b}")

    def moved(self, operand: int, address: str, index: str, stride: str) -> str:
        """`address` of an operand, `index` elements of `stride` further."""
        by = self.product(index, stride)
        if by == "0":
            return address
        type_ = MEMORY_TYPES[self.kernel.operands[operand].dtype]
        return self.emit(f"getelementptr inbounds {type_}, ptr {address}, i64 {by}")

    def enter(self, at: Place, dim: int, index: str, operands: Sequence[int]) -> None:
        """`at`, from now on at `index` of dimension `dim`."""
        at.indices[dim] = index
        if self.kernel.sizes[dim] == 1:
            return
        for k in operands:
            if self.base[k] == k:
                stride = self.number(self.kernel.operands[k].strides[dim])
                at.addresses[k] = self.moved(k, at.addresses[k], index, stride)
        for k in operands:
            at.addresses[k] = at.addresses[self.base[k]]

    def operands_of(self, *bodies: Sequence[int]) -> list[int]:
        """The operands that instructions load or store, with those that stand for their memory."""
        used = {self.kernel.code[place].operand for body in bodies for place in body} - {-1}
        return sorted(used | {self.base[k] for k in used})

    # -- Blocks of dimensions -----------------------------------------------------------------------------------------

    def blocks(self, size: Int, block: int) -> list[str]:
        """The number of blocks of a dimension, unless one always is enough."""
        if isinstance(size, Variable):
            return [self.emit(f"udiv i64 {self.total(self.number(size), str(block - 1))}, {block}")]
        return [str(-(-size // block))] if size > block else []

    def block(self, size: Int, indices: Sequence[str], block: int) -> tuple[str, str]:
        """Start and end of the block with the index `indices`, which are as many as :meth:`blocks` gave."""
        if not indices:
            return "0", str(size)
        start = self.product(indices[0], str(block))
        end = self.total(start, str(block))
        if not isinstance(size, int) or size % block:
            end = self.int_operation("min", "i64", [end, self.number(size)])
        return start, end

    def difference(self, a: str, b: str) -> str:
        if _is_number(a) and _is_number(b):
            return str(int(a) - int(b))
        return a if b == "0" else self.emit(f"sub nsw i64 {a}, {b}")

    # -- Loops --------------------------------------------------------------------------------------------------------

    def begin_loop(self, start: str, end: str, carried: Sequence[tuple[str, str]] = (), step: int = 1) -> Loop:
        """A loop over [start, end); `carried` are types and first values of what it carries."""
        number = self.loops
        self.loops += 1
        index = f"%i{number}"
        self.lines += [f"  br label %head{number}", f"head{number}:"]
        patches: list[int] = []
        names = [index, *(f"%c{number}.{k}" for k in range(len(carried)))]
        for name, (type_, first) in zip(names, [("i64", start), *carried], strict=True):
            patches.append(len(self.lines))
            self.lines.append(f"  {name} = phi {type_} [ {first}, %{self.label} ], ")
        more = self.emit(f"icmp slt i64 {index}, {end}")
        self.lines += [f"  br i1 {more}, label %body{number}, label %exit{number}", f"body{number}:"]
        self.label = f"body{number}"
        return Loop(number, index, [type_ for type_, _ in carried], names[1:], patches, step)

    def end_loop(self, loop: Loop, values: Sequence[str] = (), hints: dict[str, int] | None = None) -> None:
        """Ends an iteration with the carried `values`. After it, `loop.values` are the last ones."""
        next_index = self.emit(f"add nuw nsw i64 {loop.index}, {loop.step}")
        for line, value in zip(loop.patches, [next_index, *values], strict=True):
            self.lines[line] += f"[ {value}, %{self.label} ]"
        self.lines += [f"  br label %head{loop.number}{self._hint(hints or {})}", f"exit{loop.number}:"]
        self.label = f"exit{loop.number}"

    def over_units(self, sizes: Sequence[str], body: Callable[[list[str]], None]) -> None:
        """The loop over units, whose number is the product of `sizes`; `body` gets the index in each of these."""
        # The first index comes of division, the others by counting.
        rest = "%begin"
        first: list[str] = []
        for size in reversed(sizes[1:]):
            first.insert(0, self.emit(f"urem i64 {rest}, {size}"))
            rest = self.emit(f"udiv i64 {rest}, {size}")
        loop = self.begin_loop("%begin", "%end", [("i64", value) for value in [rest, *first]] if len(sizes) > 1 else ())
        indices = list(loop.values) if len(sizes) > 1 else [loop.index][: len(sizes)]
        body(indices)
        following: list[str] = []
        carry = "1"
        for index, size in zip(reversed(loop.values), reversed(sizes), strict=False):
            counted = self.emit(f"add nuw nsw i64 {index}, {carry}")
            if len(following) < len(sizes) - 1:
                over = self.emit(f"icmp eq i64 {counted}, {size}")
                counted = self.emit(f"select i1 {over}, i64 0, i64 {counted}")
                carry = self.cast("i1", "i64", over)
            following.insert(0, counted)
        self.end_loop(loop, following)


def _is_number(word: str) -> bool:
    return not word.startswith("%")
