"""What each instruction of a trace asks of the hardware: which queue it goes through, for how long, and what it moves.

The formulas are those of `neuron_hw`; here they get their numbers from the operands of instructions.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from neuron_hw import (
    Chip,
    EngineShare,
    Operand,
    collective_time,
    engine_cycles,
    instance_type,
    matmul_cycles,
    mx_matmul_cycles,
    shares_of_rows,
    transpose_cycles,
)

from .instruction import Instruction
from .tensor import NkiTensor

__all__ = ["CostModel", "Work"]

_DMA = frozenset({"dma_copy", "dma_transpose", "dma_compute"})
# Where collectives of a kernel run when nothing else is known: the largest instance of the chip.
_INSTANCE = {"trn1": "trn1.32xlarge", "trn2": "trn2.48xlarge", "trn3": "trn3.gen1"}
_CONTROL = frozenset({"loop_begin", "loop_end", "while_begin", "while_end", "print"})


class Work:
    """What one instruction asks for.

    Attributes:
        queue: instructions of one queue start in order.
        interval: ns until the next one of the queue may start.
        latency: ns from there until the result can be read.
        load: ns to load the stationary tile, behind the multiplication before (tensor engine).
        shares: work of the DMA engines; () for everything else. busy: its ns, all engines together.
        trigger: engine whose sequencer starts the DMA.
        hbm_read, hbm_written, moved: bytes.
        elements: contiguous runs that a transfer consists of.
        macs: multiplications of a matrix product; transposes: they only move data.
        tile: (row, column, rows, columns) of the part of the tensor engine that it uses, or None for all.
        psum: reads or writes PSUM.
    """

    __slots__ = (
        "busy", "elements", "hbm_read", "hbm_written", "interval", "latency", "load", "macs", "moved", "psum", "queue",
        "shares", "tile", "transposes", "trigger",
    )  # fmt: skip

    def __init__(self, queue: str, interval: float = 0.0, latency: float = 0.0) -> None:
        self.queue = queue
        self.interval = interval
        self.latency = latency
        self.load = 0.0
        self.shares: tuple[EngineShare, ...] = ()
        self.busy = 0.0
        self.trigger = ""
        self.hbm_read = 0
        self.hbm_written = 0
        self.moved = 0
        self.elements = 0
        self.macs = 0
        self.transposes = False
        self.tile: tuple[int, int, int, int] | None = None
        self.psum = False


def _free(view: NkiTensor) -> int:
    return prod(view.shape[1:]) if view.storage.on_chip else prod(view.shape)


def run_bytes(view: NkiTensor) -> int:
    """Bytes of one contiguous run of a view; on chip runs end with the partition."""
    expected, first = 1, 1 if view.storage.on_chip else 0
    if view.dynamic is not None and view.dynamic.kind != "scalar":
        first = 1
    for size, stride in zip(reversed(view.shape[first:]), reversed(view.strides[first:]), strict=True):
        if size != 1:
            if stride != expected:
                break
            expected *= size
    return expected * view.dtype.itemsize


def _operand(view: NkiTensor) -> Operand:
    stride = 1
    for size, step in zip(reversed(view.shape[1:]), reversed(view.strides[1:]), strict=True):
        if size != 1:
            stride = abs(step)
            break
    item = view.dtype.itemsize
    return Operand(
        str(view.dtype), item, view.storage.region == "psum", stride * item, _free(view), view.dynamic is not None
    )


class CostModel:
    """Costs of instructions on one chip; equal instructions are computed once.

    Attributes:
        chip: the hardware.
        sharing: cores that read the same HBM stack at the same time.
    """

    def __init__(self, chip: Chip, sharing: int = 1) -> None:
        self.chip = chip
        self.sharing = sharing
        self._known: dict[Any, Work] = {}
        self._ns = {e: 1 / chip.clock(e) for e in ("tensor", "vector", "scalar", "gpsimd", "sync")}

    def work(self, instruction: Instruction) -> Work:
        """What `instruction` asks for."""
        key = self._key(instruction)
        if key is None:
            return self._compute(instruction)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._compute(instruction)
        return found

    def _key(self, instruction: Instruction) -> Any:
        op = instruction.op
        if op in ("table_copy", "masked_copy", "collective"):
            return None
        key: list[Any] = [op, instruction.engine]
        add = key.append
        moves = instruction.engine == "dma"
        for operands in (instruction.out, instruction.args):
            for view in operands:
                if type(view) is NkiTensor:
                    storage = view.storage
                    add((
                        view.dtype.code, view.shape, view.strides, storage.region, view.dynamic is not None,
                        view.offset // storage.free if moves and storage.on_chip else 0,
                    ))  # fmt: skip
        attrs = instruction.attrs
        if attrs and not moves:
            add(attrs)
        if instruction.hints:
            add(tuple(sorted((k, str(v)) for k, v in instruction.hints.items())))
        try:
            result = tuple(key)
            hash(result)
        except TypeError:
            return None
        return result

    def _compute(self, instruction: Instruction) -> Work:
        op = instruction.op
        if op in _CONTROL:
            return Work("sync")
        if op == "collective":
            return self._collective(instruction)
        if op in _DMA or op == "sendrecv" or instruction.engine == "dma":
            return self._transfer(instruction)
        if op in ("matmul", "matmul_mx") or (op == "transpose" and instruction.engine == "tensor"):
            return self._tensor(instruction)
        if op.startswith("register") or op == "barrier":
            engine = instruction.engine if instruction.engine in self._ns else "sync"
            return Work(engine, self.chip.minimum_interval * self._ns[engine])
        return self._compute_engine(instruction)

    # Tensor engine ----------------------------------------------------------------------------------------------------

    def _tensor(self, instruction: Instruction) -> Work:
        chip, hints = self.chip, instruction.hints or {}
        stationary = instruction.args[0]
        work = Work("tensor", latency=chip.tensor_latency * self._ns["tensor"])
        if instruction.op == "transpose":
            load, multiply = transpose_cycles(
                chip, stationary.shape[0], _free(stationary), stationary.dtype.itemsize
            )  # fmt: skip
            work.macs, work.transposes = stationary.shape[0] * _free(stationary) * stationary.shape[0], True
        else:
            moving = instruction.args[1]
            rows, m, n = moving.shape[0], _free(stationary), _free(moving)
            if instruction.op == "matmul_mx":
                load, multiply = mx_matmul_cycles(chip, m, n)
                contraction = 4 * rows
            elif len(instruction.attrs) > 1 and instruction.attrs[1]:  # double row: two rows at a time
                m, n, contraction = m // 2, n // 2, 2 * rows
                load, multiply = matmul_cycles(chip, m, n, str(moving.dtype))
            else:
                contraction = rows
                halved = bool(hints.get("is_stationary_onezero")) + bool(hints.get("is_moving_onezero"))
                halved += bool(hints.get("is_transpose")) and chip.generation > 2
                load, multiply = matmul_cycles(chip, m, n, str(moving.dtype), halved)
            work.macs = contraction * m * n
            work.transposes = bool(hints.get("is_transpose"))
        work.load, work.interval = load * self._ns["tensor"], multiply * self._ns["tensor"]
        size, position = hints.get("tile_size"), hints.get("tile_position")
        if size and position and tuple(size) != (128, 128):
            work.tile = (*position, *size)
        work.psum = True
        return work

    # Vector, scalar and gpsimd engines --------------------------------------------------------------------------------

    def _compute_engine(self, instruction: Instruction) -> Work:
        chip, op, attrs = self.chip, instruction.op, instruction.attrs
        engine = instruction.engine if instruction.engine in ("vector", "scalar", "gpsimd") else "vector"
        outs = [_operand(v) for v in instruction.out if isinstance(v, NkiTensor)]
        tiles = [_operand(v) for v in instruction.args if isinstance(v, NkiTensor)]
        out = outs[0] if outs else (tiles[0] if tiles else Operand("float32", 4, False, 4, 1))
        largest = max((t.elements for t in tiles), default=1)
        tiles = [t for t in tiles if t.elements > 1 or largest == 1]
        alu, amount = "", 0.0
        if op in ("tensor_tensor", "tensor_reduce", "tensor_scalar"):
            alu = str(attrs[0]) if attrs else ""
        elif op == "scalar_tensor_tensor":
            alu = f"{attrs[0]},{attrs[1]}"
        elif op in ("activation", "activate2"):
            amount = float(len(instruction.out) > 1 and instruction.out[1] is not None)
        elif op == "fill":
            amount = float(attrs[0] == 0)
        elif op == "local_gather":
            amount = float(attrs[0] or 1)
        elif op == "topk":
            amount = float(out.elements)
        cycles = engine_cycles(chip, op, engine, out, tuple(tiles), alu, amount)
        # The start of a gpsimd instruction is part of its cycles: nothing more is known of it.
        latency = {"vector": float(chip.vector_latency), "scalar": float(chip.scalar_latency)}.get(engine, 0.0)
        work = Work(engine, cycles * self._ns[engine], latency * self._ns[engine])
        work.psum = out.psum or any(t.psum for t in tiles)
        return work

    # DMA --------------------------------------------------------------------------------------------------------------

    def _transfer(self, instruction: Instruction) -> Work:
        chip, op = self.chip, instruction.op
        dst: NkiTensor = instruction.out[0]
        sources = [v for v in instruction.args if isinstance(v, NkiTensor)] or [dst]
        src, rate = sources[0], 1.0
        on_chip = dst if dst.storage.on_chip else src if src.storage.on_chip else None
        total = dst.size * max(dst.dtype.itemsize, src.dtype.itemsize)
        if op == "dma_transpose":
            rate = float(chip.dma_sbuf_transpose_share if src.storage.on_chip else chip.dma_transpose_share)
            element = -(-_free(dst) // 16) * 16 * dst.dtype.itemsize
        elif op in ("table_copy", "masked_copy"):
            element = max(total // _runs(instruction), dst.dtype.itemsize)
        else:
            # Runs are counted in elements of the tensor: a conversion moves as many, of another size.
            count = min(run_bytes(v) // v.dtype.itemsize for v in (dst, *sources))
            element = count * max(dst.dtype.itemsize, src.dtype.itemsize)
            if op == "dma_compute":
                rate = float(chip.dma_compute_share) / max(len(sources) - 1, 1)
        rate /= self._congestion(sum(not v.storage.on_chip for v in (dst, src)))
        read = dst if src.storage.on_chip and not dst.storage.on_chip else src
        run = run_bytes(read)
        if on_chip is None:
            rows = max(total // element, 1)
            shares = shares_of_rows(chip, 0, rows, 1, element, rate=rate, spread=True)
        else:
            rows = on_chip.shape[0]
            first = (on_chip.offset // on_chip.storage.free) % chip.partitions if on_chip.storage.free else 0
            row = max(total // rows, 1)
            element = min(element, row)
            shares = shares_of_rows(chip, first, rows, -(-row // element), element, row / max(run, 1), rate)
        trigger, interval = self._descriptors(instruction, sources)
        way = "Store" if on_chip is not None and not dst.storage.on_chip else "Load"
        way = str((instruction.hints or {}).get("queue", way))
        work = Work(f"q{trigger.capitalize()}{way}", interval)
        work.trigger, work.shares = trigger, shares
        work.busy = sum(s.time for s in shares)
        work.moved = total
        work.elements = max(total // element, 1)
        work.hbm_read = sum(v.size * v.dtype.itemsize for v in sources if not v.storage.on_chip)
        work.hbm_written = 0 if dst.storage.on_chip else dst.size * dst.dtype.itemsize
        return work

    def _congestion(self, ends_in_hbm: int) -> float:
        """How much slower than its engines a transfer is because of HBM."""
        chip = self.chip
        return max(1.0, ends_in_hbm * chip.dma_rate * chip.dma_engines * self.sharing / chip.hbm_stack_bandwidth)

    def _descriptors(self, instruction: Instruction, sources: list[NkiTensor]) -> tuple[str, float]:
        """The engine that triggers a transfer, and the time between two triggers."""
        chip, hints = self.chip, instruction.hints or {}
        mode = str(getattr(hints.get("dge_mode"), "name", hints.get("dge_mode") or "unknown"))
        asked = hints.get("engine")
        engine = str(getattr(asked, "name", asked or ""))
        rows = any(v.dynamic is not None and v.dynamic.kind != "scalar" for v in (instruction.out[0], *sources))
        if mode == "none" or (chip.generation == 2 and not rows):
            return "sync", float(chip.dma_trigger)
        if mode == "hwdge":
            return (engine if engine in ("sync", "scalar") else "sync"), float(chip.dma_descriptors)
        # Left to the compiler: profiles of kernels on trn2 show the gpsimd engine's queues.
        return (engine if engine in ("sync", "scalar", "gpsimd") else "gpsimd"), float(chip.dma_descriptors)

    def _collective(self, instruction: Instruction) -> Work:
        kind, groups = str(instruction.attrs[0]), instruction.attrs[1]
        ranks = max((len(g) for g in groups), default=1) if groups else 1
        views = [v for v in (*instruction.out, *instruction.args) if isinstance(v, NkiTensor)]
        size = max((v.size * v.dtype.itemsize for v in views), default=0)
        instance = instance_type(_INSTANCE[self.chip.name])
        work = Work("collectives", collective_time(instance, kind, size, ranks))
        work.moved = size
        return work


def _runs(instruction: Instruction) -> int:
    """Contiguous runs of a copy by tables of element numbers, or of what a mask leaves."""
    count = 1
    if instruction.op == "table_copy":
        for table in instruction.attrs[:2]:
            if table is not None:
                steps = np.diff(np.asarray(table).reshape(-1))
                count = max(count, 1 + int(np.count_nonzero(steps != 1)))
    else:
        mask = np.asarray(instruction.attrs[0])
        rows = mask.shape[0] if mask.ndim > 1 else 1
        flat = mask.reshape(rows, -1)
        starts = flat[:, 1:] & ~flat[:, :-1]
        count = max(count, int(np.count_nonzero(starts)) + int(np.count_nonzero(flat[:, 0])))
    return count
