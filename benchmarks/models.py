"""Small models whose training steps are bound by different things: launches, matrix products, convolutions."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 10


class Mlp(nn.Module):
    """Seven linears of width 64 with ReLU between; (32, 64) -> (32, 10). Launches cost more than the arithmetic."""

    def __init__(self) -> None:
        super().__init__()
        hidden = [layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.ReLU())]
        self.layers = nn.Sequential(*hidden, nn.Linear(64, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Attention(nn.Module):
    """Causal self-attention, with `F.scaled_dot_product_attention` or spelled out."""

    def __init__(self, width: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind(0)
        if self.fused:
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            scores = (query @ key.transpose(-2, -1)) * query.shape[-1] ** -0.5
            mixed = scores.masked_fill(future, float("-inf")).softmax(-1) @ value
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int, fused_attention: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, fused_attention)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    """Two blocks of width 128, mean over positions; (4, 64, 128) -> (4, 10). Matrix products and row-wise ops."""

    def __init__(self, fused_attention: bool) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block(128, 4, fused_attention) for _ in range(2)))
        self.head = nn.Linear(128, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x)).mean(1)


class ResNet(nn.Module):
    """A stem and two residual blocks of two convolutions, 16 channels; (8, 3, 32, 32) -> (8, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.convolutions = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(4))
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for first in (0, 2):
            inner = F.relu(self.norms[first](self.convolutions[first](x)))
            x = F.relu(x + self.norms[first + 1](self.convolutions[first + 1](inner)))
        return self.head(x.mean((2, 3)))


@dataclass(frozen=True)
class Workload:
    """A model, the shape of its input and the optimizer's settings."""

    name: str
    model: Callable[[], nn.Module]
    input_shape: tuple[int, ...]
    foreach: bool = True


WORKLOADS = {
    "mlp": Workload("MLP, AdamW foreach", Mlp, (32, 64)),
    "mlp-loop": Workload("MLP, AdamW loop", Mlp, (32, 64), foreach=False),
    "gpt": Workload("GPT-like", lambda: Gpt(fused_attention=False), (4, 64, 128)),
    "gpt-sdpa": Workload("GPT-like, SDPA", lambda: Gpt(fused_attention=True), (4, 64, 128)),
    "resnet": Workload("ResNet-like", ResNet, (8, 3, 32, 32)),
}


def training_step(workload: Workload, device: torch.device) -> Callable[[], Tensor]:
    """A function that does one step of training on `device` and returns the loss, without waiting for it.

    Weights and data are drawn on the CPU from a fixed seed: every device starts from the same numbers.
    """
    torch.manual_seed(0)
    model = workload.model().to(device)
    x = torch.randn(workload.input_shape).to(device)
    target = torch.randint(0, CLASSES, workload.input_shape[:1]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=workload.foreach)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
