"""A small byte-level GPT: plain PyTorch, nothing in it knows which device it runs on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class GPTConfig:
    """Sizes of the model; the defaults make 3.2 million parameters."""

    context: int = 128
    layers: int = 4
    heads: int = 4
    width: int = 256
    vocabulary: int = 256  # one token per byte: no tokenizer to train or to download


class Attention(nn.Module):
    """Causal multi-head self-attention, (batch, length, width) to the same shape."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        # (batch, length, 3, heads, head width) -> three of (batch, heads, length, head width)
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.mlp_norm = nn.LayerNorm(config.width)
        self.up = nn.Linear(config.width, 4 * config.width, bias=False)
        self.down = nn.Linear(4 * config.width, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x))))


class GPT(nn.Module):
    """Maps byte values, int64 (batch, length <= context), to logits of the next byte, (batch, length, vocabulary)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.token = nn.Embedding(config.vocabulary, config.width)
        self.position = nn.Embedding(config.context, config.width)
        self.blocks = nn.Sequential(*(Block(config) for _ in range(config.layers)))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.head.weight = self.token.weight

        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                continue  # the norms start as they are, at scale 1 and shift 0
            # Each layer adds twice to the residual stream: scaled down so that its variance does not grow with depth.
            adds = name.endswith(("attention.out.weight", "down.weight"))
            nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * config.layers) if adds else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))

    @torch.no_grad()
    def generate(self, tokens: Tensor, count: int, temperature: float = 0.8) -> Tensor:
        """Append `count` sampled bytes to `tokens`, int64 (batch, length)."""
        # Nothing in the loop reads a value back, so on an asynchronous device the host runs ahead of it.
        for _ in range(count):
            logits = self(tokens[:, -self.config.context :])[:, -1] / temperature
            tokens = torch.cat((tokens, torch.multinomial(logits.softmax(-1), 1)), dim=1)
        return tokens
