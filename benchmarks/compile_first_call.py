"""The first call of a compiled training step in a new process, wall time in seconds, with empty and with warm caches.

The time is that of making the model, of `torch.compile` and of the first step, so with the imports of the compilers,
without `import torch`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

import torch

from benchmarks import section
from benchmarks.compile_workloads import GPT, step_of
from benchmarks.interleave import Case, Row, run_case

BOUND_COLD, BOUND_WARM = 0.3, 0.6


def first_call(backend: str, device: torch.device) -> float:
    """Seconds of the first step in this process, `torch.compile` included."""
    torch.zeros(1, device=device)
    start = time.perf_counter()
    step_of(GPT, device, backend)()
    section.synchronizer(device)()
    return time.perf_counter() - start


def in_process(backend: str, device: str, settings: section.Settings, cache: str | None) -> float:
    """The same in a new process with its caches in a directory, a new one for None."""
    with tempfile.TemporaryDirectory() as fresh:
        folder = cache or fresh
        environment = section.thread_environment(settings.threads) | {
            "TORCHINDUCTOR_CACHE_DIR": os.path.join(folder, "inductor"),
            "TORCH_NEURONX_CACHE_DIR": os.path.join(folder, "neuron"),
        }
        command = [sys.executable, "-m", "benchmarks.compile_first_call", "--first", backend, "--device", device]
        result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return float(json.loads(result.stdout))


def measure(settings: section.Settings) -> Sequence[Row]:
    """Two rows, Inductor as reference; none where it takes no part."""
    if not settings.inductor:
        return []
    peers = {"Inductor": ("inductor", settings.reference), "compiled": ("neuron", settings.subject)}
    with tempfile.TemporaryDirectory() as folder:
        caches = {name: os.path.join(folder, name.lower()) for name in peers}

        def measured(name: str, cache: str | None) -> Callable[[], float]:
            return lambda: in_process(*peers[name], settings, cache)

        cold = Case(
            name=f"{GPT.name}, empty caches",
            unit="s",
            measure={name: measured(name, None) for name in peers},
            threads=settings.threads,
            bound=BOUND_COLD,
            repetitions=1,
            warmup=0,
        )
        warm = Case(
            name=f"{GPT.name}, warm caches",
            unit="s",
            measure={name: measured(name, caches[name]) for name in peers},
            threads=settings.threads,
            bound=BOUND_WARM,
            repetitions=1 if settings.quick else 3,
            warmup=1,
        )
        return [run_case(cold), run_case(warm)]


def main(argv: Sequence[str] | None = None) -> None:
    """Command line: a section as the others, or with --first the process that is measured."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--first")
    parser.add_argument("--device")
    arguments, rest = parser.parse_known_args(argv)
    if arguments.first is None:
        section.main(measure, __doc__, rest)
        return
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    print(json.dumps(first_call(arguments.first, torch.device(arguments.device))))


if __name__ == "__main__":
    main()
