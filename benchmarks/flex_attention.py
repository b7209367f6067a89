"""FlexAttention, compiled on the device, against what PyTorch has for the same scores on the CPU.

python -m benchmarks.flex_attention [--quick] [--threads N] [--json FILE]

Peers are F.scaled_dot_product_attention with a dense mask ("dense": its math backend, all scores in memory), and the
kernel that it takes by itself ("flash", for plain causal masks). Results are compared before anything is measured.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from benchmarks.interleave import Case, Report, Row, run_case
from benchmarks.section import synchronizer, thread_environment

Step = Callable[[], list[Tensor]]


@dataclass(frozen=True)
class Workload:
    """One line of a table."""

    name: str
    queries: int
    keys: int
    mask_mod: Callable[..., Tensor] | None
    reference: str  # dense or flash
    bound: float | None
    batch: int = 1
    heads: int = 8
    kv_heads: int = 8
    depth: int = 64
    dtype: torch.dtype = torch.float32
    backward: bool = False

    def operands(self) -> list[Tensor]:
        """Query, key and value on the CPU."""
        source = torch.Generator().manual_seed(1)
        sizes = [(self.heads, self.queries), (self.kv_heads, self.keys), (self.kv_heads, self.keys)]
        return [torch.randn(self.batch, *size, self.depth, generator=source).to(self.dtype) for size in sizes]


def _causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def _window(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q >= k) & (q - k < 512)


def _documents(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q // 700 == k // 700) & (q >= k)


_WINDOW = Workload("window 512 of 4096", 4096, 4096, _window, "dense", 0.5)
_CAUSAL = Workload("causal 2048", 2048, 2048, _causal, "flash", 1.2)
WORKLOADS = [
    _WINDOW,
    Workload("documents of 700 in 4096", 4096, 4096, _documents, "dense", 0.5),
    _CAUSAL,
    replace(_CAUSAL, name="causal 2048 bf16", dtype=torch.bfloat16),
    Workload("decode, 8192 keys", 1, 8192, None, "flash", 1.2),
    Workload("decode, 2048 keys, 32 on 8 heads, bf16", 1, 2048, None, "flash", 1.2, 4, 32, 8, dtype=torch.bfloat16),
    replace(_WINDOW, name="window 512 of 2048, with gradients", queries=2048, keys=2048, backward=True),
    replace(_CAUSAL, name="causal 2048, with gradients", backward=True),
]


def reference_step(w: Workload) -> Step:
    """On the CPU."""
    q, k, v = w.operands()
    leaves = [t.requires_grad_(w.backward) for t in (q, k, v)]
    mask = None
    if w.mask_mod is not None and w.reference == "dense":
        mask = w.mask_mod(0, 0, torch.arange(w.queries)[:, None], torch.arange(w.keys)[None])
    backends = [SDPBackend.MATH] if w.reference == "dense" else [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
    causal, gqa = w.mask_mod is _causal, w.heads != w.kv_heads

    def attend() -> Tensor:
        with sdpa_kernel(backends):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=gqa)

    return with_gradients(attend, leaves, w)


def subject_step(w: Workload, device: torch.device) -> Step:
    """On the device."""
    q, k, v = (t.to(device).requires_grad_(w.backward) for t in w.operands())
    sizes = (None, None, w.queries, w.keys)
    block_mask = create_block_mask(w.mask_mod, *sizes, device=str(device)) if w.mask_mod else None
    gqa = w.heads != w.kv_heads

    @torch.compile(fullgraph=True)
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(q, k, v, block_mask=block_mask, enable_gqa=gqa)

    return with_gradients(lambda: attend(q, k, v), [q, k, v], w)


def with_gradients(attend: Callable[[], Tensor], leaves: list[Tensor], w: Workload) -> Step:
    """The output alone, or the gradients of its sum too."""
    if not w.backward:
        return lambda: [attend()]

    def step() -> list[Tensor]:
        out = attend()
        return [out.detach(), *torch.autograd.grad(out, leaves, torch.ones_like(out))]

    return step


def milliseconds(step: Step, wait: Callable[[], None]) -> float:
    """Of one call and the wait for it."""
    wait()
    start = time.perf_counter()
    step()
    wait()
    return (time.perf_counter() - start) * 1e3


def measure(w: Workload, device: torch.device, quick: bool) -> Row:
    """A row of the table."""
    torch._dynamo.reset()
    reference, subject = reference_step(w), subject_step(w, device)
    limit = 2e-4 if w.dtype == torch.float32 else 3e-2
    for actual, expected in zip(subject(), reference(), strict=True):
        torch.testing.assert_close(actual.cpu(), expected, rtol=limit, atol=limit)
    here, there = synchronizer(device), synchronizer(torch.device("cpu"))
    case = Case(
        name=w.name,
        unit="ms",
        measure={
            w.reference: lambda: milliseconds(reference, there),
            "flex": lambda: milliseconds(subject, here),
        },
        threads=torch.get_num_threads(),
        bound=w.bound,
        repetitions=2 if quick else 10,
        warmup=1,
    )
    return run_case(case)


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repetitions: shows that it runs, not how fast")
    parser.add_argument("--threads", type=int, default=2, help="kernel threads of both (default: 2)")
    parser.add_argument("--subject", default="neuron", help="device that is measured (default: neuron)")
    parser.add_argument("--json", type=Path, help="write the measurements there")
    options = parser.parse_args(argv)
    if os.environ.get("OMP_NUM_THREADS") != str(options.threads):  # queue workers read it when they start
        arguments = sys.argv[1:] if argv is None else list(argv)
        command = [sys.executable, "-m", "benchmarks.flex_attention", *arguments]
        os.execve(sys.executable, command, thread_environment(options.threads))
    report = Report("FlexAttention on the device against attention on the CPU")
    for w in track(WORKLOADS, "flex attention", console=Console(stderr=True), transient=True):
        report.add(f"against {w.reference}", [measure(w, torch.device(options.subject), options.quick)])
    report.print()
    if options.json:
        report.write_json(options.json)


if __name__ == "__main__":
    main()
