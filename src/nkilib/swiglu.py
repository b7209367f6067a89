"""SwiGLU: the gated activation, its gradient, and a whole MLP around it."""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl
from nki.tensor import NkiTensor

from .tiling import (
    BANK_COLUMNS,
    PARTITIONS,
    drain,
    load,
    load_contraction,
    load_transposed,
    psum,
    sbuf,
    spans,
    store,
)

__all__ = ["MAX_TOKEN_BYTES", "swiglu_backward_kernel", "swiglu_kernel", "swiglu_mlp_kernel"]

# Elements of a row of the activation at a time, and of its gradient, which has more tiles.
_PIECE = 4096
_GRADIENT_PIECE = 2048
# Bytes of a partition for the tokens of a block: their inputs and their hidden values.
MAX_TOKEN_BYTES = 112 * 1024
# Bytes of a partition for what is loaded of the weights at a time: gate and up, and down.
_WEIGHT_BYTES = 32 * 1024


@nki.jit
def swiglu_kernel(gate: NkiTensor, up: NkiTensor) -> NkiTensor:
    """`silu(gate) * up`, in fp32, rounded once.

    Args:
        gate, up: (rows, columns) of bf16, fp16 or fp32, any sizes from 1 on.

    Returns:
        As `gate`.

    One instruction on the Scalar engine (silu) and one on the Vector engine (product) for 128 rows of up to 4096
    elements; bound by DMA.
    """
    rows, columns = gate.shape
    result = nl.ndarray((rows, columns), dtype=gate.dtype, buffer=nl.shared_hbm)
    for start, p in spans(rows, PARTITIONS):
        for c0, c in spans(columns, _PIECE):
            place = (slice(start, start + p), slice(c0, c0 + c))
            opened, tile = sbuf((p, c)), sbuf((p, c), gate.dtype)
            nisa.activation(opened, nl.silu, load(gate[place]))
            nisa.tensor_tensor(tile, opened, load(up[place]), op=nl.multiply)
            store(result[place], tile)
    return result


@nki.jit
def swiglu_backward_kernel(gate: NkiTensor, up: NkiTensor, grad: NkiTensor) -> tuple[NkiTensor, NkiTensor]:
    """Gradients of swiglu_kernel: `grad * up * silu'(gate)` and `grad * silu(gate)`.

    Args:
        gate, up: as of swiglu_kernel.
        grad: gradient of its result, as `gate`.

    Returns:
        Gradients of `gate` and of `up`.
    """
    rows, columns = gate.shape
    dgate = nl.ndarray((rows, columns), dtype=gate.dtype, buffer=nl.shared_hbm)
    dup = nl.ndarray((rows, columns), dtype=up.dtype, buffer=nl.shared_hbm)
    for start, p in spans(rows, PARTITIONS):
        for c0, c in spans(columns, _GRADIENT_PIECE):
            place = (slice(start, start + p), slice(c0, c0 + c))
            closed, back = load(gate[place]), load(grad[place])
            opened, slope, outer = sbuf((p, c)), sbuf((p, c)), sbuf((p, c))
            to_gate, to_up = sbuf((p, c), gate.dtype), sbuf((p, c), up.dtype)
            nisa.activation(opened, nl.silu, closed)
            nisa.activation(slope, nl.silu_dx, closed)
            nisa.tensor_tensor(to_up, opened, back, op=nl.multiply)
            nisa.tensor_tensor(outer, load(up[place]), back, op=nl.multiply, engine=nisa.engine.gpsimd)
            nisa.tensor_tensor(to_gate, outer, slope, op=nl.multiply)
            store(dgate[place], to_gate)
            store(dup[place], to_up)
    return dgate, dup


@nki.jit
def swiglu_mlp_kernel(x: NkiTensor, w_gate: NkiTensor, w_up: NkiTensor, w_down: NkiTensor) -> NkiTensor:
    """`(silu(x @ w_gate) * (x @ w_up)) @ w_down`: sums in fp32; the hidden values are rounded to the type of `x`.

    Args:
        x: (tokens, d) of bf16, fp16 or fp32; 128 tokens' inputs and hidden values lie in SBUF:
            (d + hidden) * itemsize is at most MAX_TOKEN_BYTES.
        w_gate, w_up: (d, hidden), as `x`.
        w_down: (hidden, d_out), as `x`.

    Returns:
        (tokens, d_out).

    Hidden values are made transposed, hidden on partitions: gate and up are the stationary operands, which so need no
    transpose, and the tokens (transposed once by the Tensor engine) move by up to 512. The down projection then takes
    the hidden values as its stationary operand as they are, so that they never leave SBUF. Weights pass once for every
    block of tokens (512, or fewer where d + hidden is large). Modelled on trn2: Tensor bound from some 256 tokens per
    block on, below that bound by the weights' DMA.
    """
    tokens, d = x.shape
    hidden, d_out = w_down.shape
    result = nl.ndarray((tokens, d_out), dtype=x.dtype, buffer=nl.shared_hbm)
    size = x.dtype.itemsize
    tiles = -(-d // PARTITIONS) + -(-hidden // PARTITIONS)
    block = max(PARTITIONS, min(BANK_COLUMNS, MAX_TOKEN_BYTES // (tiles * size) // PARTITIONS * PARTITIONS))
    for start, count in spans(tokens, block):
        inputs = load_transposed(x[start : start + count, :])
        values = _hidden(inputs, w_gate, w_up)
        # As many tiles of hidden values at a time as the down projection's weights may take.
        group = max(1, _WEIGHT_BYTES // (BANK_COLUMNS * size))
        for n0, n in spans(d_out, BANK_COLUMNS):
            banks = [psum((p, n)) for _, p in spans(count, PARTITIONS)]
            for first, many in spans(len(values), group):
                h0 = first * PARTITIONS
                weights = load_contraction(w_down[h0 : min(h0 + many * PARTITIONS, hidden), n0 : n0 + n])
                for bank, (t0, p) in zip(banks, spans(count, PARTITIONS), strict=True):
                    for i, weight in enumerate(weights):
                        nisa.nc_matmul(bank, values[first + i][:, t0 : t0 + p], weight, accumulate=first + i > 0)
            for turn, (bank, (t0, p)) in enumerate(zip(banks, spans(count, PARTITIONS), strict=True)):
                tile = sbuf((p, n), x.dtype)
                drain(tile, bank, turn)
                store(result[start + t0 : start + t0 + p, n0 : n0 + n], tile)
    return result


def _hidden(inputs: list[NkiTensor], w_gate: NkiTensor, w_up: NkiTensor) -> list[NkiTensor]:
    """`silu(x @ w_gate) * (x @ w_up)`, transposed, as tiles of up to 128 hidden values.

    `inputs` are the tokens, transposed, as tiles of up to 128 of d.
    """
    d, hidden = w_gate.shape
    tokens = inputs[0].shape[1]
    dtype = w_gate.dtype
    bytes_per_column = len(inputs) * dtype.itemsize
    columns = max(PARTITIONS, min(BANK_COLUMNS, _WEIGHT_BYTES // (2 * bytes_per_column) // PARTITIONS * PARTITIONS))
    values = []
    for h0, h in spans(hidden, columns):
        gates = load_contraction(w_gate[0:d, h0 : h0 + h])
        ups = load_contraction(w_up[0:d, h0 : h0 + h])
        for c0, c in spans(h, PARTITIONS):
            gate, up = psum((c, tokens)), psum((c, tokens))
            for bank, weights in ((gate, gates), (up, ups)):
                for k, (weight, moving) in enumerate(zip(weights, inputs, strict=True)):
                    nisa.nc_matmul(bank, weight[:, c0 : c0 + c], moving, accumulate=k > 0)
            opened, tile = sbuf((c, tokens)), sbuf((c, tokens), dtype)
            nisa.activation(opened, nl.silu, gate)
            nisa.tensor_tensor(tile, opened, up, op=nl.multiply)
            values.append(tile)
    return values
