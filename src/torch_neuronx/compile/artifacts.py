"""Readable listings of graphs and programs, for those who ask for them."""

from __future__ import annotations

import itertools
import os
import tempfile
from pathlib import Path

from torch.fx import GraphModule

from torch_neuronx import knobs

__all__ = ["debug_directory", "keep"]

_numbers = itertools.count()


def debug_directory() -> Path:
    """`TORCH_NEURONX_DEBUG_DIR`, by default `neuron_backend` in the directory for temporary files."""
    return Path(knobs.DEBUG_DIR.value) if knobs.DEBUG_DIR.value else Path(tempfile.gettempdir()) / "neuron_backend"


def keep(name: str, module: GraphModule, listings: dict[str, str]) -> Path | None:
    """Writes the graph and the given files into a directory of their own, where the user wants them.

    Args:
        name: of the graph.
        module: the graph of ATen ops.
        listings: text by file name.

    Returns:
        The directory; None when nothing is kept.
    """
    if not knobs.PRESERVE_COMPILATION_ARTIFACTS.value:
        return None
    folder = debug_directory() / f"{name}.{os.getpid()}.{next(_numbers)}"
    folder.mkdir(parents=True)
    (folder / "graph.py").write_text(module.print_readable(print_output=False, include_stride=True) + "\n")
    for file, text in listings.items():
        (folder / file).write_text(text)
    return folder
