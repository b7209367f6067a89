"""Kernels with reductions: which loops there are, and what is done in which of them."""

from __future__ import annotations

from math import prod

from .kernel import Kernel
from .kernel_loops import Function
from .kernel_passes import Pass, passes
from .kernel_values import Place
from .values import FLOATS, SIZES, float_constant

__all__ = ["COLUMN_BLOCK", "SCRATCH_ALIGNMENT", "Columns", "Rows"]

COLUMN_BLOCK = 128
SCRATCH_ALIGNMENT = 16  # elements

# Rows that columns take together, to load and store the accumulators once.
_ROWS = 4
_ROWS_CODE = 24  # no more than so many instructions are written several times

# Long sums are taken in parts, which are added up in f64, or else their last digits would be lost: so many elements of
# a row, rows of columns.
_PART_OF_ROW = 4096
_PART_OF_COLUMN = 256

_MAX_INTERLEAVE = 2  # see :mod:`.codegen` for why


class _Reduction:
    """How one value is accumulated."""

    def __init__(self, function: Function, place: int) -> None:
        self.function = function
        instruction = function.kernel.code[place]
        self.op = instruction.op.removeprefix("reduce_")
        (self.arg,) = instruction.args
        indexed = self.op in ("argmax", "argmin")
        self.type_ = function.type_of(self.arg if indexed else place)
        self.index_type = function.type_of(place) if indexed else ""

    def first(self) -> str:
        """What an empty reduction gives."""
        if self.op in ("any", "all"):
            return "false" if self.op == "any" else "true"
        number = {"sum": 0, "prod": 1}.get(self.op)
        if self.type_ in FLOATS:
            infinity = float("-inf") if self.op in ("max", "argmax") else float("inf")
            return float_constant(infinity if number is None else number, self.type_)
        if number is None:
            bits = int(self.type_[1:])
            number = -(2 ** (bits - 1)) if self.op in ("max", "argmax") else 2 ** (bits - 1) - 1
        return str(number)

    @property
    def loses_digits(self) -> bool:
        return self.op == "sum" and self.type_ in FLOATS

    @property
    def total_type(self) -> str:
        """Of parts that are added up."""
        return "double" if self.loses_digits else self.type_

    def combined(self, accumulated: str, at: Place) -> str:
        """What was accumulated so far, with one more value."""
        return self.both(accumulated, self.function.argument(self.arg, at, self.type_))

    def both(self, accumulated: str, value: str) -> str:
        """What was accumulated so far, with a value or what was accumulated elsewhere."""
        f, type_ = self.function, self.type_
        if self.op in ("any", "all"):
            return f.emit(f"{'or' if self.op == 'any' else 'and'} i1 {accumulated}, {value}")
        if type_ not in FLOATS:
            return f.int_operation({"sum": "add", "prod": "mul"}.get(self.op, self.op), type_, [accumulated, value])
        # These flags let LLVM accumulate in several vectors at once. Nothing but the accumulation has any.
        if self.op in ("sum", "prod"):
            return f.emit(f"{'fadd' if self.op == 'sum' else 'fmul'} reassoc nsz {type_} {accumulated}, {value}")
        name = f"llvm.{self.op}imum.{'f32' if type_ == 'float' else 'f64'}"
        f.declared.add(f"declare {type_} @{name}({type_}, {type_})")
        return f.emit(f"call reassoc nsz {type_} @{name}({type_} {accumulated}, {type_} {value})")

    def with_part(self, total: str, part: str) -> str:
        """What was accumulated over some parts, with one more."""
        if not self.loses_digits:
            return self.both(total, part)
        return self.function.emit(f"fadd double {total}, {self.function.cast(self.type_, 'double', part)}")

    def better(self, best: str, value: str) -> str:
        """For argmax and argmin: whether a value that comes later takes the place of the best one so far."""
        f, type_ = self.function, self.type_
        greater = self.op == "argmax"
        if type_ not in FLOATS:
            return f.emit(f"icmp {'sgt' if greater else 'slt'} {type_} {value}, {best}")
        # Not less or equal: greater, or one of them is NaN. The first NaN stays.
        wins = f.emit(f"fcmp {'ugt' if greater else 'ult'} {type_} {value}, {best}")
        number = f.emit(f"fcmp ord {type_} {best}, {best}")
        return f.emit(f"and i1 {wins}, {number}")


class Rows(Function):
    """Reductions over the last dimensions."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.passes, self.after = passes(kernel)
        self.arrays: dict[int, str] = {}
        sizes = [SIZES[self._kept_type(place)] for pass_ in self.passes for place in pass_.keep]
        self.scratch = sum(sizes)

    def work(self, at: Place) -> None:
        sizes = self.kernel.sizes
        dims = range(self.kernel.reduced[0])
        self._scratch_arrays()
        stored = [place for pass_ in (*self.passes, self.after) for place in (*pass_.before, *pass_.stores)]
        operands = self.operands_of(stored, *(pass_.body for pass_ in self.passes))

        def unit(indices: list[str]) -> None:
            row = at.copy()
            for dim in dims:
                self.enter(row, dim, indices[dim], operands)
            for pass_ in self.passes:
                for place in pass_.before:
                    self.instruction(place, row)
                self._run(pass_, row)
            for place in self.after.before:
                self.instruction(place, row)
            for place in self.after.stores:
                self.store(place, row)

        self.over_units([self.number(sizes[dim]) for dim in dims], unit)

    def _kept_type(self, place: int) -> str:
        type_ = self.type_of(place)
        return "i8" if type_ == "i1" else type_

    def _scratch_arrays(self) -> None:
        kept = [place for pass_ in self.passes for place in pass_.keep]
        if not kept:
            return
        count = self.product(*(self.number(self.kernel.sizes[d]) for d in self.kernel.reduced))
        mask = SCRATCH_ALIGNMENT - 1
        count = self.emit(f"and i64 {self.emit(f'add nuw nsw i64 {count}, {mask}')}, {~mask}")
        offset = 0
        for place in kept:
            self.arrays[place] = self.emit(f"getelementptr i8, ptr %scratch, i64 {self.product(count, str(offset))}")
            offset += SIZES[self._kept_type(place)]

    def _run(self, pass_: Pass, at: Place) -> None:
        dims = self.kernel.reduced
        depths: dict[int, int] = dict.fromkeys(pass_.kept, len(dims) - 1)
        for place in pass_.body:
            own = [dims.index(d) for d in self.varies[place] if d in dims]
            depths[place] = max(own + [depths.get(arg, 0) for arg in self.kernel.code[place].args])
        reductions = [_Reduction(self, place) for place in pass_.reductions]
        operands = self.operands_of(pass_.body, pass_.stores)

        def level(depth: int, at: Place, first: list[str], position: str) -> list[str]:
            size = self.number(self.kernel.sizes[dims[depth]])
            if depth < len(dims) - 1:
                return loop(depth, at, first, position, "0", size)
            if not any(r.loses_digits for r in reductions) or (size.isdigit() and int(size) <= 2 * _PART_OF_ROW):
                return loop(depth, at, first, position, "0", size)
            wide = [(r.total_type, self.cast(r.type_, r.total_type, a)) for r, a in zip(reductions, first, strict=True)]
            parts = self.begin_loop("0", size, wide, step=_PART_OF_ROW)
            end = self.int_operation("min", "i64", [self.total(parts.index, str(_PART_OF_ROW)), size])
            part = loop(depth, at, [r.first() for r in reductions], position, parts.index, end)
            self.end_loop(parts, [r.with_part(a, b) for r, a, b in zip(reductions, parts.values, part, strict=True)])
            return [self.cast(r.total_type, r.type_, a) for r, a in zip(reductions, parts.values, strict=True)]

        def carried(values: list[str]) -> list[tuple[str, str]]:
            return [(r.type_, value) for r, value in zip(reductions, values, strict=True)]

        def loop(depth: int, at: Place, first: list[str], position: str, start: str, end: str) -> list[str]:
            loop = self.begin_loop(start, end, carried(first))
            at = at.copy()
            self.enter(at, dims[depth], loop.index, operands)
            position = self.total(self.product(position, self.number(self.kernel.sizes[dims[depth]])), loop.index)
            innermost = depth == len(dims) - 1
            if innermost:
                for place in pass_.kept:
                    self._from_scratch(place, at, position)
            body = [place for place in pass_.body if depths[place] == depth]
            for place in body:
                self.instruction(place, at)
            if not innermost:
                self.end_loop(loop, level(depth + 1, at, loop.values, position))
                return loop.values
            for place in pass_.keep:
                self._to_scratch(place, at, position)
            for place in pass_.stores:
                self.store(place, at)
            values = [r.combined(a, at) for r, a in zip(reductions, loop.values, strict=True)]
            self.end_loop(loop, values, self.hints(body, _MAX_INTERLEAVE))
            return loop.values

        results = level(0, at, [r.first() for r in reductions], "0")
        at.values.update(zip(pass_.reductions, results, strict=True))

    def _to_scratch(self, place: int, at: Place, position: str) -> None:
        type_ = self._kept_type(place)
        value = self.cast("i1", "i8", at.values[place]) if type_ == "i8" else at.values[place]
        address = self.emit(f"getelementptr inbounds {type_}, ptr {self.arrays[place]}, i64 {position}")
        self.lines.append(f"  store {type_} {value}, ptr {address}, align {SIZES[type_]}, {self.scratch_scopes()}")

    def _from_scratch(self, place: int, at: Place, position: str) -> None:
        type_ = self._kept_type(place)
        address = self.emit(f"getelementptr inbounds {type_}, ptr {self.arrays[place]}, i64 {position}")
        value = self.emit(f"load {type_}, ptr {address}, align {SIZES[type_]}, {self.scratch_scopes()}")
        at.values[place] = self.emit(f"icmp ne i8 {value}, 0") if type_ == "i8" else value


class Columns(Function):
    """Reductions over dimensions in front of the last one."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.last = len(kernel.sizes) - 1
        reduced = frozenset(kernel.reduced)
        code = kernel.code
        self.reductions = [_Reduction(self, place) for place, i in enumerate(code) if i.op.startswith("reduce_")]
        self.places = [place for place, i in enumerate(code) if i.op.startswith("reduce_")]
        stores = [place for place, i in enumerate(code) if i.op == "store"]
        spread = {
            place
            for place in stores
            if any(kernel.operands[code[place].operand].strides[d] != 0 and kernel.sizes[d] != 1 for d in reduced)
        }
        self.early = [place for place in stores if place in spread]
        self.late = [place for place in stores if place not in spread]
        self.body = self._needed([r.arg for r in self.reductions] + [code[place].args[0] for place in self.early])
        self.ending = self._needed([code[place].args[0] for place in self.late])
        self.depths = {place: self._depth(place) for place in {*self.body, *self.ending}}
        size = kernel.sizes[self.last]
        self.room = min(size, COLUMN_BLOCK) if isinstance(size, int) else COLUMN_BLOCK

    def _needed(self, roots: list[int]) -> list[int]:
        found: set[int] = set()
        stack = list(roots)
        while stack:
            place = stack.pop()
            if place not in found and place not in self.places:
                found.add(place)
                stack += self.kernel.code[place].args
        return sorted(found)

    def _depth(self, place: int) -> int:
        """The reduced dimension in whose loop a value is made, counted from the outermost one; -1: in front of all,
        and the number of them: per column."""
        if self.last in self.varies[place] or self._is_late(place):
            return len(self.kernel.reduced)
        return max([self.kernel.reduced.index(d) for d in self.varies[place] if d in self.kernel.reduced], default=-1)

    def _is_late(self, place: int) -> bool:
        """Whether it depends on a reduction."""
        return place in self.places or any(self._is_late(arg) for arg in self.kernel.code[place].args)

    def work(self, at: Place) -> None:
        sizes = self.kernel.sizes
        outer = range(self.kernel.reduced[0])
        operands = self.operands_of(self.body, self.early, self.ending, self.late)
        arrays = [(self._array(r.type_), self._array(r.index_type)) for r in self.reductions]
        parted = self._takes_parts()
        totals = [self._array(r.total_type if parted and r.loses_digits else "") for r in self.reductions]
        fixed = [place for place in sorted(self.depths) if self.depths[place] < 0]

        def unit(indices: list[str]) -> None:
            here = at.copy()
            for dim in outer:
                self.enter(here, dim, indices[dim], operands)
            for place in fixed:
                self.instruction(place, here)
            start, end = self.block(sizes[-1], indices[len(outer) :], COLUMN_BLOCK)
            width = self.difference(end, start)
            loop = self.begin_loop("0", width)
            for r, (array, index_array), total in zip(self.reductions, arrays, totals, strict=True):
                self._put(r.type_, r.first(), array, loop.index)
                if r.index_type:
                    self._put(r.index_type, "0", index_array, loop.index)
                if total:
                    self._put("double", "0.0", total, loop.index)
            self.end_loop(loop)
            self._accumulate(0, here, arrays, totals, start, width)
            self._finish(here, arrays, totals, start, width)

        self.over_units(
            [*(self.number(sizes[dim]) for dim in outer), *self.blocks(self.kernel.sizes[-1], COLUMN_BLOCK)], unit
        )

    # -- Accumulators -------------------------------------------------------------------------------------------------

    def _array(self, type_: str) -> str:
        if not type_:
            return ""
        name = f"%array{len(self.stack)}"
        self.stack.append(f"  {name} = alloca [{self.room} x {'i8' if type_ == 'i1' else type_}], align 64")
        return name

    def _put(self, type_: str, value: str, array: str, position: str) -> None:
        if type_ == "i1":
            type_, value = "i8", self.cast("i1", "i8", value)
        address = self.emit(f"getelementptr inbounds {type_}, ptr {array}, i64 {position}")
        self.lines.append(f"  store {type_} {value}, ptr {address}, align {SIZES[type_]}, {self.scratch_scopes()}")

    def _get(self, type_: str, array: str, position: str) -> str:
        memory = "i8" if type_ == "i1" else type_
        address = self.emit(f"getelementptr inbounds {memory}, ptr {array}, i64 {position}")
        value = self.emit(f"load {memory}, ptr {address}, align {SIZES[memory]}, {self.scratch_scopes()}")
        return self.emit(f"icmp ne i8 {value}, 0") if type_ == "i1" else value

    # -- Loops --------------------------------------------------------------------------------------------------------

    def _takes_parts(self) -> bool:
        """Whether sums are added up in parts. Not if all is short, or the parts would be."""
        sizes = [self.kernel.sizes[d] for d in self.kernel.reduced]
        known = [size for size in sizes if isinstance(size, int)]
        short = len(known) == len(sizes) and prod(known) <= 2 * _PART_OF_COLUMN
        inner = sizes[-1]
        return not short and not (isinstance(inner, int) and inner < 32)

    def _accumulate(
        self, depth: int, at: Place, arrays: list[tuple[str, str]], totals: list[str], start: str, width: str
    ) -> None:
        """The loops over the reduced dimensions from `depth` on."""
        dims = self.kernel.reduced
        size = self.number(self.kernel.sizes[dims[depth]])
        if depth < len(dims) - 1:
            loop = self.begin_loop("0", size)
            self._accumulate(depth + 1, self._row(depth, at, loop.index), arrays, totals, start, width)
            self.end_loop(loop)
        elif not any(totals):
            self._rows(at, arrays, start, width, "0", size)
        else:
            loop = self.begin_loop("0", size, step=_PART_OF_COLUMN)
            end = self.int_operation("min", "i64", [self.total(loop.index, str(_PART_OF_COLUMN)), size])
            self._rows(at, arrays, start, width, loop.index, end)
            self._add_parts(arrays, totals, width)
            self.end_loop(loop)

    def _row(self, depth: int, at: Place, index: str) -> Place:
        """`at`, from now on at `index` of a reduced dimension, with what is the same in all columns."""
        dim = self.kernel.reduced[depth]
        here = at.copy()
        self.enter(here, dim, index, self.operands_of(self.body, self.early))
        here.position = self.total(self.product(at.position, self.number(self.kernel.sizes[dim])), index)
        for place in self.body:
            if self.depths[place] == depth:
                self.instruction(place, here)
        return here

    def _rows(self, at: Place, arrays: list[tuple[str, str]], start: str, width: str, first: str, end: str) -> None:
        """The loop over the innermost reduced dimension, from `first` to `end`: several rows at a time first."""
        depth = len(self.kernel.reduced) - 1
        together = _ROWS if len(self.body) <= _ROWS_CODE else 1
        whole = end
        if together > 1 and first == "0" and end.isdigit():
            whole = str(int(end) // together * together)
        elif together > 1:
            count = self.difference(end, first)
            whole = self.total(first, self.emit(f"and i64 {count}, {-together}"))
        for begin, stop, step in [(first, whole, together), (whole, end, 1)]:
            if begin == stop:
                continue
            loop = self.begin_loop(begin, stop, step=step)
            rows = [self._row(depth, at, self.total(loop.index, str(row))) for row in range(step)]
            self._columns(rows, arrays, start, width)
            self.end_loop(loop)

    def _add_parts(self, arrays: list[tuple[str, str]], totals: list[str], width: str) -> None:
        loop = self.begin_loop("0", width)
        for r, (array, _), total in zip(self.reductions, arrays, totals, strict=True):
            if total:
                part = self._get(r.type_, array, loop.index)
                self._put("double", r.with_part(self._get("double", total, loop.index), part), total, loop.index)
                self._put(r.type_, r.first(), array, loop.index)
        self.end_loop(loop)

    def _columns(self, rows: list[Place], arrays: list[tuple[str, str]], start: str, width: str) -> None:
        """The loop over the columns of the block, which takes in one or several rows."""
        loop = self.begin_loop("0", width)
        column = self.total(start, loop.index)
        body = [place for place in self.body if self.depths[place] == len(self.kernel.reduced)]
        for row in rows:
            self.enter(row, self.last, column, self.operands_of(self.body, self.early))
            for place in body:
                self.instruction(place, row)
            for place in self.early:
                self.store(place, row)
        for r, (array, index_array) in zip(self.reductions, arrays, strict=True):
            value = self._get(r.type_, array, loop.index)
            index = self._get(r.index_type, index_array, loop.index) if r.index_type else ""
            for row in rows:
                if not r.index_type:
                    value = r.combined(value, row)
                    continue
                new = self.argument(r.arg, row)
                better = r.better(value, new)
                value = self.emit(f"select i1 {better}, {r.type_} {new}, {r.type_} {value}")
                position = self.cast("i64", r.index_type, row.position)
                index = self.emit(f"select i1 {better}, {r.index_type} {position}, {r.index_type} {index}")
            self._put(r.type_, value, array, loop.index)
            if r.index_type:
                self._put(r.index_type, index, index_array, loop.index)
        self.end_loop(loop, hints=self.hints(body, _MAX_INTERLEAVE))

    def _finish(self, at: Place, arrays: list[tuple[str, str]], totals: list[str], start: str, width: str) -> None:
        loop = self.begin_loop("0", width)
        self.enter(at, self.last, self.total(start, loop.index), self.operands_of(self.ending, self.late))
        for place, r, (array, index_array), total in zip(self.places, self.reductions, arrays, totals, strict=True):
            if total:
                at.values[place] = self.cast("double", r.type_, self._get("double", total, loop.index))
            else:
                at.values[place] = self._get(r.index_type or r.type_, index_array or array, loop.index)
        for place in self.ending:
            if self.depths[place] == len(self.kernel.reduced):
                self.instruction(place, at)
        for place in self.late:
            self.store(place, at)
        self.end_loop(loop)
