"""A layer of experts: each token through the few that its router chose."""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl
from nki.isa import NkiScalar
from nki.tensor import NkiTensor

from .tiling import BANK_COLUMNS, PARTITIONS, load, load_contraction, psum, sbuf, spans, store

__all__ = ["MAX_HIDDEN_BYTES", "as_columns", "gathered", "moe_kernel", "side_by_side", "tokens_that_fit"]

# Bytes per partition that the hidden activations of a block of tokens may take, and all that a block keeps on chip
# beside the weights.
MAX_HIDDEN_BYTES, MAX_BLOCK_BYTES = 65536, 131072

# Bytes per partition of each piece of the weights.
_WEIGHT_BYTES = 32768


def tokens_that_fit(hidden: int, intermediate: int, itemsize: int) -> int:
    """Tokens of a block that fit on chip: gathered and transposed, or as activations with fp32 results."""
    activations = -(-intermediate // PARTITIONS) * itemsize
    others = -(-hidden // PARTITIONS) * max(2 * itemsize, 4)
    return min(MAX_HIDDEN_BYTES // activations, MAX_BLOCK_BYTES // (activations + others))


@nki.jit
def moe_kernel(
    x: NkiTensor,
    gate: NkiTensor,
    up: NkiTensor,
    down: NkiTensor,
    tokens: NkiTensor,
    weights: NkiTensor,
    experts: NkiTensor,
    used: NkiTensor,
) -> NkiTensor:
    """`y[t] = sum of w * (silu(x[t] @ gate[e]) * (x[t] @ up[e])) @ down[e]` over the experts e of token t.

    The tokens come sorted into blocks of the same expert; :func:`nkilib.moe` sorts them.

    Args:
        x: (tokens, hidden) of bf16, fp16 or fp32.
        gate, up: (experts, hidden, intermediate), as `x`.
        down: (experts, intermediate, hidden), as `x`.
        tokens: (blocks, size) in int32, the tokens of each block, none of them twice; what is no number of a token is
            an empty place. size is a multiple of 128, up to 512.
        weights: (blocks, size) in fp32.
        experts: (blocks, 1) in int32, the expert of each block.
        used: (1, 1) in int32, the number of blocks that have tokens: the rest is left out.

    Returns:
        As `x`. Products and sums in fp32; what the two halves of an expert hand over is rounded to the type of `x`.

    Limits: intermediate / 128 * size elements of `x` take at most 64 KiB.

    A loop that the hardware runs, whose body is one block: DMA gathers the tokens by their numbers and the weights by
    the expert's. Tokens are transposed, so that the weights of the first half can stand still ([128 of hidden, 128 of
    intermediate]) while up to 512 tokens move past; the hidden activations come out with `intermediate` on the
    partitions, which is how the second half contracts them. DMA adds the weighted rows to those of other experts, in
    HBM, in fp32. Modelled time: with few tokens per expert bound by the weights' DMA, else by the Tensor engine.
    """
    count, hidden = x.shape
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    sums = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.private_hbm)
    zeros = sbuf((min(count, PARTITIONS), hidden))
    nisa.memset(zeros, 0.0)
    for start, p in spans(count, PARTITIONS):
        store(sums[start : start + p, :], zeros[0:p, :])

    def body(block: NkiScalar) -> None:
        _block(x, (gate, up, down), tokens[block], weights[block], load(experts[block].reshape((1, 1))), sums)

    nl.fori_loop(0, nisa.scalar_load(load(used)), body)
    for start, p in spans(count, PARTITIONS):
        rounded = sbuf((p, hidden), x.dtype)
        nisa.tensor_copy(rounded, load(sums[start : start + p, :]))
        store(y[start : start + p, :], rounded)
    return y


def as_columns(source: NkiTensor) -> NkiTensor:
    """A vector in HBM of a multiple of 128 elements: element 128 * c + p at [p, c]."""
    return load(source.reshape((source.size // PARTITIONS, PARTITIONS)).permute((1, 0)))


def _block(
    x: NkiTensor,
    matrices: tuple[NkiTensor, ...],
    tokens: NkiTensor,
    weights: NkiTensor,
    expert: NkiTensor,
    sums: NkiTensor,
) -> None:
    """What one expert adds to the sums of the tokens of one block."""
    gate, up, down = (m.select(0, expert) for m in matrices)
    rows = as_columns(tokens)
    activations = _first_half(side_by_side(gathered(x, rows)), gate, up)
    _second_half(activations, down, rows, as_columns(weights), sums)


def gathered(x: NkiTensor, rows: NkiTensor) -> list[NkiTensor]:
    """Rows of a matrix in HBM by their numbers in (128, columns), as a tile for each column; zeros where none is."""
    tiles = []
    for column in range(rows.shape[1]):
        tile = sbuf((PARTITIONS, x.shape[1]), x.dtype)
        # trn1 transposes by a product, which would spread a NaN of an empty place to all tokens.
        nisa.memset(tile, 0.0)
        source = x.vector_select(0, rows[:, column : column + 1])
        nisa.dma_copy(dst=tile, src=source, oob_mode=nisa.oob_mode.skip)
        tiles.append(tile)
    return tiles


def side_by_side(tiles: list[NkiTensor]) -> list[NkiTensor]:
    """Tiles (128, hidden) of tokens as tiles (up to 128 of hidden, all tokens)."""
    hidden, dtype = tiles[0].shape[1], tiles[0].dtype
    result = []
    for start, p in spans(hidden, PARTITIONS):
        bank = psum((p, len(tiles) * PARTITIONS), dtype)
        for i, tile in enumerate(tiles):
            at = slice(i * PARTITIONS, (i + 1) * PARTITIONS)
            nisa.nc_transpose(bank[:, at], tile[:, start : start + p], engine=nisa.engine.tensor)
        turned = sbuf(bank.shape, dtype)
        nisa.tensor_copy(turned, bank)
        result.append(turned)
    return result


def _first_half(x: list[NkiTensor], gate: NkiTensor, up: NkiTensor) -> list[NkiTensor]:
    """silu(x @ gate) * (x @ up) as tiles (up to 128 of intermediate, tokens)."""
    hidden, intermediate = gate.shape
    size, dtype = x[0].shape[1], x[0].dtype
    step = _WEIGHT_BYTES // (-(-hidden // PARTITIONS) * dtype.itemsize)
    result = []
    for start, count in spans(intermediate, max(PARTITIONS, step // PARTITIONS * PARTITIONS)):
        pieces = [load_contraction(m[:, start : start + count]) for m in (gate, up)]
        for i, p in spans(count, PARTITIONS):
            gates, ups = psum((p, size)), psum((p, size))
            for product, matrix in zip((gates, ups), pieces, strict=True):
                for k, (weight, moving) in enumerate(zip(matrix, x, strict=True)):
                    nisa.nc_matmul(product, weight[:, i : i + p], moving, accumulate=k > 0)
            silu = sbuf((p, size))
            nisa.activation(silu, nl.silu, gates)
            activations = sbuf((p, size), dtype)
            nisa.tensor_tensor(activations, ups, silu, op=nl.multiply)
            result.append(activations)
    return result


def _second_half(
    activations: list[NkiTensor], down: NkiTensor, rows: NkiTensor, weights: NkiTensor, sums: NkiTensor
) -> None:
    """Adds weights * (activations @ down) to the rows of the sums."""
    intermediate, hidden = down.shape
    size = activations[0].shape[1]
    step = _WEIGHT_BYTES // (BANK_COLUMNS * down.dtype.itemsize) * PARTITIONS
    results = [sbuf((PARTITIONS, hidden)) for _ in range(size // PARTITIONS)]
    for h, columns in spans(hidden, BANK_COLUMNS):
        products = [psum((PARTITIONS, columns)) for _ in results]
        for start, count in spans(intermediate, step):
            for k, weight in enumerate(load_contraction(down[start : start + count, h : h + columns])):
                tile = activations[start // PARTITIONS + k]
                for i, product in enumerate(products):
                    at = slice(i * PARTITIONS, (i + 1) * PARTITIONS)
                    nisa.nc_matmul(product, tile[:, at], weight, accumulate=start + k > 0)
        for i, (product, result) in enumerate(zip(products, results, strict=True)):
            nisa.activation(result[:, h : h + columns], nl.copy, product, scale=weights[:, i : i + 1])
    for i, result in enumerate(results):
        place = sums.vector_select(0, rows[:, i : i + 1])
        nisa.dma_compute(place, [place, result], reduce_op=nl.add, oob_mode=nisa.oob_mode.skip)
