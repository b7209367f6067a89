"""What the benchmarks of torch.compile compile: functions of tensors, and training steps."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.models import Block

WIDTH, LENGTH, BATCH, HEADS, BLOCKS, VOCABULARY = 512, 256, 4, 8, 4, 512
CHAIN_ELEMENTS = 4 << 20


def chain(x: Tensor, y: Tensor) -> Tensor:
    """19 pointwise ops."""
    for _ in range(9):
        x = x * y + 0.5
    return x * 2


def norms(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Layer norm, two softmaxes and an RMS norm, all over the last dimension."""
    x = F.layer_norm(x, x.shape[-1:], weight, bias)
    x = x + torch.softmax(x * 0.125, -1)
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight
    return torch.log_softmax(F.gelu(x), -1)


def ten_ops(x: Tensor, y: Tensor) -> Tensor:
    """10 pointwise ops."""
    return ((((x * y + 1).tanh() * y - x).sigmoid() + y) * x).relu() + y


class Gpt(nn.Module):
    """Tokens (4, 256) and targets -> loss; 4 pre-norm blocks of width 512."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        self.blocks = nn.Sequential(*(Block(WIDTH, HEADS, fused_attention=True) for _ in range(BLOCKS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        logits = self.head(self.norm(self.blocks(self.tokens(tokens) + self.positions)))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class ResNetStack(nn.Module):
    """Four residual blocks of 64 channels on (16, 64, 32, 32) -> the mean of squares."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(64, 64, 3, padding=1, bias=False) for _ in range(8))
        self.norms = nn.ModuleList(nn.BatchNorm2d(64) for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        for k in range(0, 8, 2):
            inner = F.relu(self.norms[k](self.convolutions[k](x)))
            x = F.relu(x + self.norms[k + 1](self.convolutions[k + 1](inner)))
        return x.square().mean()


@dataclass(frozen=True)
class Workload:
    """`make(device)` gives a function of its arguments and the arguments; with `trains`, backward follows each call."""

    name: str
    make: Callable[[torch.device], tuple[Callable[..., Tensor], tuple[Tensor, ...]]]
    trains: bool = False
    bound: float | None = None  # against Inductor
    bound_eager: float | None = None
    calls: int = 1  # per measurement


def _function(function: Callable[..., Tensor], *shapes: tuple[int, ...]) -> Callable[[torch.device], tuple]:
    def make(device: torch.device) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
        generator = torch.Generator().manual_seed(0)
        return function, tuple(torch.randn(shape, generator=generator).to(device) for shape in shapes)

    return make


def _gpt(device: torch.device) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    torch.manual_seed(0)
    model = Gpt().to(device)
    tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1))
    return model, (tokens[:, :-1].contiguous().to(device), tokens[:, 1:].contiguous().to(device))


def _resnet(device: torch.device) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    torch.manual_seed(0)
    return ResNetStack().to(device), (torch.randn(16, 64, 32, 32).to(device),)


GPT = Workload("GPT step, 4 layers, d 512", _gpt, trains=True, bound=1.0)
WORKLOADS = (
    GPT,
    Workload("ResNet stack step, B 16", _resnet, trains=True, bound=0.95),
    Workload("19-op chain, 4M", _function(chain, (CHAIN_ELEMENTS,), (CHAIN_ELEMENTS,)), bound=1.1, bound_eager=0.08),
    Workload("norms and softmax, (4096, 512)", _function(norms, (4096, 512), (512,), (512,)), bound=1.2),
    Workload("10 ops, (64, 64), a call", _function(ten_ops, (64, 64), (64, 64)), bound=1.0, calls=200),
)


def step_of(workload: Workload, device: torch.device, backend: str | None) -> Callable[[], Tensor]:
    """A function that does the work once, compiled by `backend`, and returns the result without waiting for it."""
    function, args = workload.make(device)
    parameters = list(function.parameters()) if isinstance(function, nn.Module) else []
    compiled = torch.compile(function, backend=backend, dynamic=False) if backend else function

    def step() -> Tensor:
        if not workload.trains:
            return compiled(*args)
        for parameter in parameters:
            parameter.grad = None
        loss = compiled(*args)
        loss.backward()
        return loss.detach()

    return step
