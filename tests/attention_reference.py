"""Attention the plain way: all scores in memory, modified by what FlexAttention is given, on the CPU in fp32."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

Mod = Callable[..., Tensor]


@dataclass(frozen=True)
class Mods:
    """What changes scores: functions of the tensors that they capture, which give the functions that PyTorch wants."""

    score: Callable[..., Mod] | None = None
    mask: Callable[..., Mod] | None = None
    captured: Sequence[Tensor] = ()

    def score_mod(self, device: torch.device | str) -> Mod | None:
        return self.score(*(c.to(device) for c in self.captured)) if self.score else None

    def mask_mod(self, device: torch.device | str) -> Mod | None:
        return self.mask(*(c.to(device) for c in self.captured)) if self.mask else None

    def block_mask(self, q: Tensor, k: Tensor, block: int | tuple[int, int] = 128) -> BlockMask | None:
        mask_mod = self.mask_mod(q.device)
        if mask_mod is None:
            return None
        sizes = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        return create_block_mask(mask_mod, *sizes, device=str(q.device), BLOCK_SIZE=block)


CAUSAL = Mods(mask=lambda: lambda b, h, q, k: q >= k)
SOFT_CAP = Mods(score=lambda: lambda s, b, h, q, k: torch.tanh(s / 2) * 2)


def sliding_window(width: int) -> Mods:
    return Mods(mask=lambda: lambda b, h, q, k: (q >= k) & (q - k < width))


def prefix(lengths: Tensor) -> Mods:
    return Mods(mask=lambda lengths: lambda b, h, q, k: (k < lengths[b]) | (q >= k), captured=[lengths])


def documents(ids: Tensor) -> Mods:
    return Mods(mask=lambda ids: lambda b, h, q, k: (ids[q] == ids[k]) & (q >= k), captured=[ids])


def alibi(heads: int) -> Mods:
    slopes = torch.exp2(-8 * torch.arange(1, heads + 1) / heads)
    return Mods(score=lambda slopes: lambda s, b, h, q, k: s + slopes[h] * (k - q), captured=[slopes])


def dense_attention(q: Tensor, k: Tensor, v: Tensor, mods: Mods, scale: float | None = None) -> tuple[Tensor, Tensor]:
    """The output in fp32, and the logsumexp."""
    return dense(q, k, v, mods.score_mod("cpu"), mods.mask_mod("cpu"), scale)


def dense(
    q: Tensor, k: Tensor, v: Tensor, score_mod: Mod | None, mask_mod: Mod | None, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """The same for functions that are on the CPU already."""
    q, k, v = q.float(), k.float(), v.float()
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(-1, -2) * (scale or 1 / math.sqrt(q.shape[-1]))
    shape = scores.shape
    at = [torch.arange(n).view([-1 if d == k else 1 for k in range(4)]) for d, n in enumerate(shape)]
    if score_mod is not None:
        scores = score_mod(scores, *at)
    if mask_mod is not None:
        scores = scores.masked_fill(~mask_mod(*at).expand(shape), -math.inf)
    logsumexp = scores.logsumexp(-1)
    beside = logsumexp.masked_fill(logsumexp == -math.inf, 0)
    return torch.exp(scores - beside[..., None]) @ v, logsumexp


def flex(
    q: Tensor, k: Tensor, v: Tensor, mods: Mods, block: int | tuple[int, int] = 128, **options: Any
) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    """A function of query, key and value that gives output and logsumexp; ready to be compiled."""
    score_mod, block_mask = mods.score_mod(q.device), mods.block_mask(q, k, block)
    gqa = q.shape[1] != k.shape[1]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        out, aux = flex_attention(
            q, k, v, score_mod, block_mask, enable_gqa=gqa, return_aux=AuxRequest(lse=True), **options
        )
        assert aux.lse is not None
        return out, aux.lse

    return attend
