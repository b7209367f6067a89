"""Writes docs/model-accuracy.md: every public measurement of a kernel or a transfer, beside what the model says.

    python scripts/model_accuracy.py > docs/model-accuracy.md

Kernels are those of benchmarks/nki_models; only their shapes matter, so arguments take no memory.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.nki_models import anchors, mamba, matmul
from neuron_hw import CHIPS, chip, shares_of_rows, transfer_time
from nki.profiling import Profile, profile

OPTIMIZATION = "Introduction to NKI Kernel Optimization"
MAMBA = "Fused Mamba"
DMA = "Introduction to DMA with NKI"
PERFORMANCE = "NKI Performance Optimizations"


@dataclass(frozen=True)
class Row:
    """One published figure.

    Attributes:
        what: what was measured.
        published, modelled: values in `unit`.
        points: the error is a difference (percentages), not a part of the published value.
        note: what explains an error.
    """

    what: str
    published: float
    modelled: float
    unit: str
    points: bool = False
    note: str = ""

    @property
    def error(self) -> float:
        if self.points:
            return self.modelled - self.published
        return 100 * (self.modelled / self.published - 1)

    def text(self) -> str:
        error = f"{self.error:+.1f} points" if self.points else f"{self.error:+.1f} %"
        cells = (self.what, _number(self.published), _number(self.modelled), self.unit, error, self.note)
        return f"| {' | '.join(cells)} |"


def _number(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 1000 else f"{value:.0f}"


def zeros(*shape: int, dtype: str = "float32") -> np.ndarray[Any, Any]:
    """An argument that takes no memory."""
    return np.broadcast_to(np.zeros((), dtype), shape)


# Matrix products -----------------------------------------------------------------------------------------------------

M, K, N = 4096, 8192, 8192


@functools.cache
def product(version: str, m: int = M, k: int = K, n: int = N) -> Profile:
    """One version of the guide's kernel on trn2, in fp32 as its driver runs it."""
    kernel = {"v2": matmul.tiled, "v3": matmul.hoisted, "v4": matmul.blocked_columns, "v5": matmul.blocked}[version]
    return profile(kernel, target="trn2")(zeros(k, m), zeros(k, n))


# version: ms, DMA %, tensor engine %, vector engine %, MFU %, MBU %, packet ms, as in the profile figures
PRODUCTS = {
    "v2": (39.89, 99.93, 87.28, None, 17.52, 38.06, 519.58),
    "v3": (28.20, 99.73, 99.85, None, 24.79, 43.87, 402.07),
    "v5": (28.30, 21.54, 99.50, 10.55, 24.70, 8.96, 81.73),
}
_NAMES = {"v2": "tiled (v2)", "v3": "hoisted (v3)", "v5": "blocked (v5)"}


def products() -> list[Row]:
    rows = []
    for version, (time, dma, tensor, vector, mfu, mbu, packets) in PRODUCTS.items():
        p, name = product(version), _NAMES[version]
        t = p.timeline
        rows.append(Row(f"{name}: time", time, p.latency_us / 1e3, "ms"))
        rows.append(Row(f"{name}: DMA active", dma, p.engines["dma"], "%", True))
        rows.append(Row(f"{name}: tensor engine active", tensor, p.engines["tensor"], "%", True))
        if vector is not None:
            rows.append(Row(f"{name}: vector engine active", vector, p.engines["vector"], "%", True))
        rows.append(Row(f"{name}: MFU", mfu, t.mfu_percent, "%", True))
        rows.append(Row(f"{name}: MBU", mbu, t.mbu_percent, "%", True))
        rows.append(Row(f"{name}: DMA packet time", packets, t.dma_busy / 1e6, "ms"))
    return rows


# Mamba ---------------------------------------------------------------------------------------------------------------


def scan(kernel: Any, channels: int, length: int, **options: Any) -> Profile:
    """One version of the Mamba guide's kernel on trn1, with 16 states."""
    wide, states = (channels, length), 16
    arguments = (zeros(*wide), zeros(*wide), zeros(channels, states), zeros(states, length), zeros(states, length))
    return profile(kernel, target="trn1")(*arguments, **options)


TILED = {512: 1.6, 1024: 3.3, 2048: 6.6, 3072: 10.1, 4096: 13.3, 5120: 17.3, 6144: 19.6, 7168: 24.2, 8192: 27.8}
REORDERED = {1024: 4.4, 2048: 8.9, 3072: 13.1, 4096: 17.6, 5120: 23.7, 6144: 27.5, 7168: 41.3, 8192: 52.2}


def scans() -> list[Row]:
    toy = scan(mamba.first, 256, 512)
    rows = [
        Row("v1, 256 channels: time without start-up", 150.93, toy.latency_us, "us"),
        Row("v1, 256 channels: vector engine active", 98.71, toy.engines["vector"], "%", True),
    ]
    first = scan(mamba.first, 4096, 512)
    rows += [
        Row("v1: time", 2.34, first.latency_us / 1e3, "ms"),
        Row("v1: vector engine active time", 2.12, first.timeline.active["vector"] / 1e6, "ms"),
    ]
    second = scan(mamba.reordered, 4096, 512)
    rows += [
        Row("v2: time", 1.61, second.latency_us / 1e3, "ms"),
        Row("v2: vector engine active time", 1.57, second.timeline.active["vector"] / 1e6, "ms"),
    ]
    for length, time in TILED.items():
        third = scan(mamba.tiled, 4096, length)
        rows.append(Row(f"v3, {length} columns: time", time, third.latency_us / 1e3, "ms"))
        if length == 8192:
            active = third.timeline.active["vector"] / 1e6
            rows.append(Row("v3, 8192 columns: vector engine active time", 26.26, active, "ms"))
    return rows


def long_scans() -> list[Row]:
    rows = []
    for length, time in REORDERED.items():
        p = scan(mamba.reordered, 4096, length, hoist=False)
        note = f"{p.timeline.spilled / 2**30:.1f} GiB spilled" if p.timeline.spilled else ""
        rows.append(Row(f"v2, {length} columns: time", time, p.latency_us / 1e3, "ms", note=note))
    return rows


# Transfers and single instructions -----------------------------------------------------------------------------------


def transfers() -> list[Row]:
    trn2 = chip("trn2")
    rows = []
    one = shares_of_rows(trn2, 0, 4, 1, 8192, runs=1 / 4)
    rows.append(Row("[4, 4096] bf16 through one engine: its time", 1416, one[0].time, "ns"))
    rows.append(
        Row("[4, 4096] bf16: trigger to the start of exp", 2720, transfer_time(trn2, one), "ns", note="from the figure")
    )
    all_16 = shares_of_rows(trn2, 0, 128, 1, 256, runs=1 / 8)
    rows.append(Row("[128, 128] bf16 over 16 engines: time of one", 97, all_16[0].time, "ns"))
    for name, rate in (("trn1", 272), ("trn2", 368), ("trn3", 528)):
        size = 32768
        row = shares_of_rows(chip(name), 0, 128, 1, size)
        total = 128 * size / max(s.time for s in row)
        rows.append(Row(f"{name}: 32 KiB per partition, all engines", rate, total, "GB/s"))
    dependent = profile(anchors.dependent_activations, target="trn1")(zeros(128, 1), 256)
    each = dependent.timeline.active["scalar"] / 256
    rows.append(Row("dependent activations of one element, trn1", 189, each, "ns", note="scalar_latency is from this"))
    return rows


# Share of the largest throughput, read from the figure of "Introduction to DMA" to about 1 %; its axis has no numbers.
CURVE = {256: 10.3, 512: 20.6, 1024: 42.2, 2048: 81.3, 4096: 96.6, 8192: 98.3, 16384: 99.0}


def curve() -> list[Row]:
    rows = []
    most = 0.0
    found: dict[int, float] = {}
    for size in (*CURVE, 32768):
        p = profile(anchors.loads, target="trn2")(zeros(128 * 400, size // 4))
        found[size] = p.timeline.hbm_read / p.timeline.latency
        most = max(most, found[size])
    for size, share in CURVE.items():
        rows.append(Row(f"{size} B per partition", share, 100 * found[size] / most, "% of the largest", True))
    return rows


# The document --------------------------------------------------------------------------------------------------------

HEAD = "| what | published | modelled | unit | error | note |\n|---|---|---|---|---|---|"


def table(rows: list[Row]) -> str:
    return "\n".join([HEAD, *(r.text() for r in rows)])


def conflicts() -> str:
    rows = ["| chip | fact | used | other | why |", "|---|---|---|---|---|"]
    seen = set()
    for name, machine in CHIPS.items():
        for fact, value in machine.conflicts().items():
            for other in value.conflicts:
                if (name, float(value), other) in seen:
                    continue
                seen.add((name, float(value), other))
                rows.append(
                    f"| {name} | {fact} | {float(value):g} {value.unit} ({value.source}) | "
                    f"{other.value:g} ({other.source}) | {other.reason} |"
                )
    return "\n".join(rows)


def inferences() -> str:
    rows = []
    for fact, value in chip("trn2").facts().items():
        if value.inferred:
            rows.append(f"- `{fact}` = {float(value):g} {value.unit}: {value.source.removeprefix('inference: ')}")
    return "\n".join(rows)


SECTIONS: tuple[tuple[str, str, Callable[[], list[Row]]], ...] = (
    (
        f"Matrix products of {M} x {K} x {N}",
        f"""Source: "{OPTIMIZATION}", text and profile figures; trn2, one core. The guide's driver passes fp32, and its
figures agree: at 24.7 % MFU and 99.5 % activity each product takes four passes. What the model has for each version:

- v2 is bound by descriptors: 67,584 transfers, 600 ns each, made one after the other. The tensor engine waits for each
  pair of tiles; the time it is active is the time of a product plus filling and draining the array.
- v3 is bound by the tensor engine; loads keep up with 2 KiB per partition. Its DMA is idle where loads wait for a
  place in SBUF; where the vendor's compiler puts tensors, and so how far loads run ahead, is not published.
- v5 needs 224 KiB per partition of SBUF, of which 208 KiB may be used. What is too much is spilled: the traffic that
  the published MBU implies (1.82 GB, against 1.48 GB of the kernel itself) has the same size as the modelled one.""",
        products,
    ),
    (
        "Mamba, 16 states, fp32",
        f"""Source: "{MAMBA}", text and profile figures. 4096 channels and 512 columns where nothing else is said. The
page does not name the chip; its vector engine times fit trn1, with 100 cycles more for each instruction that depends on
the one before (architecture guide). v1 waits for some of its loads on the chip and not in the model, where the compiler
is taken to load as early as there is room.""",
        scans,
    ),
    (
        "Mamba v2 with long sequences",
        f"""Source: "{MAMBA}". From 1024 columns on, measured times are those of the product of delta and u computed for
every state, as the text of the kernel has it; at 512 columns the compiler took it out of the loop. SBUF is too small
from 6144 columns on, and spilling sets in where it does on the chip; how the compiler picks what to spill is not
published, and the model picks the best, so it is too fast there.""",
        long_scans,
    ),
    (
        "Single transfers and instructions",
        f"""Source: "{DMA}" with its figures; "{PERFORMANCE}" for the activations. trn2 where nothing else is
said.""",
        transfers,
    ),
    (
        "Throughput by bytes per partition",
        f"""Source: the curve in "{DMA}", whose vertical axis has no numbers and whose chip, queue and way of making
descriptors are not stated; compared is the share of the largest value. Modelled is one queue on trn2 with descriptors
made on the device: below 2 KiB per partition the time is that of the descriptors, 600 ns a transfer, which gives the
shape of the curve; its height there says 850 ns a transfer. The matrix products above, which are bound by the same
limit, give 590 ns. Both cannot be right for one machine; the documented 600 ns is used.""",
        curve,
    ),
)


def main() -> None:
    print("""<!-- Written by `python scripts/model_accuracy.py > docs/model-accuracy.md`. -->
# How far the cost model is from published measurements

`nki.profile` and everything else that says "modelled" rests on `neuron_hw`: formulas over documented constants. This
page puts every public measurement that we know of beside what they give. No constant is fitted to a kernel; constants
that were read from a profile figure say so in their source. Errors are of the model: negative is too little.
""")
    for title, text, rows in SECTIONS:
        print(f"## {title}\n\n{text}\n\n{table(rows())}\n")
    print(f"""## What no page says

No public measurement of a kernel on trn3 was found, and none of collectives with a stated instance type. These
constants of trn2 are conclusions of ours:

{inferences()}

## Pages that disagree

{conflicts()}""")


if __name__ == "__main__":
    main()
