"""Train a byte-level GPT on the source of the Python standard library, then let it write some Python.

The whole loop is ordinary PyTorch; which device it runs on is a word on the command line:

    python -m examples.train_gpt --device neuron --steps 300
    python -m examples.train_gpt --save out/gpt.pt --stop-after 100    # an interrupted run ...
    python -m examples.train_gpt --resume out/gpt.pt                   # ... goes on as if it had never stopped
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor, nn
from torch.nn import functional as F

from examples.corpus import random_batch, stdlib_source
from examples.gpt import GPT, GPTConfig


@dataclass(frozen=True)
class TrainConfig:
    """What a run does; two runs with equal settings do the same on every device."""

    steps: int = 300
    batch: int = 8
    lr: float = 1e-3
    warmup: int = 20
    seed: int = 0
    model: GPTConfig = field(default_factory=GPTConfig)

    def lr_factor(self, step: int) -> float:
        """Linear warm-up, then a cosine down to a tenth."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        progress = (step - self.warmup) / max(1, self.steps - self.warmup)
        return 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, progress)))


@dataclass(frozen=True)
class Run:
    """What a stretch of training gave: the loss of each step, and the wall time of all."""

    losses: list[float]
    seconds: float
    tokens: int

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


class Trainer:
    """Model, optimizer, schedule and data of one run, on one device."""

    def __init__(self, config: TrainConfig, device: torch.device) -> None:
        self.config = config
        self.device = device
        self.step = 0
        self.train_text, self.validation_text = stdlib_source()
        self.generator = torch.Generator().manual_seed(config.seed)
        torch.manual_seed(config.seed)
        # Initialized on the CPU and then moved, so that the weights do not depend on the device's random numbers.
        self.model = GPT(config.model).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=config.lr, weight_decay=0.1, fused=True)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, config.lr_factor)

    def _loss(self, text: Tensor, generator: torch.Generator) -> Tensor:
        inputs, targets = random_batch(text, self.config.batch, self.config.model.context, generator)
        logits = self.model(inputs.to(self.device))
        return F.cross_entropy(logits.flatten(0, 1), targets.to(self.device).flatten())

    def train_step(self) -> Tensor:
        """Run one step; return its loss, a scalar still on the device."""
        loss = self._loss(self.train_text, self.generator)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.scheduler.step()
        self.step += 1
        return loss.detach()

    @torch.no_grad()
    def validation_loss(self, batches: int = 8) -> float:
        """Mean loss over a fixed set of batches that are not trained on, in nats per byte."""
        generator = torch.Generator().manual_seed(self.config.seed + 1)
        return torch.stack([self._loss(self.validation_text, generator) for _ in range(batches)]).mean().item()

    def sample(self, prompt: str, count: int) -> str:
        """Let the model continue `prompt` by `count` bytes; the same seed gives the same text."""
        torch.manual_seed(self.config.seed)
        tokens = torch.tensor([list(prompt.encode())], device=self.device)
        return bytes(self.model.generate(tokens, count)[0].tolist()).decode(errors="replace")

    def save(self, path: Path) -> None:
        """Write all that a later run needs in order to go on exactly where this one is."""
        path.parent.mkdir(parents=True, exist_ok=True)
        state: dict[str, Any] = {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "generator": self.generator.get_state(),
        }
        torch.save(state, path)

    def load(self, path: Path) -> None:
        """Read what `save` wrote, on this device or on another one."""
        state = torch.load(path, map_location="cpu")
        self.step = state["step"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.generator.set_state(state["generator"])


def train(trainer: Trainer, until: int, read_every: int = 10) -> Run:
    """Train until step `until`, with a progress bar.

    The losses are read back once in `read_every` steps only: reading one waits for the device, and a host that does not
    wait can prepare the next steps while the device computes.
    """
    config = trainer.config
    first_step, start = trainer.step, time.perf_counter()
    losses: list[float] = []
    pending: list[Tensor] = []
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.4f}  {task.fields[speed]:,.0f} tokens/s"),
        TimeElapsedColumn(),
    )
    with Progress(*columns) as progress:
        bar = progress.add_task(f"{trainer.device}", total=until, completed=first_step, loss=math.nan, speed=0.0)
        while trainer.step < until:
            pending.append(trainer.train_step())
            if len(pending) == read_every or trainer.step == until:
                losses += torch.stack(pending).tolist()
                pending.clear()
                speed = len(losses) * config.batch * config.model.context / (time.perf_counter() - start)
                progress.update(bar, completed=trainer.step, loss=losses[-1], speed=speed)
    if trainer.device.type != "cpu":
        torch.accelerator.synchronize(trainer.device)  # the last update of the weights may still be under way
    steps = trainer.step - first_step
    return Run(losses, time.perf_counter() - start, steps * config.batch * config.model.context)


def main(argv: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="neuron", help="where to train: neuron, neuron:1, cpu, ...")
    parser.add_argument("--steps", type=int, default=300, help="length of the run and of its learning rate schedule")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--context", type=int, default=128, help="bytes that the model looks back")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path, help="write a checkpoint here at the end")
    parser.add_argument("--resume", type=Path, help="go on from this checkpoint")
    parser.add_argument("--stop-after", type=int, help="stop after this step, as if interrupted")
    parser.add_argument("--sample", type=int, default=200, help="bytes of text to generate at the end")
    args = parser.parse_args(argv)

    model = GPTConfig(context=args.context)
    config = TrainConfig(steps=args.steps, batch=args.batch, lr=args.lr, seed=args.seed, model=model)
    trainer = Trainer(config, torch.device(args.device))
    if args.resume:
        trainer.load(args.resume)
        print(f"resumed at step {trainer.step}")
    parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    print(f"{parameters / 1e6:.1f} M parameters, {len(trainer.train_text) / 1e6:.1f} MB of text, on {trainer.device}")

    run = train(trainer, min(args.steps, args.stop_after or args.steps))
    if run.losses:
        print(f"loss {run.losses[0]:.4f} -> {run.losses[-1]:.4f}, {run.tokens_per_second:,.0f} tokens/s")
    if args.save:
        trainer.save(args.save)
        print(f"saved step {trainer.step} to {args.save}")
    print(f"validation loss {trainer.validation_loss():.4f} nats per byte")
    print(trainer.sample("def ", args.sample))


if __name__ == "__main__":
    main()
