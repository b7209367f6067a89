"""What one instruction costs on the compute engines: cycles of the engine's own clock.

N is the number of elements per partition of the instruction's main operand; cost does not depend on how many
partitions take part. Formulas are those of the nki.isa reference of SDK 2.26, the last that printed them, for
NeuronCore-v2; what later generations do faster is from the Trainium2 and Trainium3 architecture guides. Where neither
says anything, the rule of the guides is used: N cycles for one tensor that is read, 2N for two.
"""

from __future__ import annotations

from dataclasses import dataclass

from .chips import Chip

__all__ = ["Operand", "engine_cycles", "matmul_cycles", "mx_matmul_cycles", "transpose_cycles"]


@dataclass(frozen=True, slots=True)
class Operand:
    """What of a tile decides the time that reading or writing it takes.

    Attributes:
        dtype: element type by name, e.g. "bfloat16".
        itemsize: bytes per element.
        psum: it lies in PSUM rather than SBUF.
        stride: bytes between neighbouring elements of the innermost dimension.
        elements: per partition.
        dynamic: its address is known only when the kernel runs.
    """

    dtype: str
    itemsize: int
    psum: bool
    stride: int
    elements: int
    dynamic: bool = False

    @property
    def contiguous(self) -> bool:
        return self.stride == self.itemsize or self.elements == 1


# Instructions that read two tensors.
_TWO_INPUTS = frozenset({"scan", "select_reduce", "scalar_tensor_tensor", "tensor_tensor", "copy_predicated"})
# ... and those that do MIN_II more to read their accumulators out.
_READS_ACCUMULATOR = frozenset({"tensor_scalar_reduce"})
_HALF_WIDTH_STRIDE = 16  # bytes; a larger innermost stride halves the rate of SBUF and PSUM


def engine_cycles(
    chip: Chip,
    op: str,
    engine: str,
    out: Operand,
    inputs: tuple[Operand, ...],
    alu: str = "",
    amount: float = 0.0,
) -> float:
    """Cycles for which the instruction keeps its engine from starting the next one.

    Args:
        op: name in the instruction set, see nki.instruction.
        engine: "vector", "scalar" or "gpsimd".
        out: what it writes.
        inputs: tiles that it reads, without columns of one number per partition.
        alu: operator of tensor_tensor, tensor_scalar and tensor_reduce; of scalar_tensor_tensor both, as
            "subtract,multiply".
        amount: what the formula of the instruction asks for beyond the tiles: 1 when accumulators are read out
            (activation), elements per index (local_gather), results (topk), 1 when filled with zero (fill).
    """
    n = max([o.elements for o in inputs], default=out.elements)
    n = max(n, out.elements) if op != "tensor_reduce" else n
    if engine == "gpsimd":
        cycles = _gpsimd(chip, op, n, out, inputs, alu, amount)
    else:
        cycles = max(float(chip.minimum_interval), _data_cycles(chip, op, engine, n, out, inputs, alu, amount))
        if op in _READS_ACCUMULATOR:
            cycles += chip.minimum_interval
        elif op in ("activation", "activate2") and amount:
            cycles += chip.accumulator_read
    if out.dynamic or any(o.dynamic for o in inputs):
        cycles = max(cycles, float(chip.dynamic_interval))
    return cycles


def _data_cycles(
    chip: Chip, op: str, engine: str, n: int, out: Operand, inputs: tuple[Operand, ...], alu: str, amount: float
) -> float:
    tiles = (out, *inputs)
    halves = chip.generation > 2 and _fast_types(chip, tiles)
    penalty = 2.0 if any(t.stride > _HALF_WIDTH_STRIDE and t.elements > 1 for t in tiles) else 1.0
    if engine == "scalar":
        # NeuronCore-v4: copies and tensor_scalar of 16-bit types at twice the rate.
        return n * penalty / (2 if chip.generation > 3 and halves and op in ("copy", "tensor_scalar") else 1)
    if op in ("copy", "tensor_scalar"):
        return n * penalty / (_performance_mode(tiles) if halves else 1)
    if op == "tensor_tensor":
        return _tensor_tensor(chip, n, tiles, inputs, alu, halves) * penalty
    if op == "fill":
        return n / (2 if amount and out.itemsize == 2 else 1)
    if op == "reciprocal":
        return 8 * n
    if op == "bn_aggr":
        return 13 * n / 3
    if op == "tensor_reduce":
        fast = alu in ("add", "maximum") and all(t.dtype == "bfloat16" for t in tiles)
        return n * penalty / (2 if fast else 1)
    if op == "scalar_tensor_tensor":
        fast = alu == "subtract,multiply" and n % 2 == 0 and all(t.dtype == "bfloat16" for t in inputs)
        return n * penalty * (1 if fast else 2)
    if op == "copy_predicated":
        return n * penalty * (1 if any(t.psum for t in inputs) else 2)
    if op in ("exponential", "rand2", "quantize_mx"):
        return n / 4
    return n * penalty * (2 if op in _TWO_INPUTS else 1)


def _fast_types(chip: Chip, tiles: tuple[Operand, ...]) -> bool:
    if chip.generation > 3:
        return all(t.dtype in ("bfloat16", "float16") or t.dtype.startswith("float8_e") for t in tiles)
    return all(t.dtype in ("bfloat16", "float16") for t in tiles)


def _performance_mode(tiles: tuple[Operand, ...]) -> int:
    in_psum = sum(t.psum for t in tiles)
    contiguous = all(t.contiguous for t in tiles)
    if in_psum == 0:
        return 4 if contiguous else 2
    return 2 if contiguous and in_psum < len(tiles) else 1


def _tensor_tensor(
    chip: Chip, n: int, tiles: tuple[Operand, ...], inputs: tuple[Operand, ...], alu: str, halves: bool
) -> float:
    in_psum = sum(t.psum for t in inputs)
    simple = alu in ("add", "subtract", "multiply")
    fast = in_psum == 0 and simple and all(t.dtype == "bfloat16" and t.contiguous for t in tiles)
    cycles = float(n) if in_psum == 1 or fast else 2.0 * n
    # Twice the rate of NeuronCore-v2 when both inputs are in SBUF and all types have 16 bits.
    return cycles / 2 if halves and in_psum == 0 else cycles


def _gpsimd(chip: Chip, op: str, n: int, out: Operand, inputs: tuple[Operand, ...], alu: str, amount: float) -> float:
    start = float(chip.gpsimd_start)
    if op == "local_gather":
        return start + _local_gather(n, inputs, amount)
    if op == "topk":
        return start + 4 * n + amount
    if op == "n_gather":
        groups = -(-out.elements // 512)
        return groups * (start + min(out.elements, 512))
    if alu == "rsqrt":  # four times slower than on the scalar engine
        return start + 4 * n
    return start + n * (2 if op in _TWO_INPUTS else 1)


def _local_gather(n: int, inputs: tuple[Operand, ...], per_index: float) -> float:
    indices = inputs[-1].elements * 16 if inputs else n
    each, t = max(per_index, 1), 4
    itemsize = inputs[0].itemsize if inputs else 4
    rate = ((28 + t * each) / (t * each)) / min(4 / itemsize, each)
    return indices * each / rate


def matmul_cycles(chip: Chip, stationary: int, moving: int, dtype: str, halved: int = 0) -> tuple[float, float]:
    """Cycles of the tensor engine to load the stationary tile and to stream the moving one.

    Args:
        stationary, moving: elements per partition of each; half of them for fp8 in double-row mode, which takes the
            time of bf16 with twice the contraction.
        dtype: of the moving tile; fp32 takes four passes.
        halved: how often the passes of fp32 are halved: for each operand that is said to hold only zeros and ones, and
            in transpose mode.

    Returns:
        (load, multiply). The load goes on behind the multiplication before it.
    """
    passes = max(4 >> halved, 1) if dtype == "float32" else 1
    return passes * stationary / chip.fast_load, passes * max(min(float(chip.matmul_interval), stationary), moving)


def mx_matmul_cycles(chip: Chip, stationary: int, moving: int) -> tuple[float, float]:
    """As :func:`matmul_cycles`, for MX types: the time of bf16 with four times the contraction."""
    return matmul_cycles(chip, stationary, moving, "bfloat16")


def transpose_cycles(chip: Chip, partitions: int, elements: int, itemsize: int) -> tuple[float, float]:
    """(load, multiply) cycles of a transposition on the tensor engine.

    Args:
        partitions, elements: of the tile that is transposed.
    """
    cycles = max(partitions, min(64, elements))
    # fp32 moves in two halves since NeuronCore-v3's transpose mode, in four passes before.
    passes = 1 if itemsize < 4 else 2 if chip.generation > 2 else 4
    return passes * elements / chip.fast_load, float(passes * cycles)
