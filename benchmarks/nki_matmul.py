"""Matrix products of nkilib, run by the simulated core, against torch.matmul in fp32 on the CPU.

A section of `python -m benchmarks.nki`.

What a simulated bf16 kernel costs on this machine, not what it would on the chip: that is the modelled time, in the
last column. Results are compared before anything is measured.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.progress import track

import nki
from benchmarks import section
from benchmarks.interleave import Case, Row, run_case
from benchmarks.section import milliseconds, synchronizer
from nkilib.matmul import matmul_kernel

Step = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Workload:
    """One line of the table: a product (m, k) x (k, n)."""

    name: str
    m: int
    k: int
    n: int
    dtype: torch.dtype = torch.bfloat16
    transpose_b: bool = False
    bound: float | None = None


WORKLOADS = [
    Workload("2048 x 2048 x 2048, bf16", 2048, 2048, 2048, bound=2.0),
    Workload("the same, b transposed (linear)", 2048, 2048, 2048, transpose_b=True),
    Workload("2048 x 2048 x 2048, fp32", 2048, 2048, 2048, torch.float32),
    Workload("1000 x 3000 x 1500, bf16", 1000, 3000, 1500),
]


def measure(w: Workload, device: torch.device, quick: bool) -> Row:
    """A row of the table."""
    source = torch.Generator().manual_seed(1)
    a, b = torch.randn(w.m, w.k, generator=source), torch.randn(w.k, w.n, generator=source)
    theirs = [a.to(w.dtype), (b.T if w.transpose_b else b).to(w.dtype).contiguous()]
    ours = [t.to(device) for t in theirs]

    def subject() -> torch.Tensor:
        return matmul_kernel(*ours, transpose_b=w.transpose_b)

    expected = theirs[0].float() @ (theirs[1].T if w.transpose_b else theirs[1]).float()
    limit = 1e-2 if w.dtype == torch.bfloat16 else 1e-3
    torch.testing.assert_close(subject().cpu().float(), expected, rtol=limit, atol=limit)
    modelled = nki.profile(matmul_kernel, target="trn2")(*theirs, transpose_b=w.transpose_b).latency_us
    here, there = synchronizer(device), synchronizer(torch.device("cpu"))
    case = Case(
        name=w.name,
        unit="ms",
        measure={
            "fp32 on the CPU": lambda: milliseconds(lambda: a @ b, there),
            "kernel": lambda: milliseconds(subject, here),
        },
        threads=torch.get_num_threads(),
        bound=w.bound,
        repetitions=2 if quick else 15,
        warmup=1,
    )
    return run_case(case, lambda: f"{modelled:.0f} us on a core of trn2 (modelled)")


def rows(settings: section.Settings) -> Sequence[Row]:
    """The section's rows."""
    device = torch.device(settings.subject)
    works = track(WORKLOADS, "nki matmul", console=Console(stderr=True), transient=True)
    return [measure(w, device, settings.quick) for w in works]


if __name__ == "__main__":
    section.main(rows, __doc__, None)
