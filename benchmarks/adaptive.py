"""Adaptive eager: the device with its fusion window on, against CPU eager, Inductor on the CPU, and the window off.

Peers take turns in one process per section with the same number of kernel threads. `ratio` is window on / CPU eager of
the best of all repetitions, the columns after the bound are window on / that peer. A workload whose results are not
those of CPU eager to the bit (bfloat16 training: nearly) ends the run with an error.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks import section
from benchmarks.interleave import Report
from benchmarks.window import compiler_found

SECTIONS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("Pointwise and row-wise work on 16 MiB tensors", "benchmarks.adaptive_pointwise", ()),
    ("First call with a new shape", "benchmarks.adaptive_first_call", ()),
    ("Training step, float32", "benchmarks.adaptive_training", ("--part", "float32")),
    ("Training step, bfloat16", "benchmarks.adaptive_training", ("--part", "bfloat16")),
    ("Training step, small ops", "benchmarks.adaptive_training", ("--part", "small")),
)


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adaptive", description=__doc__)
    section.add_arguments(parser)
    parser.add_argument("--threads", type=int, default=2, help="kernel threads of each peer (default: 2)")
    parser.add_argument("--no-inductor", action="store_true", help="leave Inductor out; its first calls take a minute")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE as well")
    arguments = parser.parse_args(argv)

    inductor = not arguments.no_inductor and compiler_found()
    settings = section.Settings(
        arguments.reference, arguments.subject, arguments.threads, arguments.quick, inductor=inductor
    )
    title = f"Adaptive eager: {arguments.subject} / {arguments.reference}" + (", quick run" if arguments.quick else "")
    report, progress = Report(title), Console(stderr=True)
    if not inductor:
        reason = "as asked" if arguments.no_inductor else "there is no C++ compiler"
        progress.print(f"Inductor is left out: {reason}.")
    for number, (heading, module, options) in enumerate(SECTIONS, 1):
        progress.print(f"{number}/{len(SECTIONS)} {heading}", highlight=False)
        report.add(heading, section.run(module, settings, *options))
    report.print()
    if arguments.json:
        report.write_json(arguments.json)


if __name__ == "__main__":
    main()
