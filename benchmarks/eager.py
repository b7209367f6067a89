"""Eager mode against CPU eager: host cost per op, wall time per training step, peak memory.

Both devices take turns in one process with the same number of kernel threads (peak memory: a process each). Ratios are
neuron / CPU, of the best of all repetitions; below 1 means that neuron is faster or smaller.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import section
from benchmarks.interleave import Report

SECTIONS = (
    ("Host cost per op", "benchmarks.host_cost", 1),
    ("Training step, the final wait included", "benchmarks.training_step", 1),
    ("Training step, the final wait included", "benchmarks.training_step", 2),
    ("Peak resident memory of a training process", "benchmarks.peak_memory", 2),
)


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.eager", description=__doc__)
    section.add_arguments(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE as well")
    arguments = parser.parse_args(argv)

    settings = section.Settings(arguments.reference, arguments.subject, threads=1, quick=arguments.quick)
    report = Report(f"Eager: {arguments.subject} / {arguments.reference}" + (", quick run" if arguments.quick else ""))
    for title, module, threads in SECTIONS:
        report.add(title, section.run(module, replace(settings, threads=threads)))
    report.print()
    if arguments.json:
        report.write_json(arguments.json)


if __name__ == "__main__":
    main()
