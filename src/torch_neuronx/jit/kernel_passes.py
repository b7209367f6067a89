"""Kernels with reductions as passes over the reduced dimensions.

A pass makes the reductions whose arguments depend on no reduction of the same or a later pass. A value of the whole
space that several passes need is recomputed in each when that is cheap, and else kept in scratch memory from the first
of them on. Stores come in the last pass, or in the pass of their value where no load meets the same memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from .kernel import Instruction, Kernel, Variable
from .kernel_check import ELEMENTWISE, REDUCTIONS, varying
from .stage import Lane

__all__ = ["Pass", "expanded", "passes"]

# What an op costs, in additions; a load from scratch counts as one.
_COSTS = {
    **dict.fromkeys(ELEMENTWISE, 1),
    **dict.fromkeys(("div", "reciprocal", "sqrt", "rsqrt", "floordiv", "mod", "truncdiv", "fmod", "rem"), 8),
    **dict.fromkeys(("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sigmoid", "tanh", "erf"), 20),
    **dict.fromkeys(("erfc", "erfinv", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh"), 40),
    **dict.fromkeys(("acosh", "atanh", "lgamma", "digamma", "pow", "atan2", "hypot"), 40),
    "load": 1,
    "gather": 8,
    "cast": 1,
    "round": 4,
    "select": 1,
}
_KEEP_ABOVE = 7


@dataclass
class Pass:
    """Places of instructions. `before` have one value per kept index; the rest is done per index of the space."""

    before: list[int] = field(default_factory=list)
    body: list[int] = field(default_factory=list)  # in order
    kept: list[int] = field(default_factory=list)  # from scratch, instead of computing them
    keep: list[int] = field(default_factory=list)  # values of `body` to put into scratch
    reductions: list[int] = field(default_factory=list)
    stores: list[int] = field(default_factory=list)


def passes(kernel: Kernel) -> tuple[list[Pass], Pass]:
    """The passes of a kernel that is not of the column form, and what is done after the last one: `before` and
    `stores`, all per kept index. A pointwise kernel is one pass, all of it in `body`."""
    plan = _Plan(kernel)
    return plan.passes, plan.after


class _Plan:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        reduced = frozenset(kernel.reduced)
        # A pointwise kernel has no kept index of its own; all is done per index of the space.
        self.whole = [not kernel.reduced or bool(dims & reduced) for dims in varying(kernel)]
        self.levels = self._levels()
        self.stores, self.late_stores = self._split_stores()
        levels = [self.levels[k] for k in self.stores] + [self.levels[k] - 1 for k in self.reductions()]
        self.passes = [Pass() for _ in range(max(levels, default=-1) + 1)]
        self.after = Pass(stores=self.late_stores)
        self._place()

    def reductions(self) -> list[int]:
        return [place for place, instruction in enumerate(self.kernel.code) if instruction.op in REDUCTIONS]

    def _levels(self) -> list[int]:
        """Of each value, how many passes must be over before there is any of it."""
        levels: list[int] = []
        for instruction in self.kernel.code:
            level = max((levels[arg] for arg in instruction.args), default=0)
            levels.append(level + 1 if instruction.op in REDUCTIONS else level)
        return levels

    def _split_stores(self) -> tuple[list[int], list[int]]:
        """Stores per index of the space, and those per kept index."""
        whole: list[int] = []
        late: list[int] = []
        for place, instruction in enumerate(self.kernel.code):
            if instruction.op == "store":
                strides = self.kernel.operands[instruction.operand].strides
                spread = any(strides[d] != 0 and self.kernel.sizes[d] != 1 for d in self.kernel.reduced)
                (whole if spread or not self.kernel.reduced else late).append(place)
        return whole, late

    def _place(self) -> None:
        code = self.kernel.code
        last = len(self.passes) - 1
        loaded = {self._memory(instruction.operand) for instruction in code if instruction.op == "load"}
        for place in self.stores:
            early = self._memory(code[place].operand) not in loaded
            self.passes[self.levels[place] if early else last].stores.append(place)
        for place in self.reductions():
            self.passes[self.levels[place] - 1].reductions.append(place)

        first_pass: dict[int, int] = {}  # of values of the space: where they are computed
        per_kept: set[int] = set()
        for number, pass_ in enumerate(self.passes):
            roots = [code[place].args[0] for place in pass_.reductions + pass_.stores]
            body: set[int] = set()
            kept: set[int] = set()
            stack = roots
            while stack:
                place = stack.pop()
                if place in body or place in kept:
                    continue
                if not self.whole[place] or code[place].op in REDUCTIONS:
                    per_kept |= self._closure(place, per_kept)
                elif place in first_pass and self._cost(place) > _KEEP_ABOVE:
                    kept.add(place)
                else:
                    body.add(place)
                    stack += code[place].args
            for place in kept:
                keep = self.passes[first_pass[place]].keep
                if place not in keep:
                    keep.append(place)
            for place in body:
                first_pass.setdefault(place, number)
            pass_.body, pass_.kept = sorted(body), sorted(kept)
        for place in self.late_stores:
            per_kept |= self._closure(code[place].args[0], per_kept)
        for place in sorted(per_kept):
            level = self.levels[place]
            (self.passes[level] if level < len(self.passes) else self.after).before.append(place)

    def _memory(self, operand: int) -> int:
        alias = self.kernel.operands[operand].alias
        return alias if alias >= 0 else -1 - operand

    def _closure(self, place: int, known: set[int]) -> set[int]:
        """The values per kept index that `place` takes, itself among them; reductions end the search."""
        found: set[int] = set()
        stack = [place]
        while stack:
            place = stack.pop()
            if place in found or place in known or self.kernel.code[place].op in REDUCTIONS:
                continue
            found.add(place)
            stack += self.kernel.code[place].args
        return found

    def _cost(self, place: int) -> int:
        """Of computing a value of the space anew, from memory."""
        seen: set[int] = set()
        stack = [place]
        cost = 0
        while stack:
            place = stack.pop()
            if place in seen or not self.whole[place] or self.kernel.code[place].op in REDUCTIONS:
                continue
            seen.add(place)
            cost += _COSTS.get(self.kernel.code[place].op, 0)
            stack += self.kernel.code[place].args
        return cost


def expanded(kernel: Kernel) -> Kernel:
    """`kernel` without argmax and argmin, which become two reductions that vectorise: the greatest value, then the
    first place that holds it. Not for the column form, which cannot use the first beside values of the space."""
    if not any(instruction.op in ("reduce_argmax", "reduce_argmin") for instruction in kernel.code):
        return kernel
    code: list[Instruction] = []
    moved: list[int] = []  # new places by old ones

    def add(op: str, lane: Lane, *args: int, **fields: object) -> int:
        code.append(replace(Instruction(op, lane, args), **fields))  # type: ignore[arg-type]
        return len(code) - 1

    place_in_loops = -1
    for instruction in kernel.code:
        args = tuple(moved[arg] for arg in instruction.args)
        if instruction.op not in ("reduce_argmax", "reduce_argmin"):
            code.append(replace(instruction, args=args))
            moved.append(len(code) - 1)
            continue
        if place_in_loops < 0:
            place_in_loops = add("index", Lane.I64, dim=kernel.reduced[0])
            for d in kernel.reduced[1:]:
                size = add("constant", Lane.I64, constant=kernel.sizes[d])
                outer = add("mul", Lane.I64, place_in_loops, size)
                place_in_loops = add("add", Lane.I64, outer, add("index", Lane.I64, dim=d))
        (value,) = args
        lane = code[value].lane
        best = add("reduce_max" if instruction.op == "reduce_argmax" else "reduce_min", lane, value)
        match = add("eq", Lane.B8, value, best, source=lane)
        if lane != Lane.I64:
            nans = [add("isnan", Lane.B8, either, source=lane) for either in (value, best)]
            match = add("or", Lane.B8, match, add("and", Lane.B8, *nans))
        beyond = add("constant", Lane.I64, constant=_beyond(kernel))
        candidate = add("select", Lane.I64, match, place_in_loops, beyond)
        moved.append(add("reduce_min", Lane.I64, candidate))
    return replace(kernel, code=tuple(code))


def _beyond(kernel: Kernel) -> int:
    """A number above all places in the loops over the reduced dimensions, of 32 bits if these have as many."""
    count = 1
    for d in kernel.reduced:
        size = kernel.sizes[d]
        if isinstance(size, Variable):
            return 2**31 - 1 if len(kernel.reduced) == 1 else 2**63 - 1
        count *= size
    return 2**31 - 1 if count < 2**31 else 2**63 - 1
