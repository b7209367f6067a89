"""The gradient of a layer of experts.

For the tokens of one block, with A = silu(G) * U, G = x @ gate, U = x @ up, and w the weight of each token:

    D = dy @ down^T        dw = sum of A * D        dU = w * D * silu(G)        dG = w * D * U * silu'(G)
    ddown += (w * A)^T @ dy        dgate += x^T @ dG        dup += x^T @ dU        dx += dG @ gate^T + dU @ up^T
"""

from __future__ import annotations

from collections.abc import Callable

import nki
import nki.isa as nisa
import nki.language as nl
from nki.isa import NkiScalar
from nki.tensor import NkiTensor

from .moe import as_columns, gathered, side_by_side
from .tiling import BANK_COLUMNS, PARTITIONS, drain, load, load_contraction, load_transposed, psum, sbuf, spans, store

__all__ = ["MAX_TOKEN_BYTES", "moe_backward_kernel"]

# Bytes per partition that the tokens of a block should take: inputs and gradients, each of them also transposed. What
# is computed from them has up to 80 KiB more.
MAX_TOKEN_BYTES = 96 * 1024

# Elements per partition that are filled with zeros at a time.
_CLEARED = 2048

_Matrices = tuple[NkiTensor, NkiTensor, NkiTensor]


@nki.jit
def moe_backward_kernel(
    x: NkiTensor,
    gate: NkiTensor,
    up: NkiTensor,
    down: NkiTensor,
    tokens: NkiTensor,
    weights: NkiTensor,
    experts: NkiTensor,
    used: NkiTensor,
    dy: NkiTensor,
) -> tuple[NkiTensor, NkiTensor, NkiTensor, NkiTensor, NkiTensor]:
    """Gradients of :func:`~nkilib.moe.moe_kernel`.

    Args:
        x, gate, up, down, tokens, weights, experts, used: its arguments; weights of empty places are finite. The blocks
            may have another size than they had there.
        dy: gradient of its result, as `x`.

    Returns:
        Gradients of x, gate, up, down and weights, of their shapes, all in fp32: 0 for tokens and experts that no block
        has, and for empty places. Products and sums in fp32; w * A, dG and dU are rounded to the type of `x` between
        two products.

    Limits: hidden / 128 * size elements of `x` four times, and some 80 KiB, have to fit into a partition of SBUF.

    One round of a hardware loop is one block, whose tokens stay in SBUF with their gradients while up to 512 of
    `intermediate` at a time are computed anew. They come out with tokens on the partitions: that is where the gradients
    of the weights contract and where w is one number for each partition. The Tensor engine transposes the tokens, dG
    and dU once for a block, and `down`, `gate` and `up` once for each block, which is 3 * 128 / (8 * size) of the time
    of the products. DMA adds what a block gives to the sums in HBM, in fp32; blocks of one expert may thus be any. With
    few tokens per expert that is what bounds modelled time: 8 bytes for each element of the weights, against 16 * size
    operations.
    """
    gradients = [nl.ndarray(t.shape, dtype=nl.float32, buffer=nl.shared_hbm) for t in (x, gate, up, down, weights)]
    for gradient in gradients:
        _clear(gradient)
    dx, dgate, dup, ddown, dweights = gradients

    def body(block: NkiScalar) -> None:
        expert = load(experts[block].reshape((1, 1)))
        matrices = (gate.select(0, expert), up.select(0, expert), down.select(0, expert))
        sums = (dgate.select(0, expert), dup.select(0, expert), ddown.select(0, expert))
        _block(x, dy, matrices, tokens[block], weights[block], dx, sums, dweights[block])

    nl.fori_loop(0, nisa.scalar_load(load(used)), body)
    return dx, dgate, dup, ddown, dweights


def _clear(tensor: NkiTensor) -> None:
    """Fills a tensor in HBM with zeros."""
    size = tensor.size
    flat = tensor.reshape((size,))
    zeros = sbuf((PARTITIONS, _CLEARED))
    nisa.memset(zeros, 0.0)
    count = size // zeros.size
    start = count * zeros.size
    if count:
        parts = flat[0:start].reshape((count, *zeros.shape))
        nl.fori_loop(0, count, lambda number: store(parts[number], zeros))
    rows, rest = divmod(size - start, _CLEARED)
    if rows:
        store(flat[start : size - rest].reshape((rows, _CLEARED)), zeros[0:rows, :])
    if rest:
        store(flat[size - rest : size].reshape((1, rest)), zeros[0:1, 0:rest])


def _block(
    x: NkiTensor,
    dy: NkiTensor,
    matrices: _Matrices,
    tokens: NkiTensor,
    weights: NkiTensor,
    dx: NkiTensor,
    sums: _Matrices,
    dweights: NkiTensor,
) -> None:
    """What one block adds to the gradients."""
    gate, up, down = matrices
    dgate, dup, ddown = sums
    rows, factors = as_columns(tokens), as_columns(weights)
    inputs, outer = gathered(x, rows), gathered(dy, rows)
    turned = side_by_side(inputs), side_by_side(outer)
    pieces = spans(gate.shape[1], BANK_COLUMNS)
    totals = sbuf((PARTITIONS, len(inputs), len(pieces)))
    for number, (start, count) in enumerate(pieces):
        part = slice(start, start + count)
        gates, ups = gate[:, part], up[:, part]
        values, to_gate, to_up = _hidden(*turned, (gates, ups, down[part, :]), factors, totals[:, :, number])
        _add_products(ddown[part, :], values, outer)
        _add_products(dgate[:, part], inputs, to_gate)
        _add_products(dup[:, part], inputs, to_up)
        _add_to_tokens(dx, rows, [*side_by_side(to_gate), *side_by_side(to_up)], (gates, ups))
    dots = sbuf((PARTITIONS, len(inputs)))
    nisa.tensor_reduce(dots, nl.add, totals, axis=2)
    store(dweights.reshape((len(inputs), PARTITIONS)).permute((1, 0)), dots)


def _hidden(
    x: list[NkiTensor], dy: list[NkiTensor], matrices: _Matrices, weights: NkiTensor, totals: NkiTensor
) -> tuple[list[NkiTensor], list[NkiTensor], list[NkiTensor]]:
    """w * A, dG and dU of a part of `intermediate`, as tiles (128 tokens, part); totals gets the sums of A * D.

    x, dy: transposed, as tiles (up to 128 of hidden, tokens).
    """
    gate, up, down = matrices
    dtype, shape = x[0].dtype, (PARTITIONS, gate.shape[1])
    opened, slopes, ups = [], [], []
    for bank in _projected(x, shape, lambda h, n: load_contraction(gate[h : h + n, :])):
        silu, slope = sbuf(shape), sbuf(shape)
        nisa.activation(silu, nl.silu, bank)
        nisa.activation(slope, nl.silu_dx, bank)
        opened.append(silu)
        slopes.append(slope)
    for turn, bank in enumerate(_projected(x, shape, lambda h, n: load_contraction(up[h : h + n, :]))):
        ups.append(sbuf(shape))
        drain(ups[turn], bank, turn)
    values, to_gate, to_up = ([sbuf(shape, dtype) for _ in ups] for _ in range(3))
    for i, bank in enumerate(_projected(dy, shape, lambda h, n: load_transposed(down[:, h : h + n]))):
        w = weights[:, i : i + 1]
        outer, product = sbuf(shape), sbuf(shape)
        nisa.scalar_tensor_tensor(values[i], opened[i], nl.multiply, w, nl.multiply, ups[i])
        nisa.scalar_tensor_tensor(outer, bank, nl.multiply, w, nl.multiply, ups[i])
        nisa.tensor_tensor(to_gate[i], outer, slopes[i], op=nl.multiply, engine=nisa.engine.gpsimd)
        nisa.tensor_tensor(product, bank, opened[i], op=nl.multiply)
        nisa.activation(to_up[i], nl.copy, product, scale=w)
        nisa.tensor_tensor(product, product, ups[i], op=nl.multiply, engine=nisa.engine.gpsimd)
        nisa.activation_reduce(product, nl.copy, product, reduce_op=nl.add, reduce_res=totals[:, i : i + 1])
    return values, to_gate, to_up


def _projected(
    turned: list[NkiTensor], shape: tuple[int, ...], tiles: Callable[[int, int], list[NkiTensor]]
) -> list[NkiTensor]:
    """Products of all tokens with a matrix, which tiles(h, n) loads rows h ... h + n of, for each 128 tokens."""
    hidden = sum(tile.shape[0] for tile in turned)
    banks = [psum(shape) for _ in spans(turned[0].shape[1], PARTITIONS)]
    for h, n in spans(hidden, BANK_COLUMNS):
        _multiply(banks, turned, tiles(h, n), h // PARTITIONS)
    return banks


def _multiply(banks: list[NkiTensor], turned: list[NkiTensor], tiles: list[NkiTensor], first: int) -> None:
    """Adds turned^T @ tiles to the banks, each of which is of 128 columns of `turned`; `first` is the first tile's."""
    for k, tile in enumerate(tiles, first):
        for i, bank in enumerate(banks):
            at = slice(i * PARTITIONS, (i + 1) * PARTITIONS)
            nisa.nc_matmul(bank, turned[k][:, at], tile, accumulate=k > 0)


def _add_products(sums: NkiTensor, left: list[NkiTensor], right: list[NkiTensor]) -> None:
    """Adds left^T @ right, contracted over tokens, to a matrix in HBM."""
    rows, columns = sums.shape
    turn = 0
    for m, p in spans(rows, PARTITIONS):
        for n, count in spans(columns, BANK_COLUMNS):
            bank, tile = psum((p, count)), sbuf((p, count))
            for i, (stationary, moving) in enumerate(zip(left, right, strict=True)):
                nisa.nc_matmul(bank, stationary[:, m : m + p], moving[:, n : n + count], accumulate=i > 0)
            drain(tile, bank, turn)
            place = sums[m : m + p, n : n + count]
            nisa.dma_compute(place, [place, tile], reduce_op=nl.add)
            turn += 1


def _add_to_tokens(
    dx: NkiTensor, rows: NkiTensor, turned: list[NkiTensor], matrices: tuple[NkiTensor, NkiTensor]
) -> None:
    """Adds dG @ gate^T + dU @ up^T to the rows of the tokens; `turned` has dG and dU, transposed, as one list."""
    for h, count in spans(dx.shape[1], BANK_COLUMNS):
        banks = [psum((PARTITIONS, count)) for _ in range(rows.shape[1])]
        tiles = [tile for matrix in matrices for tile in load_transposed(matrix[h : h + count, :])]
        _multiply(banks, turned, tiles, 0)
        for i, bank in enumerate(banks):
            tile = sbuf((PARTITIONS, count))
            drain(tile, bank, i)
            place = dx.vector_select(0, rows[:, i : i + 1])[:, h : h + count]
            nisa.dma_compute(place, [place, tile], reduce_op=nl.add, oob_mode=nisa.oob_mode.skip)
