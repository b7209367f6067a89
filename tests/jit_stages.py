"""Running stages on tensors, and what their results are compared with."""

import ctypes
import struct

import numpy as np
import torch

from torch_neuronx.jit import compile_stage
from torch_neuronx.jit.stage import parse

DTYPES = {
    "f32": torch.float32,
    "f64": torch.float64,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
}
LANES = {"f32": torch.float32, "f64": torch.float64, "i64": torch.int64, "b8": torch.bool}
# The type of memory that holds a lane as it is.
MEMORY = {"f32": "f32", "f64": "f64", "i64": "i64", "b8": "bool"}
_SCALAR_FORMATS = {"f32": "f4x", "f64": "d", "i64": "q", "b8": "B7x"}
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

_GUARD = 64  # elements on either side of what a stage may write; more than any vector has
_GUARD_BYTE = 0x5A


def lane_of(dtype: str) -> str:
    return {"f32": "f32", "bf16": "f32", "f16": "f32", "f64": "f64", "bool": "b8"}.get(dtype, "i64")


def pack(lane: str, value: float | int | bool) -> bytes:
    """One entry of the array of scalars: 8 bytes."""
    return struct.pack("=" + _SCALAR_FORMATS[lane], bool(value) if lane == "b8" else value)


def guarded(dtype: torch.dtype, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Uninitialised elements, and all the memory around them."""
    size = torch.empty((), dtype=dtype).element_size()
    memory = torch.full(((count + 2 * _GUARD) * size,), _GUARD_BYTE, dtype=torch.uint8)
    return memory[_GUARD * size : (_GUARD + count) * size].view(dtype), memory


def run(text: str, operands: list[torch.Tensor], scalars: list[float] | None = None, rows: int = 1) -> None:
    """Runs a stage; its dense operands have `rows` times as many elements as there are columns."""
    stage = parse(text)
    dense = next(k for k, operand in enumerate(stage.operands) if operand.kind == "dense")
    cols = operands[dense].numel() // rows if rows else 5
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(compile_stage(text))
    addresses = (ctypes.c_void_p * len(operands))(*[operand.data_ptr() for operand in operands])
    packed = bytearray(8 * (1 + max(stage.scalars, default=-1)))
    for (place, lane), value in zip(stage.scalars.items(), scalars or [], strict=True):
        packed[8 * place : 8 * place + 8] = pack(lane, value)
    call(addresses, ctypes.create_string_buffer(bytes(packed), len(packed) + 1), rows, cols)


def run_guarded(
    text: str, inputs: list[torch.Tensor], out: torch.dtype, scalars: list[float] | None = None, rows: int = 1
) -> torch.Tensor:
    """Runs a stage whose last operand is its dense result, shaped as the first one; nothing else may be written."""
    kept = [x.clone() for x in inputs]
    result, memory = guarded(out, inputs[0].numel())
    run(text, [*inputs, result], scalars, rows)
    for before, after in zip(kept, inputs, strict=True):
        assert_bits(after, before)
    size = result.element_size()
    assert (memory[: _GUARD * size] == _GUARD_BYTE).all(), "wrote in front of the result"
    assert (memory[_GUARD * size + result.numel() * size :] == _GUARD_BYTE).all(), "wrote past the result"
    return result


def operation(op: str, lane: str, count: int, *, result: str | None = None, bool_first: bool = False) -> str:
    """The stage that applies `op` to `count` dense operands."""
    lanes = ["b8" if bool_first and k == 0 else lane for k in range(count)]
    lines = [f"operand {k} {MEMORY[lanes[k]]} dense in" for k in range(count)]
    lines.append(f"operand {count} {MEMORY[result or lane]} dense out")
    lines += [f"%{k} = load {lanes[k]} @{k}" for k in range(count)]
    lines.append(f"%{count} = {op} {lane} {' '.join(f'%{k}' for k in range(count))}")
    return "\n".join([*lines, f"store @{count} %{count}"])


def assert_bits(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """The same bits, zeros' signs included; a NaN is as good as another."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    same = actual.view(_BITS[actual.element_size()]) == expected.view(_BITS[expected.element_size()])
    if actual.is_floating_point():
        same |= actual.isnan() & expected.isnan()
    if not same.all():
        wrong = (~same).nonzero().flatten()
        first = int(wrong[0])
        raise AssertionError(
            f"{len(wrong)} of {same.numel()} differ, first at {first}: {actual[first]!r}, expected {expected[first]!r}"
        )


def values(lane: str, count: int, seed: int) -> torch.Tensor:
    """`count` values of a lane: first the ones at which something can go wrong, then random ones."""
    generator = torch.Generator().manual_seed(seed)
    if lane == "b8":
        return torch.rand(count, generator=generator) < 0.5
    if lane == "i64":
        edges = [0, 1, -1, 127, 128, 129, -128, -129, 255, 256, 32767, 32768, -32769, 65536, 2**31 - 1, 2**31, -(2**31)]
        edges += [-(2**31) - 1, 2**32, 2**32 + 5, 2**53 + 1, -(2**53) - 3, 2**63 - 1, -(2**63), 2**63 - 513]
        drawn = torch.randint(-(2**62), 2**62, (count,), generator=generator)
        drawn >>= torch.randint(0, 63, (count,), generator=generator)
    else:
        info = torch.finfo(LANES[lane])
        edges_of_float = [0.0, 1.0, 0.5, 1.5, 2.5, 3.5, 0.49999997, float("inf"), info.max, info.tiny, info.tiny / 2]
        edges_of_float += [
            info.tiny * info.eps,
            info.tiny * 0.75,
            8388607.5,
            8388609.0,
            2.0**31,
            2.0**63,
            2.0**52 + 0.5,
        ]
        # Around what bf16 and fp16 round: ties, the largest values, the subnormals.
        edges_of_float += [1.00390625, 1.01171875, 65504.0, 65519.9, 65520.0, 6e-8, 2.9e-8, 3.4e38, 1e-40]
        edges_of_float += [255.5, 3e9, 2.0**52 + 0.5]
        edges = [*edges_of_float, *[-x for x in edges_of_float], float("nan")]
        drawn = torch.randn(count, generator=generator, dtype=LANES[lane])
        drawn *= torch.exp2(torch.randint(-30, 30, (count,), generator=generator))
    return torch.cat([torch.tensor(edges, dtype=LANES[lane]), drawn])[:count]


def pairs(lane: str, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Every edge value with every other, and random ones."""
    side = values(lane, 64, seed)
    other = values(lane, 64, seed + 1)
    return side.repeat_interleave(64), other.repeat(64)


def to_int64(x: np.ndarray, bits: int = 64) -> np.ndarray:
    """Towards zero, as integers of `bits` bits; out of their range, and for NaN, what x86 gives."""
    limit = 2.0 ** (bits - 1)
    inside = (x >= -limit) & (x < limit)
    return np.where(inside, np.where(inside, x, 0).astype(np.int64), np.int64(-(2 ** (bits - 1))))
