"""Captured graphs: replays against the same work on CPU eager, Inductor on the CPU, and the device launching op by op.

Peers take turns in one process per section with the same number of kernel threads. `ratio` is replay / CPU eager of the
best of all repetitions, the columns after the bound are replay / that peer. Replays that do not give the bits of eager
mode on the device end the run with an error.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks import section
from benchmarks.interleave import Report
from benchmarks.window import compiler_found

SECTIONS: tuple[tuple[str, str], ...] = (
    ("Host cost of a call, not waited for", "host"),
    ("Call and wait", "call"),
    ("Training step", "step"),
)


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.graphs", description=__doc__)
    section.add_arguments(parser)
    parser.add_argument("--threads", type=int, default=1, help="kernel threads of each peer (default: 1)")
    parser.add_argument("--no-inductor", action="store_true", help="leave Inductor out")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE as well")
    arguments = parser.parse_args(argv)

    inductor = not arguments.no_inductor and compiler_found()
    settings = section.Settings(
        arguments.reference, arguments.subject, arguments.threads, arguments.quick, inductor=inductor
    )
    report, progress = Report(f"Graphs: replays on {arguments.subject}"), Console(stderr=True)
    for number, (heading, part) in enumerate(SECTIONS, 1):
        progress.print(f"{number}/{len(SECTIONS)} {heading}", highlight=False)
        report.add(heading, section.run("benchmarks.graph_replays", settings, "--part", part))
    report.print()
    if arguments.json:
        report.write_json(arguments.json)


if __name__ == "__main__":
    main()
