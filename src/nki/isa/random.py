"""Random numbers: generators of the Vector and GpSimd engines, and their states."""

from __future__ import annotations

from typing import Any

from .. import errors
from ..targets import GENERATIONS
from ..tensor import NkiTensor
from ..trace import current
from .enums import engine as Engine
from .instruction_handle import NkiInstruction
from .validation import (
    FLOATS,
    FP32,
    INTEGERS,
    choose,
    column,
    emit,
    extent,
    fail,
    no_gpsimd_in_psum,
    require_dtype,
    require_generation,
    require_region,
    require_same_dtype,
    require_shape,
    require_size,
)

__all__ = ["dropout", "rand2", "rand_get_state", "rand_set_state", "rng", "set_rng_seed"]

_WORD = frozenset({"uint32"})
_SEEDS = frozenset({"uint32", "int32", "float32"})
_STATE_WORDS = {"gpsimd": 6, "vector": 24}


def rng(dst: NkiTensor, engine: Engine = Engine.vector, name: str | None = None) -> NkiInstruction:
    """Random bits in an integer tile: the low ones of 32 per element.

    Args:
        engine: vector, or gpsimd on NeuronCore-v3 and later (SBUF only).
    """
    trace = current()
    extent(dst, "rng", "dst")
    require_dtype(dst, INTEGERS, "rng", "dst", "Scale the integers to fractions with nisa.tensor_scalar.")
    chosen = "vector" if engine is Engine.unknown else choose(engine, ("vector", "gpsimd"), "rng")
    if chosen == "gpsimd":
        require_generation(trace, 3, "rng", "engine.gpsimd")
        no_gpsimd_in_psum(chosen, "rng", ("dst", dst))
    return emit(trace, "rng", chosen, (dst,), (), (), name)


def rand2(dst: NkiTensor, min: Any, max: Any, name: str | None = None) -> NkiInstruction:
    """Uniform random numbers of [min, max] on the Vector engine of NeuronCore-v4.

    Args:
        min, max: numbers, or tiles of one fp32 element per partition; min < max.
    """
    trace = current()
    require_generation(trace, 4, "rand2")
    size = extent(dst, "rand2", "dst")
    require_dtype(dst, (FLOATS | INTEGERS) - {"float8_e4m3fn"}, "rand2", "dst")
    low = column(min, "rand2", "min", size[0], FP32)
    high = column(max, "rand2", "max", size[0], FP32)
    if not isinstance(low, NkiTensor) and not isinstance(high, NkiTensor) and not low < high:
        fail(errors.OperandValueError, op="rand2", operand="min", value=low, allowed=f"numbers below max={high}")
    return emit(trace, "rand2", "vector", (dst,), (low, high), (), name)


def dropout(dst: NkiTensor, data: NkiTensor, prob: Any, name: str | None = None) -> NkiInstruction:
    """`data` with elements replaced by 0, each with the probability `prob`; the others are not scaled.

    Args:
        dst: of the type of `data`.
        prob: a number, or a tile of one element per partition: fp32 where `data` holds integers, else any float.
    """
    trace = current()
    size = extent(dst, "dropout", "dst")
    like = extent(data, "dropout", "data")
    if like != size:
        require_size(data, like, size, "dropout", "data", dst, "dst")
    require_same_dtype(dst, data, "dropout", "dst", "data")
    prob = column(prob, "dropout", "prob", size[0], FP32 if data.dtype.is_integer else FLOATS)
    if not isinstance(prob, NkiTensor) and not 0 <= prob <= 1:
        fail(errors.OperandValueError, op="dropout", operand="prob", value=prob, allowed="0 to 1")
    return emit(trace, "dropout", "vector", (dst,), (data, prob), (), name)


def set_rng_seed(src_seeds: NkiTensor, name: str | None = None) -> NkiInstruction:
    """Seeds the generator of the Vector engine with a [1, 1] tile of 32 bits."""
    trace = current()
    require_shape(src_seeds, extent(src_seeds, "set_rng_seed", "src_seeds"), (1, 1), "set_rng_seed", "src_seeds")
    require_dtype(src_seeds, _SEEDS, "set_rng_seed", "src_seeds")
    return emit(trace, "set_rng_seed", "vector", (), (src_seeds,), (), name)


def _require_state(view: NkiTensor, op: str, operand: str, engine: Engine) -> str:
    """A tile that holds the state of a generator; returns the name of the engine."""
    trace = current()
    require_generation(trace, 3, op)
    chosen = choose(engine, ("gpsimd", "vector"), op)
    if chosen == "vector":
        require_generation(trace, 4, op, "engine.vector")
    size = extent(view, op, operand)
    require_dtype(view, _WORD, op, operand)
    require_shape(view, size, (size[0], _STATE_WORDS.get(chosen, 6)), op, operand)
    if op == "rand_set_state" or chosen == "gpsimd" or GENERATIONS[trace.target] < 4:
        require_region(view, op, operand, "sbuf")
    return chosen


def rand_set_state(src_seeds: NkiTensor, engine: Engine = Engine.gpsimd, name: str | None = None) -> NkiInstruction:
    """Sets the state of a generator, partition by partition; NeuronCore-v3 and later.

    Args:
        src_seeds: uint32 in SBUF: 6 elements per partition for gpsimd, 24 for vector (NeuronCore-v4).
    """
    chosen = _require_state(src_seeds, "rand_set_state", "src_seeds", engine)
    return emit(current(), "rand_set_state", chosen, (), (src_seeds,), (), name)


def rand_get_state(dst: NkiTensor, engine: Engine = Engine.gpsimd, name: str | None = None) -> NkiInstruction:
    """Reads the state of a generator into `dst`, which is as of nisa.rand_set_state."""
    chosen = _require_state(dst, "rand_get_state", "dst", engine)
    return emit(current(), "rand_get_state", chosen, (dst,), (), (), name)
