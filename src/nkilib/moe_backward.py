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

# Bytes per partition that the inputs and gradients of the tokens of a block should take. What is computed from them has
# up to 80 KiB more.
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

    Limits: hidden / 128 * size elements of `x`, twice, and some 80 KiB have to fit into a partition of SBUF.

    One round of a hardware loop is one block. Its tokens and their gradients stay in SBUF, transposed, while up to 512
    of `intermediate` at a time are computed anew. Those come out with tokens on the partitions: that is where gradients
    of the weights contract, and where w is one number for each partition. As the other factor of those, DMA gathers the
    tokens again, 512 of `hidden` at a time. The three weights are transposed once for each block, which takes
    3 * 128 / (8 * size) of the Tensor engine's time for the products. DMA adds what a block gives to the sums in HBM,
    so that blocks of one expert need not be neighbours: 24 bytes for each of hidden * intermediate, and 5 elements of
    weights, against 16 * size operations. Modelled on trn2 in bf16, that keeps DMA and the Tensor engine busy for about
    as long with 512 tokens in a block; with fewer it is bound by DMA.
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
    groups = rows.shape[1]
    widths, pieces = spans(x.shape[1], BANK_COLUMNS), spans(gate.shape[1], BANK_COLUMNS)
    x_turned, dy_turned = (
        [tile for h, n in widths for tile in side_by_side(gathered(source[:, h : h + n], rows))] for source in (x, dy)
    )
    totals = sbuf((PARTITIONS, groups, len(pieces)))
    for number, (start, count) in enumerate(pieces):
        part = slice(start, start + count)
        gates, ups = gate[:, part], up[:, part]
        matrices = (gates, ups, down[part, :])
        values, to_gate, to_up = _hidden(x_turned, dy_turned, matrices, factors, totals[:, :, number])
        hidden = [*side_by_side(to_gate), *side_by_side(to_up)]
        for h, n in widths:
            width = slice(h, h + n)
            inputs = gathered(x[:, width], rows)
            _add_products(ddown[part, width], values, gathered(dy[:, width], rows))
            _add_products(dgate[width, part], inputs, to_gate)
            _add_products(dup[width, part], inputs, to_up)
            _add_to_tokens(dx[:, width], rows, hidden, (gates[width, :], ups[width, :]))
    dots = sbuf((PARTITIONS, groups))
    nisa.tensor_reduce(dots, nl.add, totals, axis=2)
    store(dweights.reshape((groups, PARTITIONS)).permute((1, 0)), dots)


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
    """Adds left^T @ right, contracted over tokens, to up to 512 columns of a matrix in HBM."""
    rows, columns = sums.shape
    for turn, (start, p) in enumerate(spans(rows, PARTITIONS)):
        bank, tile = psum((p, columns)), sbuf((p, columns))
        for i, (stationary, moving) in enumerate(zip(left, right, strict=True)):
            nisa.nc_matmul(bank, stationary[:, start : start + p], moving, accumulate=i > 0)
        drain(tile, bank, turn)
        place = sums[start : start + p, :]
        nisa.dma_compute(place, [place, tile], reduce_op=nl.add)


def _add_to_tokens(
    dx: NkiTensor, rows: NkiTensor, turned: list[NkiTensor], matrices: tuple[NkiTensor, NkiTensor]
) -> None:
    """Adds dG @ gate^T + dU @ up^T to up to 512 columns of the tokens' rows.

    turned: dG and dU, transposed, as one list.
    """
    banks = [psum((PARTITIONS, dx.shape[1])) for _ in range(rows.shape[1])]
    _multiply(banks, turned, [tile for matrix in matrices for tile in load_transposed(matrix)], 0)
    for i, bank in enumerate(banks):
        tile = sbuf(bank.shape)
        drain(tile, bank, i)
        place = dx.vector_select(0, rows[:, i : i + 1])
        nisa.dma_compute(place, [place, tile], reduce_op=nl.add, oob_mode=nisa.oob_mode.skip)
