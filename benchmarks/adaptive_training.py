"""Training steps with the fusion window on and off, wall time per step in milliseconds, the final wait included.

`--part` chooses: language models in float32 (with Inductor, which compiles the model), the same in bfloat16 (Inductor
would compute the products with the same slow kernels), or small steps, which are launches more than arithmetic
(Inductor would compile for minutes).
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn

from benchmarks import section, training_step
from benchmarks.interleave import Case, Row, run_case
from benchmarks.models import WORKLOADS, Block
from benchmarks.window import Peer, against, peers, same_bits

WIDTH, LENGTH, HEADS, VOCABULARY = 512, 256, 8, 256
CHECKED_STEPS = 3

# Makes, for a peer, a function that does one step and returns the loss without waiting for it.
StepMaker = Callable[[Peer], Callable[[], Tensor]]


class LanguageModel(nn.Module):
    """A pre-norm GPT over bytes; tokens (batch, 256) -> logits (batch, 256, 256)."""

    def __init__(self, blocks: int, fused_attention: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        self.blocks = nn.Sequential(*(Block(WIDTH, HEADS, fused_attention) for _ in range(blocks)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.positions)))


def language_model_step(blocks: int, batch: int, fused_attention: bool, dtype: torch.dtype) -> StepMaker:
    """A step of a language model with AdamW; weights and data from a fixed seed."""

    def make(peer: Peer) -> Callable[[], Tensor]:
        torch.manual_seed(0)
        model = LanguageModel(blocks, fused_attention).to(peer.device, dtype)
        tokens = torch.randint(0, VOCABULARY, (batch, LENGTH + 1)).to(peer.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        forward = peer.prepared(model)

        def step() -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(forward(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    return make


def lstm_step(length: int = 32, batch: int = 16, hidden: int = 64) -> StepMaker:
    """Forward and backward of an LSTM written out cell by cell, with a step of SGD."""

    def make(peer: Peer) -> Callable[[], Tensor]:
        torch.manual_seed(0)
        x = torch.randn(length, batch, hidden).to(peer.device)
        shapes = ((hidden, 4 * hidden), (hidden, 4 * hidden), (4 * hidden,))
        weights = [(torch.randn(shape) * 0.1).to(peer.device).requires_grad_() for shape in shapes]
        start = torch.zeros(batch, hidden).to(peer.device)

        def step() -> Tensor:
            h = c = start
            for t in range(length):
                gates = x[t] @ weights[0] + h @ weights[1] + weights[2]
                i, f, g, o = gates.chunk(4, 1)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                h = o.sigmoid() * c.tanh()
            loss = (h - x[0]).square().mean()
            gradients = torch.autograd.grad(loss, weights)
            with torch.no_grad():
                for weight, gradient in zip(weights, gradients, strict=True):
                    weight -= 0.1 * gradient
            return loss.detach()

        return step

    return make


def workload_step(key: str) -> StepMaker:
    """A step of one of the small models of `benchmarks.models`."""
    return lambda peer: training_step.training_step(WORKLOADS[key], peer.device)


@dataclass(frozen=True)
class Training:
    """One line of the table."""

    name: str
    make: StepMaker
    bound: float | None
    steps_per_wait: int = 1
    exact: bool = True  # losses equal the reference's to the bit
    repetitions: int = 40
    warmup: int = 3


float32_step = partial(language_model_step, blocks=2, batch=4, dtype=torch.float32)

PARTS: dict[str, tuple[Training, ...]] = {
    "float32": (
        Training("GPT d512, 2 blocks", float32_step(fused_attention=False), 0.97, repetitions=12),
        Training("GPT d512, 2 blocks, SDPA", float32_step(fused_attention=True), 0.97, repetitions=12),
    ),
    # ATen's bfloat16 products take about 25 times as long as those of float32 on CPUs without instructions for them.
    "bfloat16": (
        Training(
            "GPT d512, 2 blocks, bf16",
            language_model_step(2, batch=1, fused_attention=False, dtype=torch.bfloat16),
            0.15,
            exact=False,  # ATen's CPU kernels round products more than once
            repetitions=3,
            warmup=1,
        ),
    ),
    "small": (
        Training("LSTM cell by hand, 32 steps", lstm_step(), 0.6, steps_per_wait=5),
        *(
            Training(
                workload.name,
                workload_step(key),
                0.6 if key == "mlp-loop" else training_step.BOUNDS.get(key),
                training_step.STEPS_PER_WAIT.get(key, 1),
            )
            for key, workload in WORKLOADS.items()
        ),
    ),
}


class Loop:
    """A training loop on one peer."""

    def __init__(self, training: Training, peer: Peer) -> None:
        self.training, self.peer = training, peer
        self.step = training.make(peer)
        self.loss = torch.tensor(float("nan"))

    def advance(self) -> None:
        self.loss = self.step()

    def measure(self) -> float:
        """Milliseconds per step."""
        return self.peer.milliseconds(self.advance, self.training.steps_per_wait)

    def losses(self, steps: int) -> list[Tensor]:
        """Of some steps that the device runs without a wait between them."""
        with self.peer.scope():
            losses = [self.step() for _ in range(steps)]
        self.loss = losses[-1]
        return [loss.cpu() for loss in losses]


def require_same_losses(loops: Sequence[Loop]) -> None:
    """Raises when an eager peer does not learn what the reference learns: to the bit, or nearly if not `exact`."""
    training = loops[0].training
    steps = CHECKED_STEPS if training.exact else 1
    expected = loops[0].losses(steps)
    for loop in loops[1:]:
        losses = loop.losses(steps)
        if training.exact and not loop.peer.compiled:
            good = same_bits(losses, expected)
        else:
            # Two roundings of bfloat16.
            good = torch.allclose(torch.stack(losses).float(), torch.stack(expected).float(), rtol=2 * 2**-7)
        if not good:
            raise AssertionError(f"{training.name}: {loop.peer.name} has losses {losses}, expected {expected}")


def measure_training(training: Training, settings: section.Settings, inductor: bool) -> Row:
    """Checks and measures one training loop."""
    taking_part = peers(settings, inductor)
    loops = [Loop(training, peer) for peer in taking_part]
    require_same_losses(loops)

    def remark() -> str:
        losses = [loop.loss.item() for loop in loops if not loop.peer.compiled]
        same = all(loss == losses[0] for loss in losses)
        return "" if same else f"losses {', '.join(f'{loss:.5g}' for loss in losses)}"

    case = Case(
        name=training.name,
        unit="ms",
        measure={loop.peer.name: loop.measure for loop in loops},
        threads=settings.threads,
        bound=training.bound,
        repetitions=1 if settings.quick else training.repetitions,
        warmup=0 if settings.quick else training.warmup,
        against=against(taking_part),
    )
    return run_case(case, remark)


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--part", choices=tuple(PARTS), default="small")
    arguments, rest = parser.parse_known_args(argv)
    part: str = arguments.part

    def measure(settings: section.Settings) -> Sequence[Row]:
        trainings = track(PARTS[part], f"training steps, {part}", console=Console(stderr=True), transient=True)
        return [measure_training(training, settings, inductor=part == "float32") for training in trainings]

    section.main(measure, __doc__, rest)


if __name__ == "__main__":
    main()
