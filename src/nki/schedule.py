"""When each instruction starts and ends: the core as queues that wait for each other.

Instructions of one queue (an engine, or the loads or stores that one engine triggers) start in program order, each when
its queue is free and everything that it depends on has ended. An engine that reads its own result waits for the result
to be written; one that overwrites what it read before does not. Transfers go to the 16 DMA engines in the order of
their triggers. Events are worked off in the order of time, so that what is later in the program but ready earlier gets
a shared resource first.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from neuron_hw import Chip

from .instruction import Instruction
from .instruction_costs import CostModel, Work
from .tensor import NkiTensor

__all__ = ["Schedule", "schedule"]

_ENGINES = ("tensor", "vector", "scalar", "gpsimd", "sync")


@dataclass
class Schedule:
    """Times of instructions, in ns from the start of the kernel; all lists go by place in the trace.

    Attributes:
        work: what each asks for.
        issued: when its queue let it go: from here its engine counts as active.
        start, end: when data starts to move, and when the result can be read.
        cause: the instruction whose end made it start no earlier; -1 at the start of the kernel.
        reason: "operand", "order" (of its queue) or "engine" (of DMA), by `cause`.
        times: how often it runs (dynamic loops).
        notes: what had to be assumed.
    """

    chip: Chip
    work: list[Work]
    issued: list[float]
    start: list[float]
    end: list[float]
    cause: list[int]
    reason: list[str]
    times: list[int]
    finish: float = 0.0
    notes: list[str] = field(default_factory=list)


def schedule(
    instructions: Sequence[Instruction],
    dependencies: Sequence[Sequence[int]],
    costs: CostModel,
) -> Schedule:
    """Runs the instructions against the clock.

    Args:
        instructions: in program order.
        dependencies: per instruction the earlier ones that it must wait for.
        costs: of the chip.
    """
    return _Core(instructions, dependencies, costs).run()


class _Core:
    def __init__(
        self, instructions: Sequence[Instruction], dependencies: Sequence[Sequence[int]], costs: CostModel
    ) -> None:
        n = len(instructions)
        chip = costs.chip
        self.instructions = instructions
        self.dependencies = dependencies
        work = costs.work
        self.result = Schedule(
            chip, [work(i) for i in instructions], [0.0] * n, [0.0] * n, [0.0] * n, [-1] * n, ["order"] * n, [1] * n
        )
        self.ready = [0.0] * n
        self.waits_for = [-1] * n
        self.unmet = [0] * n
        self.after: list[list[int]] = [[] for _ in range(n)]
        self.queue_free: dict[str, float] = {}
        self.queue_last: dict[str, int] = {}
        self.generator_free: dict[str, float] = {}
        self.dma_free = [0.0] * int(chip.dma_engines)
        self.dma_last = [-1] * int(chip.dma_engines)
        self.multiply_free = 0.0
        # The end of what ends last so far, and where nothing may start before.
        self.latest, self.latest_at = 0.0, -1
        self.floor, self.floor_at = 0.0, -1
        self.tiles_free: dict[tuple[int, int], float] = {}
        self.port_free = {"sbuf": 0.0, "psum": 0.0}
        self.shared_ports = chip.generation == 2
        self.warm = _WarmUp(float(chip.warm_up), float(chip.warm_up_rate), float(chip.warm_up_share))
        self.dma_completion = float(chip.dma_completion)

    def run(self) -> Schedule:
        result = self.result
        self._straight(0, len(self.instructions))
        result.finish = self.latest
        return result

    # Control flow -----------------------------------------------------------------------------------------------------

    def _straight(self, first: int, last: int) -> None:
        """Instructions [first, last), loops among them one after the other."""
        at = first
        while at < last:
            begin = at
            while begin < last and self.instructions[begin].op not in ("loop_begin", "while_begin"):
                begin += 1
            if begin > at:
                self._run_block(at, begin)
            if begin == last:
                return
            at = self._loop(begin)

    def _loop(self, begin: int) -> int:
        """A dynamic loop: one turn is scheduled, the rest take the same time. Returns what comes after it."""
        depth, end = 0, begin
        for end in range(begin, len(self.instructions)):
            depth += self.instructions[end].op in ("loop_begin", "while_begin")
            depth -= self.instructions[end].op in ("loop_end", "while_end")
            if depth == 0:
                break
        start = self._place(begin, 0.0)
        self._straight(begin + 1, end)
        turn, turns = self.latest - start, self._turns(begin)
        for i in range(begin + 1, end):
            self.result.times[i] *= turns
            if not turns:
                self.result.issued[i] = self.result.start[i] = self.result.end[i] = start
        if not turns:
            self.latest, self.latest_at = start, begin
        self._place(end, turn * max(turns - 1, 0))
        return end + 1

    def _turns(self, begin: int) -> int:
        instruction = self.instructions[begin]
        if instruction.op == "loop_begin":
            lower, upper = instruction.args[:2]
            step = instruction.attrs[0] if instruction.attrs else 1
            if isinstance(lower, int) and isinstance(upper, int):
                return max(0, -(-(upper - lower) // max(int(step or 1), 1)))
        self.result.notes.append(
            f"{instruction.line[0]}:{instruction.line[1]}: how often this loop runs is known only at run time; one "
            "turn is counted."
        )
        return 1

    def _place(self, i: int, wait: float) -> float:
        """All engines wait for each other at `i`, and `wait` ns more: where control flow depends on data."""
        r = self.result
        r.issued[i] = r.start[i] = self.latest
        r.cause[i], r.reason[i] = self.latest_at, "order"
        self.latest += wait
        r.end[i] = self.latest
        self.latest_at = self.floor_at = i
        self.floor = self.latest
        for queue in self.queue_free:
            self.queue_free[queue] = self.floor
        self.multiply_free = max(self.multiply_free, self.floor)
        return self.floor

    # One block --------------------------------------------------------------------------------------------------------

    def _run_block(self, first: int, last: int) -> None:
        work, unmet, after, ready = self.result.work, self.unmet, self.after, self.ready
        queues: dict[str, list[int]] = {}
        for i in range(first, last):
            count = 0
            for d in self.dependencies[i]:
                if d >= first:
                    after[d].append(i)
                    count += 1
            unmet[i] = count
            ready[i] = self.floor
            name = work[i].queue
            waiting = queues.get(name)
            if waiting is None:
                queues[name] = [i]
            else:
                waiting.append(i)
        position = dict.fromkeys(queues, 0)
        queue_free, floor = self.queue_free, self.floor
        heap: list[tuple[float, int, str]] = []
        push, pop = heapq.heappush, heapq.heappop
        for name, members in queues.items():
            queue_free.setdefault(name, floor)
            head = members[0]
            if not unmet[head]:
                push(heap, (max(queue_free[name], ready[head]), head, name))
        end, waits_for = self.result.end, self.waits_for
        while heap:
            now, i, name = pop(heap)
            w = work[i]
            if name == "tensor":
                self._multiply(i, now, w)
            elif w.shares:
                self._transfer(i, now, w)
            else:
                self._compute(i, now, w)
            self.queue_last[name] = i
            done = end[i]
            if done > self.latest:
                self.latest, self.latest_at = done, i
            for j in after[i]:
                available = self._available(i, j, done)
                if available > ready[j]:
                    ready[j] = available
                    waits_for[j] = i
                unmet[j] -= 1
                if not unmet[j]:
                    other = work[j].queue
                    if queues[other][position[other]] == j and other != name:
                        push(heap, (max(queue_free[other], ready[j]), j, other))
            at = position[name] + 1
            position[name] = at
            members = queues[name]
            if at < len(members):
                head = members[at]
                if not unmet[head]:
                    push(heap, (max(queue_free[name], ready[head]), head, name))
            else:
                members.append(-1)

    def _available(self, i: int, j: int, done: float) -> float:
        """When `j`, which depends on `i`, may start as far as `i` is concerned."""
        work = self.result.work
        if work[i].queue != work[j].queue:
            return done
        if work[i].shares:
            return done
        if work[i].queue == "tensor":
            # PSUM accumulates by itself; the tensor engine reads nothing that it wrote.
            return 0.0
        written = {v.storage.number for v in self.instructions[i].out if isinstance(v, NkiTensor)}
        for v in self.instructions[j].args:
            if isinstance(v, NkiTensor) and v.storage.number in written:
                return done
        return 0.0

    def _explain(self, i: int, now: float, name: str) -> None:
        r = self.result
        if self.ready[i] >= now and self.waits_for[i] >= 0:
            r.cause[i], r.reason[i] = self.waits_for[i], "operand"
        elif now <= self.floor:
            r.cause[i], r.reason[i] = self.floor_at, "order"
        else:
            r.cause[i], r.reason[i] = self.queue_last.get(name, -1), "order"

    def _compute(self, i: int, now: float, w: Work) -> None:
        r, name = self.result, w.queue
        self._explain(i, now, name)
        if self.shared_ports:
            now = self._port(name, now, w)
        free = now + w.interval
        r.issued[i] = r.start[i] = now
        r.end[i] = free + w.latency
        self.queue_free[name] = free

    def _port(self, name: str, now: float, w: Work) -> float:
        """NeuronCore-v2: vector and gpsimd share the port of SBUF, vector and scalar that of PSUM."""
        ports = []
        if name == "gpsimd" or name == "vector":
            ports.append("sbuf")
        if w.psum and name in ("vector", "scalar"):
            ports.append("psum")
        for port in ports:
            now = max(now, self.port_free[port])
        for port in ports:
            self.port_free[port] = now + w.interval
        return now

    def _multiply(self, i: int, now: float, w: Work) -> None:
        r = self.result
        if not w.load:
            self._compute(i, now, w)
            return
        self._explain(i, now, "tensor")
        cells: list[tuple[int, int]] = []
        free = self.multiply_free
        if w.tile is not None:
            row, column, rows, columns = w.tile
            cells = [(a, b) for a in range(row, row + rows, 32) for b in range(column, column + columns, 32)]
            free = max(max((self.tiles_free.get(c, 0.0) for c in cells), default=0.0), self._whole_free)
        start = max(now + w.load, free)
        duration = w.interval / self.warm.rate(start)
        finish = start + duration
        self.warm.busy += duration
        r.issued[i], r.start[i], r.end[i] = now, start, finish + w.latency
        for cell in cells:
            self.tiles_free[cell] = finish
        if not cells:
            self._whole_free = finish
        self.multiply_free = max(self.multiply_free, finish)
        # The next stationary tile is loaded as soon as this one is in use.
        self.queue_free["tensor"] = start

    _whole_free = 0.0

    def _transfer(self, i: int, now: float, w: Work) -> None:
        r, free, last = self.result, self.dma_free, self.dma_last
        self._explain(i, now, w.queue)
        trigger = self.generator_free.get(w.trigger, 0.0)
        if trigger > now:
            now = trigger
        self.generator_free[w.trigger] = self.queue_free[w.queue] = now + w.interval
        first, latest, slowest = float("inf"), 0.0, -1
        for e, time, arrival in w.shares:
            at = now + arrival
            if free[e] > at:
                at = free[e]
                waited = last[e]
            else:
                waited = -1
            free[e] = done = at + time
            last[e] = i
            if at < first:
                first = at
            if done > latest:
                latest, slowest = done, waited
        if slowest >= 0:
            r.cause[i], r.reason[i] = slowest, "engine"
        r.issued[i], r.start[i], r.end[i] = now, first, latest + self.dma_completion


@dataclass
class _WarmUp:
    """The current limiter of the tensor engine: slow after a pause, at full rate once it has been busy for a while."""

    window: float
    slow: float
    share: float
    since: float = 0.0
    busy: float = 0.0
    warm: bool = False

    def rate(self, now: float) -> float:
        if not self.window:
            return 1.0
        elapsed = now - self.since
        if elapsed >= self.window:
            self.warm = self.busy >= self.share * elapsed
            self.since, self.busy = now, 0.0
        return 1.0 if self.warm else self.slow
