"""The attention kernel of nkilib, run by the simulator of a core, against attention by PyTorch on the CPU in fp32.

A section of `python -m benchmarks.nki`.

The peer is F.scaled_dot_product_attention with its math backend: all scores in memory. The kernel does what the chip
would do, instruction by instruction: tiles, an online softmax, transposes. Results are compared before anything is
measured; the remark is the time that the kernel would take on a core of trn2 (modelled).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import nki
import nkilib
from benchmarks import section
from benchmarks.interleave import Case, Row, run_case
from benchmarks.section import milliseconds, synchronizer
from nkilib.flash_attention import flash_attention_forward


@dataclass(frozen=True)
class Workload:
    """One line of the table."""

    name: str
    sequence: int
    dtype: torch.dtype
    causal: bool = False
    bound: float | None = None
    heads: int = 8
    depth: int = 128
    backward: bool = False

    def operands(self) -> list[Tensor]:
        """Query, key and value on the CPU, in fp32."""
        source = torch.Generator().manual_seed(1)
        return [torch.randn(1, self.heads, self.sequence, self.depth, generator=source) for _ in range(3)]


WORKLOADS = [
    Workload("2048, bf16", 2048, torch.bfloat16, bound=3.0),
    Workload("2048 causal, bf16", 2048, torch.bfloat16, causal=True),
    Workload("2048, fp32", 2048, torch.float32),
    Workload("2048 causal, bf16, with gradients", 2048, torch.bfloat16, causal=True, backward=True),
]


def step_of(attend: Callable[..., Tensor], operands: Sequence[Tensor], backward: bool) -> Callable[[], list[Tensor]]:
    """One call: the output, and the gradients of its sum where they are asked for."""
    leaves = [t.requires_grad_(backward) for t in operands]

    def step() -> list[Tensor]:
        out = attend(*leaves)
        gradients = torch.autograd.grad(out, leaves, torch.ones_like(out)) if backward else ()
        return [out.detach(), *gradients]

    return step


def modelled(w: Workload) -> str:
    """How long the forward kernel takes on a core of trn2, by the model."""
    operands = [t.to(w.dtype) for t in w.operands()]
    profile = nki.profile(flash_attention_forward, target="trn2")(*operands, None, -1, 0 if w.causal else -1)
    return f"forward on trn2: {profile.latency_us:.0f} us (modelled)"


def measure(w: Workload, device: torch.device, quick: bool) -> Row:
    """A row of the table."""

    def math(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel([SDPBackend.MATH]):
            return F.scaled_dot_product_attention(q, k, v, is_causal=w.causal)

    def kernel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        result: Tensor = nkilib.flash_attention(q, k, v, causal=w.causal)
        return result

    reference = step_of(math, w.operands(), w.backward)
    subject = step_of(kernel, [t.to(w.dtype).to(device) for t in w.operands()], w.backward)
    limit = 1e-4 if w.dtype == torch.float32 else 3e-2
    for actual, expected in zip(subject(), reference(), strict=True):
        torch.testing.assert_close(actual.cpu().float(), expected, rtol=limit, atol=limit * float(expected.abs().max()))
    here, there = synchronizer(device), synchronizer(torch.device("cpu"))
    case = Case(
        name=w.name,
        unit="ms",
        measure={"math, fp32": lambda: milliseconds(reference, there), "nkilib": lambda: milliseconds(subject, here)},
        threads=torch.get_num_threads(),
        bound=w.bound,
        repetitions=2 if quick else 10,
        warmup=1,
    )
    return run_case(case, lambda: modelled(w))


def rows(settings: section.Settings) -> Sequence[Row]:
    """The section's rows."""
    device = torch.device(settings.subject)
    works = track(WORKLOADS, "nki attention", console=Console(stderr=True), transient=True)
    return [measure(w, device, settings.quick) for w in works]


if __name__ == "__main__":
    section.main(rows, __doc__, None)
