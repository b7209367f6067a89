"""Train a convolutional network on scikit-learn's handwritten digits, with everything a real training loop has.

    python -m examples.train_digits --device neuron
    python -m examples.train_digits --save out/digits.pt --stop-after 4   # an interrupted run ...
    python -m examples.train_digits --resume out/digits.pt                # ... goes on to the same weights, bit for bit

Exits with 1 if the test accuracy stays under 97 %.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset, random_split

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


class DigitsNet(nn.Module):
    """Images, fp32 (batch, 1, 8, 8), to logits of the ten digits."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
            *(nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Dropout(0.2), nn.Linear(64 * 4 * 4, 10)),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


def datasets() -> tuple[Dataset[Any], Dataset[Any]]:
    """Return (train, test): 80 % and 20 % of the 1797 digits, always the same split."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16  # grey levels 0 to 16
    data = TensorDataset(images, torch.tensor(digits.target))
    train, test = random_split(data, [0.8, 0.2], generator=torch.Generator().manual_seed(0))
    return train, test


class Training:
    """All that a run consists of; `state` and `restore` are its checkpoint."""

    def __init__(self, device: torch.device, dtype: torch.dtype, epochs: int, batch: int, seed: int) -> None:
        self.device, self.dtype, self.epochs, self.seed = device, dtype, epochs, seed
        train, test = datasets()
        self.shuffle = torch.Generator()
        # Pinned memory lets the copy to a device run while the host goes on; for the CPU there is no such copy.
        # Workers start anew each epoch: persistent ones draw from the shuffling generator in their first epoch only, so
        # a resumed run would see its data in another order.
        loading: dict[str, Any] = {"num_workers": 2, "pin_memory": device.type != "cpu"}
        self.train_loader = DataLoader(train, batch, shuffle=True, generator=self.shuffle, drop_last=True, **loading)
        self.test_loader = DataLoader(test, 256, **loading)

        torch.manual_seed(seed)
        self.model = DigitsNet().to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3, weight_decay=0.01)
        steps = epochs * len(self.train_loader)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, max_lr=3e-3, total_steps=steps)
        # Gradients in fp16 underflow unless the loss is scaled up; bf16 has the range of fp32 and needs no scaling.
        self.scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
        self.epoch = 0

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32)

    def train_epoch(self) -> float:
        """Run one epoch; return the mean training loss."""
        # Every epoch starts from a seed of its own, so shuffling and dropout after a resume are those of a run that
        # was never interrupted, and no generator state has to be kept in the checkpoint.
        self.shuffle.manual_seed(self.seed + self.epoch)
        torch.manual_seed(self.seed + self.epoch)
        self.model.train()
        total = torch.zeros((), device=self.device)
        for images, labels in self.train_loader:
            images, labels = images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)
            with self.autocast():
                loss = F.cross_entropy(self.model(images), labels)
            self.optimizer.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.scheduler.step()
            total += loss.detach()  # summed on the device: reading each loss would make the host wait for each step
        self.epoch += 1
        return total.item() / len(self.train_loader)

    @torch.no_grad()
    def test_accuracy(self) -> float:
        """Return the share of test digits that the model names rightly."""
        self.model.eval()
        right, count = torch.zeros((), dtype=torch.int64, device=self.device), 0
        for images, labels in self.test_loader:
            with self.autocast():
                guesses = self.model(images.to(self.device)).argmax(dim=1)
            right += (guesses == labels.to(self.device)).sum()
            count += len(labels)
        return right.item() / count

    def parts(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "scaler": self.scaler,
        }

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"epoch": self.epoch} | {name: part.state_dict() for name, part in self.parts().items()}, path)

    def restore(self, path: Path) -> None:
        """Load a checkpoint, whichever device wrote it."""
        state = torch.load(path, map_location="cpu")
        self.epoch = state["epoch"]
        for name, part in self.parts().items():
            part.load_state_dict(state[name])


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="neuron", help="where to train: neuron, neuron:1, cpu, ...")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="what autocast computes in")
    parser.add_argument("--epochs", type=int, default=8, help="length of the run and of its learning rate schedule")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path, help="write a checkpoint here after each epoch")
    parser.add_argument("--resume", type=Path, help="go on from this checkpoint")
    parser.add_argument("--stop-after", type=int, help="stop after this epoch, as if interrupted")
    parser.add_argument("--min-accuracy", type=float, default=0.97, help="exit with 1 below this test accuracy")
    args = parser.parse_args(argv)

    training = Training(torch.device(args.device), DTYPES[args.dtype], args.epochs, args.batch, args.seed)
    if args.resume:
        training.restore(args.resume)
        print(f"resumed after epoch {training.epoch}")
    while training.epoch < args.epochs:
        start = time.perf_counter()
        loss = training.train_epoch()
        seconds = time.perf_counter() - start
        print(f"epoch {training.epoch:2d}  loss {loss:.4f}  {seconds:.1f} s", flush=True)
        if args.save:
            training.save(args.save)
        if training.epoch == args.stop_after:
            print(f"stopped after epoch {training.epoch}")
            return 0
    accuracy = training.test_accuracy()
    print(f"test accuracy {accuracy:.2%} on {args.device} in {args.dtype} (at least {args.min_accuracy:.0%} wanted)")
    return 0 if accuracy >= args.min_accuracy else 1


if __name__ == "__main__":
    sys.exit(main())
