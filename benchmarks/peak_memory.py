"""Peak resident memory of a training loop in MiB, each measurement in a process of its own."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track

from benchmarks import section
from benchmarks.interleave import Case, Row, peer_names, run_case
from benchmarks.models import WORKLOADS, training_step

MEASURED = ("mlp", "gpt")
BOUND = 1.15


def peak_resident_mib() -> float:
    """The high-water mark of this process. (getrusage's would include what the parent had before the exec.)"""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("/proc/self/status has no VmHWM line: peak memory is measured on Linux only")


def train(workload: str, device: torch.device, steps: int) -> None:
    """Trains, reading the loss every tenth step."""
    step = training_step(WORKLOADS[workload], device)
    for number in range(steps):
        loss = step()
        if number % 10 == 9:
            loss.item()
    section.synchronizer(device)()


def peak_of_process(workload: str, device: str, settings: section.Settings) -> Callable[[], float]:
    """A function that starts a process which trains on `device`, and returns its peak."""
    steps = "20" if settings.quick else "200"
    command = [
        sys.executable,
        "-m",
        "benchmarks.peak_memory",
        "--train",
        workload,
        "--device",
        device,
        "--steps",
        steps,
    ]
    environment = section.thread_environment(settings.threads)
    if device == "cpu":
        environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # the reference is PyTorch without us

    def measure() -> float:
        result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        return float(json.loads(result.stdout))

    return measure


def measure(settings: section.Settings) -> Sequence[Row]:
    """One row per workload."""
    names = peer_names(settings.reference, settings.subject)
    devices = settings.reference, settings.subject
    rows = []
    for key in track(MEASURED, "peak memory", console=Console(stderr=True), transient=True):
        case = Case(
            name=WORKLOADS[key].name,
            unit="MiB",
            measure={name: peak_of_process(key, device, settings) for name, device in zip(names, devices, strict=True)},
            threads=settings.threads,
            bound=BOUND,
            repetitions=1 if settings.quick else 3,
            warmup=0,
        )
        rows.append(run_case(case))
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Command line: a section as the others, or with --train the process that is measured."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--train", choices=tuple(WORKLOADS))
    parser.add_argument("--device")
    parser.add_argument("--steps", type=int)
    arguments, rest = parser.parse_known_args(argv)
    if arguments.train is None:
        section.main(measure, __doc__, rest)
        return
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    train(arguments.train, torch.device(arguments.device), arguments.steps)
    print(json.dumps(peak_resident_mib()))


if __name__ == "__main__":
    main()
