"""torch.compile: the device against CPU eager and Inductor on the CPU.

Peers take turns in one process per section with the same number of kernel threads. Results are compared before anything
is measured.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks import section
from benchmarks.interleave import Report
from benchmarks.window import compiler_found

SECTIONS: tuple[tuple[str, str], ...] = (
    ("Compiled code (ratio against eager; bounds of Inductor's column as in the table)", "benchmarks.compile_steady"),
    ("Memory of a step (ratio against Inductor)", "benchmarks.compile_memory"),
    ("First call in a process (ratio against Inductor)", "benchmarks.compile_first_call"),
)


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compile", description=__doc__)
    section.add_arguments(parser)
    parser.add_argument("--threads", type=int, default=2, help="kernel threads of each peer (default: 2)")
    parser.add_argument("--no-inductor", action="store_true", help="leave Inductor out; its first calls take minutes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE as well")
    arguments = parser.parse_args(argv)

    inductor = not arguments.no_inductor and compiler_found()
    settings = section.Settings(
        arguments.reference, arguments.subject, arguments.threads, arguments.quick, inductor=inductor
    )
    title = f"torch.compile: {arguments.subject} / {arguments.reference}" + (", quick run" if arguments.quick else "")
    report, progress = Report(title), Console(stderr=True)
    for number, (heading, module) in enumerate(SECTIONS, 1):
        progress.print(f"{number}/{len(SECTIONS)} {heading}", highlight=False)
        rows = section.run(module, settings)
        if rows:
            report.add(heading, rows)
    report.print()
    if arguments.json:
        report.write_json(arguments.json)


if __name__ == "__main__":
    main()
