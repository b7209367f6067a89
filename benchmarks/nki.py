"""Kernels of NKI on the simulated core: a matrix product, attention, and many small instructions.

Each section takes turns with its peer in a process of its own: torch's fp32 product on the CPU, torch's fp32 attention
by products and softmax, one NumPy call an instruction. Results are compared before anything is measured. All figures
are wall time of this machine, except where a remark says that it is modelled time of a chip.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks import section
from benchmarks.interleave import Report

# Heading, module, and kernel threads of both peers.
SECTIONS: tuple[tuple[str, str, int], ...] = (
    ("Matrix products of nkilib against torch.matmul in fp32", "benchmarks.nki_matmul", 2),
    ("Attention of nkilib, 8 heads of 128 elements, against attention in fp32", "benchmarks.nki_attention", 2),
    ("10,000 instructions on tiles of 128 x 32 against NumPy", "benchmarks.nki_instructions", 1),
)


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nki", description=__doc__)
    section.add_arguments(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE as well")
    arguments = parser.parse_args(argv)

    report, progress = Report("NKI: kernels on the simulated core"), Console(stderr=True)
    for number, (heading, module, threads) in enumerate(SECTIONS, 1):
        progress.print(f"{number}/{len(SECTIONS)} {heading}", highlight=False)
        settings = section.Settings(arguments.reference, arguments.subject, threads, arguments.quick)
        report.add(heading, section.run(module, settings))
    report.print()
    if arguments.json:
        report.write_json(arguments.json)


if __name__ == "__main__":
    main()
