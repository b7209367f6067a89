"""Small models of the families that people compile: each with the arithmetic and the control flow of its kind.

`MODELS[name]()` gives a module and its arguments, on the CPU. All are ours, written from the papers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY, WIDTH, HEADS, LENGTH = 50, 32, 4, 12


def tokens(*shape: int) -> Tensor:
    return torch.randint(0, VOCABULARY, shape or (2, LENGTH))


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class MLP(nn.Module):
    def __init__(self, width: int, activation: Callable[[Tensor], Tensor] = F.gelu) -> None:
        super().__init__()
        self.up, self.down, self.activation = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), activation

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))


class Attention(nn.Module):
    """Multi-head attention; `cross` reads keys and values from elsewhere."""

    def __init__(self, width: int = WIDTH, heads: int = HEADS, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: Tensor, cross: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        source = x if cross is None else cross
        q, k, v = self.split(self.q(x)), self.split(self.k(source)), self.split(self.v(source))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A transformer block: norms before (`pre`) or after, with attention to an encoder or without."""

    def __init__(self, causal: bool = False, pre: bool = True, cross: bool = False, width: int = WIDTH) -> None:
        super().__init__()
        self.attention, self.mlp, self.pre = Attention(width, causal=causal), MLP(width), pre
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3 if cross else 2))
        self.cross = Attention(width) if cross else None

    def forward(self, x: Tensor, memory: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        if not self.pre:
            x = self.norms[0](x + self.attention(x, mask=mask))
            return self.norms[1](x + self.mlp(x))
        x = x + self.attention(self.norms[0](x), mask=mask)
        if self.cross is not None:
            x = x + self.cross(self.norms[2](x), memory)
        return x + self.mlp(self.norms[1](x))


# -- Language ----------------------------------------------------------------------------------------------------------


class GPT2(nn.Module):
    """Attention written out, one projection for q, k and v, tanh-GELU, a tied head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.mlp = nn.ModuleList(MLP(WIDTH, nn.GELU(approximate="tanh")) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(5))
        self.register_buffer("causal", torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril())

    def forward(self, ids: Tensor) -> Tensor:
        t = ids.shape[1]
        x = self.embed(ids) + self.position(torch.arange(t, device=ids.device))
        for k in range(2):
            q, key, v = (
                p.unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in self.qkv[k](self.norms[2 * k](x)).chunk(3, -1)
            )
            scores = q @ key.transpose(-2, -1) / math.sqrt(q.shape[-1])
            weights = scores.masked_fill(~self.causal[:t, :t], float("-inf")).softmax(-1)
            x = x + self.out[k]((weights @ v).transpose(1, 2).flatten(2))
            x = x + self.mlp[k](self.norms[2 * k + 1](x))
        return self.norms[4](x) @ self.embed.weight.t()


def rotary(x: Tensor, theta: float = 10000.0) -> Tensor:
    """Position t turns the pair (i, i + d/2) by t * theta^(-2i/d)."""
    t, d = x.shape[-2:]
    rates = theta ** (-torch.arange(0, d, 2, device=x.device, dtype=torch.float32) / d)
    angles = torch.outer(torch.arange(t, device=x.device, dtype=torch.float32), rates)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class LlamaBlock(nn.Module):
    """Rotary positions, fewer heads for keys than for queries, SwiGLU or what `mlp` is."""

    def __init__(self, mlp: nn.Module | None = None) -> None:
        super().__init__()
        head = WIDTH // HEADS
        self.q, self.k, self.v = (
            nn.Linear(WIDTH, WIDTH, False),
            nn.Linear(WIDTH, 2 * head, False),
            nn.Linear(WIDTH, 2 * head, False),
        )
        self.out = nn.Linear(WIDTH, WIDTH, False)
        self.norms = nn.ModuleList(RMSNorm(WIDTH) for _ in range(2))
        self.mlp = mlp or SwiGLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[0](x)
        q, k, v = (p(y).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for p in (self.q, self.k, self.v))
        k, v = (t.repeat_interleave(HEADS // 2, dim=1) for t in (rotary(k), v))
        y = F.scaled_dot_product_attention(rotary(q), k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


class SwiGLU(nn.Module):
    def __init__(self, width: int = WIDTH, inner: int = 2 * WIDTH) -> None:
        super().__init__()
        self.gate, self.up, self.down = (
            nn.Linear(a, b, False) for a, b in ((width, inner), (width, inner), (inner, width))
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class MixtureOfExperts(nn.Module):
    """Each token goes to two of four experts; all see all tokens, with weight zero where they were not chosen."""

    def __init__(self, experts: int = 4, chosen: int = 2) -> None:
        super().__init__()
        self.router, self.chosen = nn.Linear(WIDTH, experts, False), chosen
        self.experts = nn.ModuleList(SwiGLU() for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(self.chosen, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        every = torch.zeros(*x.shape[:-1], len(self.experts), dtype=x.dtype, device=x.device).scatter(
            -1, chosen, weights
        )
        return sum(every[..., k : k + 1] * expert(x) for k, expert in enumerate(self.experts))


class Llama(nn.Module):
    def __init__(self, mlp: Callable[[], nn.Module | None] = lambda: None) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY, False)
        self.blocks = nn.ModuleList(LlamaBlock(mlp()) for _ in range(2))
        self.norm = RMSNorm(WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class BERT(nn.Module):
    """Norms after, token types, a padding mask, a pooled first token and a masked-word head."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.kind, self.position = (nn.Embedding(n, WIDTH) for n in (VOCABULARY, 2, LENGTH))
        self.norm, self.blocks = nn.LayerNorm(WIDTH), nn.ModuleList(Block(pre=False) for _ in range(2))
        self.pooler, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor, types: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.norm(self.word(ids) + self.kind(types) + self.position(positions))
        mask = (positions < lengths[:, None])[:, None, None, :]
        for block in self.blocks:
            x = block(x, mask=mask)
        return self.head(F.gelu(x)), torch.tanh(self.pooler(x[:, 0]))


class T5Attention(nn.Module):
    """No scale, no biases, and a learned bias per bucket of distance."""

    def __init__(self, causal: bool, relative: bool) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, False) for _ in range(4))
        self.causal, self.buckets = causal, nn.Embedding(8, HEADS) if relative else None

    def bias(self, rows: int, columns: int, device: torch.device) -> Tensor:
        distance = torch.arange(columns, device=device) - torch.arange(rows, device=device)[:, None]
        if self.causal:
            bucket, number = (-distance).clamp(min=0), 8
            offset: Any = 0
        else:
            bucket, number = distance.abs(), 4
            offset = (distance > 0) * 4
        exact = number // 2
        far = exact + (torch.log(bucket.clamp(min=1) / exact) / math.log(16 / exact) * (number - exact)).long()
        bucket = offset + torch.where(bucket < exact, bucket, far.clamp(max=number - 1))
        assert self.buckets is not None
        bias = self.buckets(bucket).permute(2, 0, 1)
        return bias.masked_fill(distance > 0, -1e9) if self.causal else bias

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        source = x if memory is None else memory
        q, k, v = (
            p(t).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for p, t in ((self.q, x), (self.k, source), (self.v, source))
        )
        scores = q @ k.transpose(-1, -2)
        if self.buckets is not None:
            scores = scores + self.bias(x.shape[1], source.shape[1], x.device)
        return self.out((scores.float().softmax(-1).to(x.dtype) @ v).transpose(1, 2).flatten(2))


class T5(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.encoder = nn.ModuleList([T5Attention(False, True), SwiGLU()])
        self.decoder = nn.ModuleList([T5Attention(True, True), T5Attention(False, False), SwiGLU()])
        self.norms = nn.ModuleList(RMSNorm(WIDTH) for _ in range(7))

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer, norm in zip(self.encoder, self.norms[:2], strict=True):
            x = x + layer(norm(x))
        memory = self.norms[2](x)
        y = self.embed(targets)
        attend, cross, mlp = self.decoder
        y = y + attend(self.norms[3](y))
        y = y + cross(self.norms[4](y), memory)
        y = y + mlp(self.norms[5](y))
        return self.norms[6](y) @ self.embed.weight.t() * WIDTH**-0.5


class Mamba(nn.Module):
    """Selective state spaces, the scan step by step."""

    def __init__(self, inner: int = 24, state: int = 4, rank: int = 3) -> None:
        super().__init__()
        self.sizes = (rank, state, state)
        self.embed, self.norm = nn.Embedding(VOCABULARY, WIDTH), RMSNorm(WIDTH)
        self.into, self.out = nn.Linear(WIDTH, 2 * inner, False), nn.Linear(inner, WIDTH, False)
        self.conv = nn.Conv1d(inner, inner, 4, padding=3, groups=inner)
        self.project, self.step = nn.Linear(inner, rank + 2 * state, False), nn.Linear(rank, inner)
        self.log_a = nn.Parameter(torch.arange(1.0, state + 1).log().repeat(inner, 1))
        self.skip = nn.Parameter(torch.ones(inner))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        y, gate = self.into(self.norm(x)).chunk(2, -1)
        y = F.silu(self.conv(y.transpose(1, 2))[..., : ids.shape[1]].transpose(1, 2))
        raw, b, c = self.project(y).split(self.sizes, -1)
        delta = F.softplus(self.step(raw))
        decay = torch.exp(delta.unsqueeze(-1) * -torch.exp(self.log_a))
        drive = (delta * y).unsqueeze(-1) * b.unsqueeze(2)
        h, outputs = torch.zeros_like(drive[:, 0]), []
        for t in range(ids.shape[1]):
            h = decay[:, t] * h + drive[:, t]
            outputs.append((h * c[:, t].unsqueeze(1)).sum(-1))
        y = torch.stack(outputs, 1) + y * self.skip
        return (x + self.out(y * F.silu(gate))) @ self.embed.weight.t()


class LSTM(nn.Module):
    """Two layers of gates written out."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, width), nn.Linear(width, VOCABULARY)
        self.cells = nn.ModuleList(
            nn.ModuleList([nn.Linear(width, 4 * width), nn.Linear(width, 4 * width)]) for _ in range(2)
        )

    def forward(self, ids: Tensor) -> Tensor:
        xs = self.embed(ids)
        for x_to_gates, h_to_gates in self.cells:
            h = c = torch.zeros_like(xs[:, 0])
            outputs = []
            for x in x_to_gates(xs).unbind(1):
                i, f, g, o = (x + h_to_gates(h)).chunk(4, -1)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                h = o.sigmoid() * c.tanh()
                outputs.append(h)
            xs = torch.stack(outputs, 1)
        return self.head(xs)


# -- Vision ------------------------------------------------------------------------------------------------------------


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, stride=4)
        self.first = nn.Parameter(torch.randn(1, 1, WIDTH) * 0.02)
        self.position = nn.Parameter(torch.randn(1, 17, WIDTH) * 0.02)
        self.blocks, self.norm, self.head = (
            nn.ModuleList(Block() for _ in range(2)),
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class Residual(nn.Module):
    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Conv2d(into, out, 3, stride, 1, bias=False),
            nn.Conv2d(out, out, 3, 1, 1, bias=False),
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(out) for _ in range(2))
        self.short = (
            nn.Sequential(nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out))
            if stride > 1
            else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[1](self.second(F.relu(self.norms[0](self.first(x)))))
        return F.relu(y + self.short(x))


def resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 7, 2, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        Residual(8, 8, 1),
        Residual(8, 16, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )


class ConvNeXtBlock(nn.Module):
    """A wide depthwise convolution, a norm over channels, a scaled residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depth, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
        self.mlp, self.gamma = MLP(width), nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depth(x).permute(0, 2, 3, 1))
        return x + (self.gamma * self.mlp(y)).permute(0, 3, 1, 2)


def convnext() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 4, 4),
        nn.GroupNorm(1, 16),
        ConvNeXtBlock(16),
        nn.Conv2d(16, 24, 2, 2),
        ConvNeXtBlock(24),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.LayerNorm(24),
        nn.Linear(24, 10),
    )


class UNet(nn.Module):
    """Two levels, a time embedding, group norms, concatenated skips, nearest-neighbour upsampling."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, width), nn.SiLU(), nn.Linear(width, 2 * width))
        self.into, self.down = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 2 * width, 3, 2, 1)
        self.middle = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.up, self.out = nn.Conv2d(3 * width, width, 3, padding=1), nn.Conv2d(width, 3, 1)
        self.norms = nn.ModuleList(nn.GroupNorm(4, n) for n in (width, 2 * width, 2 * width, width))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        rates = torch.exp(-math.log(1000) * torch.arange(8, device=x.device) / 8)
        angles = t[:, None] * rates
        time = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        first = F.silu(self.norms[0](self.into(x)))
        low = F.silu(self.norms[1](self.down(first))) + time[:, :, None, None]
        low = low + F.silu(self.norms[2](self.middle(low)))
        joined = torch.cat([F.interpolate(low, scale_factor=2.0, mode="nearest"), first], 1)
        return self.out(F.silu(self.norms[3](self.up(joined))))


class VAE(nn.Module):
    def __init__(self, code: int = 4) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 8, 4, 2, 1), nn.LeakyReLU(0.1), nn.Conv2d(8, 2 * code, 4, 2, 1), nn.Flatten()
        )
        self.decoder = nn.Sequential(
            nn.Unflatten(1, (code, 4, 4)),
            nn.ConvTranspose2d(code, 8, 4, 2, 1),
            nn.ELU(),
            nn.ConvTranspose2d(8, 3, 4, 2, 1),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, 1)
        code = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        return torch.sigmoid(self.decoder(code)), divergence


# -- Several senses ----------------------------------------------------------------------------------------------------


class Whisper(nn.Module):
    """Convolutions over a spectrogram, fixed sinusoids, a decoder with attention to the encoder."""

    def __init__(self, bands: int = 10, frames: int = 20) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(bands, WIDTH, 3, padding=1), nn.Conv1d(WIDTH, WIDTH, 3, stride=2, padding=1)
        rates = torch.exp(-math.log(10000) * torch.arange(WIDTH // 2) / (WIDTH // 2 - 1))
        angles = torch.arange(frames // 2)[:, None] * rates
        self.register_buffer("position", torch.cat([angles.sin(), angles.cos()], 1))
        self.encoder, self.decoder = Block(), Block(causal=True, cross=True)
        self.embed, self.place = nn.Embedding(VOCABULARY, WIDTH), nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))

    def forward(self, sound: Tensor, ids: Tensor) -> Tensor:
        x = F.gelu(self.second(F.gelu(self.first(sound)))).permute(0, 2, 1) + self.position
        memory = self.norms[0](self.encoder(x))
        y = self.decoder(self.embed(ids) + self.place[: ids.shape[1]], memory)
        return self.norms[1](y) @ self.embed.weight.t()


class CLIP(nn.Module):
    """Two towers; the text's code is taken at its last token; scores of all pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = ViT(), nn.Embedding(VOCABULARY, WIDTH)
        self.image.head = nn.Identity()
        self.block, self.norm = Block(causal=True), nn.LayerNorm(WIDTH)
        self.from_image, self.from_text = nn.Linear(WIDTH, 16, False), nn.Linear(WIDTH, 16, False)
        self.scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, images: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        a = F.normalize(self.from_image(self.image(images)), dim=-1)
        y = self.norm(self.block(self.text(ids)))
        b = F.normalize(self.from_text(y[torch.arange(len(y), device=y.device), ids.argmax(-1)]), dim=-1)
        scores = self.scale.exp() * a @ b.t()
        return scores, scores.t()


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "GPT-2": lambda: (GPT2(), (tokens(),)),
    "Llama": lambda: (Llama(), (tokens(),)),
    "Mixtral": lambda: (Llama(MixtureOfExperts), (tokens(),)),
    "BERT": lambda: (BERT(), (tokens(), torch.randint(0, 2, (2, LENGTH)), torch.tensor([LENGTH, 7]))),
    "T5": lambda: (T5(), (tokens(), tokens(2, 8))),
    "ViT": lambda: (ViT(), (torch.randn(2, 3, 16, 16),)),
    "ResNet": lambda: (resnet(), (torch.randn(4, 3, 32, 32),)),
    "ConvNeXt": lambda: (convnext(), (torch.randn(2, 3, 32, 32),)),
    "UNet": lambda: (UNet(), (torch.randn(2, 3, 16, 16), torch.tensor([3.0, 500.0]))),
    "Mamba": lambda: (Mamba(), (tokens(),)),
    "LSTM": lambda: (LSTM(), (tokens(2, 6),)),
    "Whisper": lambda: (Whisper(), (torch.randn(2, 10, 20), tokens())),
    "CLIP": lambda: (CLIP(), (torch.randn(3, 3, 16, 16), tokens(3, LENGTH))),
    "VAE": lambda: (VAE(), (torch.rand(2, 3, 16, 16),)),
}
