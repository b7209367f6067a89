"""The selective scan of Mamba: a linear recurrence per channel and state whose coefficients depend on the input."""

from __future__ import annotations

from dataclasses import dataclass

import nki
import nki.isa as nisa
import nki.language as nl
from nki.tensor import NkiTensor

from .tiling import BANK_COLUMNS, PARTITIONS, load, psum, sbuf, spans, store

__all__ = ["STEPS", "selective_scan_kernel"]

# Time steps that are on chip together: what one bank of PSUM holds. States are kept where a piece begins.
STEPS = BANK_COLUMNS

# Channels that share the rows of b and c that the Tensor engine has brought to all partitions.
_CHANNELS = 8 * PARTITIONS


def in_fp32(source: NkiTensor) -> NkiTensor:
    """A part of a tensor in HBM as a tile of fp32."""
    tile = load(source)
    if tile.dtype == nl.float32:
        return tile
    wide = sbuf(tile.shape)
    nisa.tensor_copy(wide, tile)
    return wide


class Selectors:
    """Matrices of zeros, and ones in row or column n: products with them pick a row, or add up a tile into one."""

    def __init__(self, states: int) -> None:
        # Ones on the diagonal [n, n]; picked columns are broadcast without being copied.
        self.diagonal = sbuf((states, states))
        nisa.memset(self.diagonal, 1.0)
        nisa.affine_select(
            dst=self.diagonal,
            pattern=[[-1, states]],
            channel_multiplier=1,
            on_true_tile=self.diagonal,
            on_false_value=0.0,
            cmp_op=nl.equal,
        )

    def on_all_partitions(self, rows: NkiTensor, n: int, p: int) -> NkiTensor:
        """Row n of a tile (states, steps) on each of p partitions, in PSUM: from there the Vector engine reads a second
        operand at twice the rate that it has from SBUF."""
        bank = psum((p, rows.shape[1]))
        stationary = self.diagonal[:, n : n + 1].broadcast(1, p)
        nisa.nc_matmul(bank, stationary, rows, accumulate=False)
        return bank


@dataclass
class Channels:
    """Up to 128 channels over one piece of time, in fp32."""

    start: int
    rows: int
    number: int  # of the tile among all channels
    delta: NkiTensor
    x: NkiTensor
    scaled: NkiTensor  # delta * x


def load_channels(x: NkiTensor, delta: NkiTensor, start: int, count: int, t0: int, t: int) -> list[Channels]:
    """Channels start ... start + count of one sequence at time t0 ... t0 + t."""
    result = []
    for offset, p in spans(count, PARTITIONS):
        d0 = start + offset
        inputs, steps = (in_fp32(m[d0 : d0 + p, t0 : t0 + t]) for m in (x, delta))
        scaled = sbuf((p, t))
        nisa.tensor_tensor(scaled, inputs, steps, op=nl.multiply, engine=nisa.engine.gpsimd)
        result.append(Channels(d0, p, d0 // PARTITIONS, steps, inputs, scaled))
    return result


def load_tiles(matrix: NkiTensor) -> list[NkiTensor]:
    """A matrix (channels, states) in HBM as tiles of fp32, 128 channels each."""
    return [in_fp32(matrix[start : start + p, :]) for start, p in spans(matrix.shape[0], PARTITIONS)]


def states_of(
    channels: Channels, a: NkiTensor, b: NkiTensor, n: int, state: NkiTensor, decays: NkiTensor
) -> tuple[NkiTensor, NkiTensor]:
    """State n of some channels over one piece of time, and what the input adds to it in each step.

    Args:
        a: (channels, states).
        b: row n of the b of the sequence, on all partitions.
        state: (channels, states), where the piece begins.
        decays: gets exp(delta * a).
    """
    p, t = channels.delta.shape
    nisa.activation(decays, nl.exp, channels.delta, scale=a[:, n : n + 1])
    added, states = sbuf((p, t)), sbuf((p, t))
    nisa.tensor_tensor(added, channels.scaled, b[0:p, :], op=nl.multiply, engine=nisa.engine.vector)
    nisa.tensor_tensor_scan(states, decays, added, initial=state[:, n : n + 1], op0=nl.multiply, op1=nl.add)
    return states, added


@nki.jit
def selective_scan_kernel(
    x: NkiTensor,
    delta: NkiTensor,
    a: NkiTensor,
    b: NkiTensor,
    c: NkiTensor,
    skip: NkiTensor,
    initial: NkiTensor,
) -> tuple[NkiTensor, NkiTensor, NkiTensor]:
    """y[t] = skip * x[t] + sum of c[t] * h[t] over states, h[t] = exp(delta[t] * a) * h[t - 1] + delta[t] * x[t] * b[t]

    Args:
        x, delta: (batch, channels, time) of bf16, fp16 or fp32, any sizes.
        a: (channels, states), states up to 128.
        b, c: (batch, states, time).
        skip: (channels, 1).
        initial: (batch, channels, states), h before the first step.

    Returns:
        y as `x`; h after the last step, (batch, channels, states) in fp32; and h where each piece of 512 steps begins,
        (batch, pieces, channels, states) in fp32, from which the gradient goes on. All is computed in fp32.

    Channels are on the partitions, time is the free dimension, and each state is a scan of its own. Rows of b and c
    are needed on all partitions: the Tensor engine, which has nothing else to do, brings them there, into PSUM. For 128
    channels, 512 steps and one state on trn2: Vector 4 x 512 cycles at 0.96 GHz (input times b, the scan, times c),
    which bounds the kernel; Scalar 512 (the exponential); GpSimd 2 x 512 (the sum over states).
    """
    batch, channels, time = x.shape
    states = a.shape[1]
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    last = nl.ndarray((batch, channels, states), dtype=nl.float32, buffer=nl.shared_hbm)
    pieces = spans(time, STEPS)
    begins = nl.ndarray((batch, len(pieces), channels, states), dtype=nl.float32, buffer=nl.shared_hbm)
    selectors = Selectors(states)
    coefficients, skips = load_tiles(a), load_tiles(skip)
    for i in range(batch):
        current = load_tiles(initial[i])
        for number, (t0, t) in enumerate(pieces):
            _store_tiles(begins[i, number], current)
            bs, cs = (in_fp32(m[i, :, t0 : t0 + t]) for m in (b, c))
            for start, count in spans(channels, _CHANNELS):
                group = load_channels(x[i], delta[i], start, count, t0, t)
                sums = []
                for part in group:
                    total = sbuf((part.rows, t))
                    nisa.activation(total, nl.copy, part.x, scale=skips[part.number])
                    sums.append(total)
                for n in range(states):
                    b_row = selectors.on_all_partitions(bs, n, group[0].rows)
                    c_row = selectors.on_all_partitions(cs, n, group[0].rows)
                    for part, total in zip(group, sums, strict=True):
                        state = current[part.number]
                        decays = sbuf((part.rows, t))
                        h, _ = states_of(part, coefficients[part.number], b_row, n, state, decays)
                        nisa.activation(state[:, n : n + 1], nl.copy, h[:, t - 1 : t])
                        seen = sbuf(h.shape)
                        nisa.tensor_tensor(seen, h, c_row[0 : part.rows, :], op=nl.multiply, engine=nisa.engine.vector)
                        nisa.tensor_tensor(total, total, seen, op=nl.add, engine=nisa.engine.gpsimd)
                for part, total in zip(group, sums, strict=True):
                    out = sbuf(total.shape, x.dtype)
                    nisa.activation(out, nl.copy, total)
                    store(y[i, part.start : part.start + part.rows, t0 : t0 + t], out)
        _store_tiles(last[i], current)
    return y, last, begins


def _store_tiles(matrix: NkiTensor, tiles: list[NkiTensor]) -> None:
    for (start, p), tile in zip(spans(matrix.shape[0], PARTITIONS), tiles, strict=True):
        store(matrix[start : start + p, :], tile)
