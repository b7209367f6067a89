"""The gradient of the selective scan of Mamba.

With g[t] the gradient of the state h[t], which runs backwards in time: g[t] = c[t] * dy[t] + decay[t + 1] * g[t + 1].
From it, with e = g * decay * h[t - 1] = g * (h - what the input added):

    db = sum over channels of g * delta * x        dc = sum over channels of h * dy
    da = sum over time of e * delta                ddelta = sum over states of e * a + g * b * x
    dx = sum over states of g * b * delta, + skip * dy
"""

from __future__ import annotations

from dataclasses import dataclass

import nki
import nki.isa as nisa
import nki.language as nl
from nki.tensor import NkiTensor

from .mamba import STEPS, Channels, Selectors, in_fp32, load_channels, load_tiles, states_of
from .tiling import PARTITIONS, psum, sbuf, spans, store

__all__ = ["selective_scan_backward_kernel"]

_CHANNELS = 4 * PARTITIONS


@dataclass
class _Gradients:
    """What belongs to up to 128 channels over one piece of time."""

    channels: Channels
    dy: NkiTensor
    weighted: NkiTensor  # sum over states of g * b
    ddelta: NkiTensor


@nki.jit
def selective_scan_backward_kernel(
    x: NkiTensor,
    delta: NkiTensor,
    a: NkiTensor,
    b: NkiTensor,
    c: NkiTensor,
    skip: NkiTensor,
    begins: NkiTensor,
    dy: NkiTensor,
    dlast: NkiTensor,
) -> tuple[NkiTensor, ...]:
    """Gradients of :func:`~nkilib.mamba.selective_scan_kernel`.

    Args:
        x, delta, a, b, c, skip: its arguments.
        begins: what it returned last.
        dy: gradient of y, as `x`.
        dlast: gradient of the last h, (batch, channels, states) in fp32.

    Returns:
        Gradients of x, delta, b and c in their types, of a and skip in fp32, and of the initial h in fp32.

    The states of each piece of 512 steps are computed anew from where it begins. Scans backwards in time read and write
    with a negative stride. Sums over channels are products with ones on the Tensor engine, which collects all states of
    a piece in one bank of PSUM. Bound by the Vector engine: 10 x 512 cycles for 128 channels, 512 steps and one state.
    """
    batch, channels, time = x.shape
    states = a.shape[1]
    dx = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    ddelta = nl.ndarray(delta.shape, dtype=delta.dtype, buffer=nl.shared_hbm)
    db = nl.ndarray(b.shape, dtype=b.dtype, buffer=nl.shared_hbm)
    dc = nl.ndarray(c.shape, dtype=c.dtype, buffer=nl.shared_hbm)
    da = nl.ndarray(a.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    dskip = nl.ndarray(skip.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    dinitial = nl.ndarray(dlast.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    selectors, adders = Selectors(states), _Adders(states)
    coefficients, skips = load_tiles(a), load_tiles(skip)
    da_tiles, dskip_tiles = _zeros(channels, states), _zeros(channels, 1)
    for i in range(batch):
        # decay * g of the step after the piece.
        carries = load_tiles(dlast[i])
        for number, (t0, t) in reversed(list(enumerate(spans(time, STEPS)))):
            current = load_tiles(begins[i, number])
            bs, cs = (in_fp32(m[i, :, t0 : t0 + t]) for m in (b, c))
            sums = _Sums(adders, states, t)
            for start, count in spans(channels, _CHANNELS):
                group = [
                    _gradients(part, in_fp32(dy[i, part.start : part.start + part.rows, t0 : t0 + t]))
                    for part in load_channels(x[i], delta[i], start, count, t0, t)
                ]
                for n in range(states):
                    b_row = selectors.on_all_partitions(bs, n, group[0].channels.rows)
                    c_row = selectors.on_all_partitions(cs, n, group[0].channels.rows)
                    for part in group:
                        k = part.channels.number
                        _state(part, coefficients[k], b_row, c_row, n, current[k], carries[k], da_tiles[k], sums)
                for part in group:
                    place = (i, slice(part.channels.start, part.channels.start + part.channels.rows), slice(t0, t0 + t))
                    _finish(
                        part, skips[part.channels.number], dskip_tiles[part.channels.number], dx[place], ddelta[place]
                    )
            sums.store(db[i, :, t0 : t0 + t], dc[i, :, t0 : t0 + t])
        _store_all(dinitial[i], carries)
    _store_all(da, da_tiles)
    _store_all(dskip, dskip_tiles)
    return dx, ddelta, da, db, dc, dskip, dinitial


class _Adders:
    """For each state n a matrix (128, states) with ones in column n: its product with a tile adds up the partitions."""

    def __init__(self, states: int) -> None:
        # One row of 2 * states - 1 elements with a one in the middle holds them all, as windows.
        self.states = states
        self.row = sbuf((PARTITIONS, 2 * states - 1))
        nisa.memset(self.row, 0.0)
        nisa.memset(self.row[:, states - 1 : states], 1.0)

    def of(self, n: int, rows: int) -> NkiTensor:
        return self.row[0:rows, self.states - 1 - n : 2 * self.states - 1 - n]


class _Sums:
    """Gradients of b and c over one piece of time: sums over all channels."""

    def __init__(self, adders: _Adders, states: int, t: int) -> None:
        self.adders = adders
        self.banks = (psum((states, t)), psum((states, t)))
        self.added = [0, 0]

    def add(self, which: int, n: int, products: NkiTensor) -> None:
        stationary = self.adders.of(n, products.shape[0])
        nisa.nc_matmul(self.banks[which], stationary, products, accumulate=self.added[which] > 0)
        self.added[which] += 1

    def store(self, *gradients: NkiTensor) -> None:
        for bank, gradient in zip(self.banks, gradients, strict=True):
            out = sbuf(bank.shape, gradient.dtype)
            nisa.activation(out, nl.copy, bank)
            store(gradient, out)


def _gradients(channels: Channels, dy: NkiTensor) -> _Gradients:
    weighted, ddelta = sbuf(dy.shape), sbuf(dy.shape)
    nisa.memset(weighted, 0.0, engine=nisa.engine.gpsimd)
    nisa.memset(ddelta, 0.0, engine=nisa.engine.gpsimd)
    return _Gradients(channels, dy, weighted, ddelta)


def _state(
    part: _Gradients,
    a: NkiTensor,
    b: NkiTensor,
    c: NkiTensor,
    n: int,
    state: NkiTensor,
    carry: NkiTensor,
    da: NkiTensor,
    sums: _Sums,
) -> None:
    """What state n of up to 128 channels adds to the gradients."""
    p, t = part.dy.shape
    vector, gpsimd = nisa.engine.vector, nisa.engine.gpsimd
    # Decays of steps 1 ... t: that of the step after the piece is in `carry` already.
    decays = sbuf((p, t + 1))
    nisa.memset(decays[:, t : t + 1], 1.0)
    h, added = states_of(part.channels, a, b, n, state, decays[:, 0:t])
    given, g = sbuf((p, t)), sbuf((p, t))
    nisa.tensor_tensor(given, part.dy, c[0:p, :], op=nl.multiply, engine=vector)
    nisa.tensor_tensor_scan(
        _backwards(g, 0, t),
        _backwards(decays, 1, t),
        _backwards(given, 0, t),
        initial=carry[:, n : n + 1],
        op0=nl.multiply,
        op1=nl.add,
    )
    nisa.tensor_tensor(carry[:, n : n + 1], decays[:, 0:1], g[:, 0:1], op=nl.multiply, engine=vector)

    product = sbuf((p, t))
    nisa.tensor_tensor(product, g, b[0:p, :], op=nl.multiply, engine=vector)
    nisa.tensor_tensor(part.weighted, part.weighted, product, op=nl.add, engine=gpsimd)
    for which, (one, other) in enumerate(((g, part.channels.scaled), (h, part.dy))):
        product = sbuf((p, t))
        nisa.tensor_tensor(product, one, other, op=nl.multiply, engine=gpsimd)
        sums.add(which, n, product)

    kept, e = sbuf((p, t)), sbuf((p, t))
    nisa.tensor_tensor(kept, h, added, op=nl.subtract, engine=gpsimd)
    nisa.tensor_tensor(e, g, kept, op=nl.multiply, engine=vector)
    nisa.scalar_tensor_tensor(part.ddelta, e, nl.multiply, a[:, n : n + 1], nl.add, part.ddelta)
    product, total = sbuf((p, t)), sbuf((p, 1))
    nisa.tensor_tensor(product, e, part.channels.delta, op=nl.multiply, engine=gpsimd)
    nisa.activation_reduce(product, nl.copy, product, reduce_op=nl.add, reduce_res=total)
    nisa.tensor_tensor(da[:, n : n + 1], da[:, n : n + 1], total, op=nl.add, engine=gpsimd)


def _finish(part: _Gradients, skip: NkiTensor, dskip: NkiTensor, dx: NkiTensor, ddelta: NkiTensor) -> None:
    """What all states share, and to HBM with it."""
    shape = part.dy.shape
    inputs, steps = part.channels.x, part.channels.delta
    product, total = sbuf(shape), sbuf((shape[0], 1))
    nisa.tensor_tensor(product, part.dy, inputs, op=nl.multiply)
    nisa.activation_reduce(product, nl.copy, product, reduce_op=nl.add, reduce_res=total)
    nisa.tensor_tensor(dskip, dskip, total, op=nl.add)

    out = sbuf(shape, ddelta.dtype)
    product = sbuf(shape)
    nisa.tensor_tensor(product, part.weighted, inputs, op=nl.multiply)
    nisa.tensor_tensor(out, product, part.ddelta, op=nl.add)
    store(ddelta, out)

    out = sbuf(shape, dx.dtype)
    product = sbuf(shape)
    nisa.tensor_tensor(product, part.weighted, steps, op=nl.multiply)
    nisa.scalar_tensor_tensor(out, part.dy, nl.multiply, skip, nl.add, product)
    store(dx, out)


def _backwards(tile: NkiTensor, first: int, count: int) -> NkiTensor:
    """Columns first ... first + count of a tile, from the last to the first."""
    p, n = tile.shape
    return tile.ap([[n, p], [-1, count]], offset=first + count - 1)


def _zeros(channels: int, columns: int) -> list[NkiTensor]:
    tiles = []
    for _, p in spans(channels, PARTITIONS):
        tile = sbuf((p, columns))
        nisa.memset(tile, 0.0)
        tiles.append(tile)
    return tiles


def _store_all(matrix: NkiTensor, tiles: list[NkiTensor]) -> None:
    for (start, p), tile in zip(spans(matrix.shape[0], PARTITIONS), tiles, strict=True):
        store(matrix[start : start + p, :], tile)
