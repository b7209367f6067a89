"""The cost of an instruction of an NKI kernel: traced, and run on the simulated core, beside NumPy.

The kernel has 10,000 instructions of small tiles, of the kinds that kernels have most: transfers, tensor_scalar,
tensor_tensor, activation, reductions, small matrix products. The reference does the same work with one NumPy call for
each. All figures are wall time of this machine.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from benchmarks import section
from benchmarks.interleave import Case, Row, run_case

ROUNDS, OPS = 1250, 8
COLUMNS = 32

# Microseconds an instruction that the figures are held against.
RUN_BOUND, TRACE_BOUND = 5.0, 20.0


def small_instructions(x):
    """Eight instructions a round on tiles of 128 x 32."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    state = nl.ndarray((128, COLUMNS), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=state, value=0.0)
    for _ in range(ROUNDS):
        tile = nl.ndarray((128, COLUMNS), dtype=nl.float32, buffer=nl.sbuf)
        largest = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        product = nl.ndarray((COLUMNS, COLUMNS), dtype=nl.float32, buffer=nl.psum)
        nisa.dma_copy(dst=tile, src=x[0:128, 0:COLUMNS])
        nisa.tensor_reduce(dst=largest, op=nl.maximum, data=tile, axis=1)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.subtract, operand0=largest)
        nisa.activation(dst=tile, op=nl.exp, data=tile, scale=0.5)
        nisa.nc_matmul(dst=product, stationary=tile, moving=tile)
        nisa.tensor_tensor(dst=state, data1=state, data2=tile, op=nl.add)
        nisa.tensor_scalar(dst=state[0:COLUMNS, :], data=product, op0=nl.multiply, operand0=1e-3)
        nisa.dma_copy(dst=out[0:128, 0:COLUMNS], src=state)
    return out


def with_numpy(x: np.ndarray) -> np.ndarray:
    """The same with NumPy, a call an instruction (the activation takes two)."""
    out = np.empty_like(x)
    state = np.zeros((128, COLUMNS), np.float32)
    for _ in range(ROUNDS):
        tile = x[0:128, 0:COLUMNS].copy()
        largest = tile.max(axis=1, keepdims=True)
        np.subtract(tile, largest, out=tile)
        np.exp(np.multiply(tile, 0.5, out=tile), out=tile)
        product = tile.T @ tile
        np.add(state, tile, out=state)
        np.multiply(product, 1e-3, out=state[0:COLUMNS])
        out[0:128, 0:COLUMNS] = state
    return out


def microseconds(function: Callable[[], object]) -> float:
    """Wall time of one call per instruction."""
    start = time.perf_counter()
    function()
    return (time.perf_counter() - start) * 1e6 / (ROUNDS * OPS)


def rows(settings: section.Settings) -> Sequence[Row]:
    """The section's rows: microseconds an instruction."""
    x = np.random.default_rng(0).standard_normal((128, COLUMNS)).astype(np.float32)
    kernel = nki.jit(small_instructions)
    np.testing.assert_allclose(kernel(x), with_numpy(x), rtol=1e-4, atol=1e-5)
    theirs = {"NumPy": lambda: microseconds(lambda: with_numpy(x))}

    def case(name: str, ours: dict[str, Callable[[], float]]) -> Case:
        repetitions = 3 if settings.quick else 10
        return Case(name, "us each", theirs | ours, threads=settings.threads, repetitions=repetitions)

    # A kernel of its own each time: one that was traced before is not traced again.
    first = {"kernel": lambda: microseconds(lambda: nki.jit(small_instructions)(x))}
    again = {"kernel": lambda: microseconds(lambda: kernel(x))}
    return [
        run_case(case("run", again), lambda: f"at most {RUN_BOUND:.0f} us"),
        run_case(case("traced, checked, run", first), lambda: f"at most {TRACE_BOUND + RUN_BOUND:.0f} us"),
    ]


if __name__ == "__main__":
    section.main(rows, __doc__, None)
