"""Rotary position embedding."""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl
from nki.tensor import NkiTensor

from .tiling import PARTITIONS, load, sbuf, spans, store

__all__ = ["rope_kernel"]

# Elements of 128 tokens' heads that are rotated at a time.
_WIDTH = 4096


@nki.jit
def rope_kernel(
    x: NkiTensor,
    cos: NkiTensor,
    sin: NkiTensor,
    heads_first: bool = False,
    interleaved: bool = False,
    inverse: bool = False,
) -> NkiTensor:
    """Turns pairs (u, v) of each head by the token's angles: `(u cos - v sin, v cos + u sin)`, in fp32, rounded once.

    Args:
        x: (batch, tokens, heads, d), or (batch, heads, tokens, d) with `heads_first`; bf16, fp16 or fp32, d even.
        cos, sin: (tokens, d / 2), or (batch, tokens, d / 2) where positions differ; fp32 or the type of `x`.
        interleaved: pairs are neighbours, elements 2 i and 2 i + 1; otherwise they are elements i and i + d / 2.
        inverse: turns back, which is what the gradient needs.

    Returns:
        As `x`.

    128 tokens at a time, one per partition, with all heads next to each other; the angles of a token serve all its
    heads by a stride of 0. Four products and two sums over half of the elements, two of the products on GpSimd: Vector
    bound on trn2.
    With `heads_first` each head of a token is a transfer element of its own, d elements long.
    """
    batch = x.shape[0]
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for b in range(batch):
        source, target = (t[b].permute((1, 0, 2)) if heads_first else t[b] for t in (x, y))
        tokens, heads, d = source.shape
        for start, p in spans(tokens, PARTITIONS):
            angles = [
                load(t[start : start + p, :] if len(t.shape) == 2 else t[b, start : start + p, :]) for t in (cos, sin)
            ]
            for h0, h in spans(heads, max(1, _WIDTH // d)):
                tile = load(source[start : start + p, h0 : h0 + h, :])
                result = sbuf((p, h, d), x.dtype)
                c, s = (t.expand_dim(1).broadcast(1, h) for t in angles)
                u, v = _pairs(tile, interleaved)
                to_u, to_v = _pairs(result, interleaved)
                _combine(to_u, u, c, v, s, nl.add if inverse else nl.subtract)
                _combine(to_v, v, c, u, s, nl.subtract if inverse else nl.add)
                store(target[start : start + p, h0 : h0 + h, :], result)
    return y


def _pairs(tile: NkiTensor, interleaved: bool) -> tuple[NkiTensor, NkiTensor]:
    """First and second elements of the pairs of a tile (tokens, heads, d)."""
    d = tile.shape[2]
    if interleaved:
        return tile[:, :, 0:d:2], tile[:, :, 1:d:2]
    return tile[:, :, 0 : d // 2], tile[:, :, d // 2 : d]


def _combine(target: NkiTensor, a: NkiTensor, by_a: NkiTensor, b: NkiTensor, by_b: NkiTensor, op: object) -> None:
    """`target = a * by_a <op> b * by_b`."""
    first, second = sbuf(a.shape), sbuf(b.shape)
    nisa.tensor_tensor(first, a, by_a, op=nl.multiply)
    nisa.tensor_tensor(second, b, by_b, op=nl.multiply, engine=nisa.engine.gpsimd)
    nisa.tensor_tensor(target, first, second, op=op)
