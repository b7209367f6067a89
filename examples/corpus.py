"""The training text: the source of the Python standard library, which every Python brings along."""

from __future__ import annotations

import sysconfig
import zlib
from pathlib import Path

import torch
from torch import Tensor

# Installed packages are not the standard library, and its tests are twice its size.
_SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "test", "tests"})


def stdlib_source(max_bytes: int = 8_000_000, validation: float = 0.1) -> tuple[Tensor, Tensor]:
    """Return (train, validation), two uint8 vectors of source text, at most `max_bytes` together.

    The same interpreter always gives the same text. The validation part consists of files that training never sees.
    """
    root = Path(sysconfig.get_path("stdlib"))
    names = [path.relative_to(root) for path in root.rglob("*.py")]
    names = [name for name in names if not _SKIPPED_FOLDERS.intersection(name.parts)]
    if not names:
        raise FileNotFoundError(f"No .py files under {root}: this Python came without its library's source")
    # By checksum of the name: a fixed order, but one that deals each package out to both parts.
    names.sort(key=lambda name: (zlib.crc32(name.as_posix().encode()), name.as_posix()))

    text = bytearray()
    for name in names:
        text += (root / name).read_bytes()
        if len(text) >= max_bytes:
            break
    data = torch.frombuffer(text, dtype=torch.uint8)[:max_bytes]
    split = int(len(data) * (1 - validation))
    return data[:split], data[split:]


def random_batch(text: Tensor, batch: int, context: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Cut `batch` random pieces out of `text`; return (inputs, targets), int64 (batch, context), on the CPU.

    The places are drawn by a CPU generator, so every device trains on the same batches.
    """
    starts = torch.randint(len(text) - context, (batch, 1), generator=generator)
    pieces = text[starts + torch.arange(context + 1)].long()
    return pieces[:, :-1], pieces[:, 1:]
