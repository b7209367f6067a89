"""A section of a benchmark runs in a process of its own, because kernel threads are set before the process starts."""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.interleave import Row


@dataclass(frozen=True)
class Settings:
    """What a section is told: the two devices, the kernel threads of both, whether to be quick, more peers."""

    reference: str
    subject: str
    threads: int
    quick: bool
    inductor: bool = False  # sections that can measure Inductor do so

    def arguments(self) -> list[str]:
        """The same as command line arguments."""
        arguments = ["--reference", self.reference, "--subject", self.subject, "--threads", str(self.threads)]
        return [*arguments, *["--quick"] * self.quick, *["--inductor"] * self.inductor]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that choose what is compared."""
    parser.add_argument("--reference", default="cpu", help="device that ratios are taken against (default: cpu)")
    parser.add_argument("--subject", default="neuron", help="device that is measured (default: neuron)")
    parser.add_argument("--quick", action="store_true", help="few repetitions: shows that it runs, not how fast")


def thread_environment(threads: int) -> dict[str, str]:
    """An environment in which every thread of a process, queue workers included, computes with `threads` threads."""
    return os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


def run(module: str, settings: Settings, *options: str) -> list[Row]:
    """Runs a section in a process of its own and returns its rows; its progress goes to stderr.

    `options` are command line arguments that only this module knows.
    """
    command = [sys.executable, "-m", module, *options, *settings.arguments()]
    environment = thread_environment(settings.threads)
    result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(command[1:])} ended with exit status {result.returncode}; its error is above")
    return [Row.from_json(row) for row in json.loads(result.stdout)]


def main(measure: Callable[[Settings], Sequence[Row]], description: str | None, argv: Sequence[str] | None) -> None:
    """The command line of a section's module: prints its rows as JSON."""
    parser = argparse.ArgumentParser(description=description)
    add_arguments(parser)
    parser.add_argument("--threads", type=int, default=1, help="kernel threads of each peer")
    parser.add_argument("--inductor", action="store_true", help="measure Inductor as well, where that means anything")
    arguments: dict[str, Any] = vars(parser.parse_args(argv))
    settings = Settings(**arguments)
    torch.set_num_threads(settings.threads)
    print(json.dumps([row.to_json() for row in measure(settings)]))


def synchronizer(device: torch.device) -> Callable[[], None]:
    """What waits for all work on `device`; nothing for the CPU, which has done its work when a call returns."""
    if device.type == "cpu":
        return lambda: None
    return lambda: torch.accelerator.synchronize(device)


def milliseconds(step: Callable[[], object], wait: Callable[[], None]) -> float:
    """Wall time of one call and the wait for it."""
    wait()
    start = time.perf_counter()
    step()
    wait()
    return (time.perf_counter() - start) * 1e3
