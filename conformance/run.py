"""The command line: chooses cases, runs them, reports, and exits with 1 on any failure or unexpected pass."""

from __future__ import annotations

import argparse
import dataclasses
import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from conformance import report, suites
from conformance.cases import Case, Selection, chunks
from conformance.processes import Runner, Settings
from conformance.verdicts import FOLDER
from conformance.verdicts import load as load_verdicts

CHUNK_SIZE = 500
# `--sample`: one case in so many, with few samples each; fits the fast tier of the tests.
SAMPLE_SLICES = 20
SAMPLE_LIMIT = 6


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the conformance suites; returns the exit code."""
    options = _parser().parse_args(arguments)
    selection = _selection(options)
    console = report.console()
    names = [suites.COMPILED] if options.compile else options.suite or suites.NAMES
    everything: list[Case] = [case for name in names for case in suites.load(name).cases()]
    verdicts = load_verdicts(options.verdicts, names)
    verdicts.check(everything)
    if options.device == "cpu":
        verdicts = verdicts.of_the_tables()
    cases = [case for case in everything if selection(case)]
    if options.list:
        for case in cases:
            verdict = verdicts.of(case)
            console.print(str(case), *([f"[{verdict.kind}: {verdict.reason}]"] if verdict else []), markup=False)
        console.print(f"{len(cases)} cases of {len(everything)}")
        return 0
    settings = Settings(
        candidate=options.candidate or options.device,
        max_samples=options.max_samples or (SAMPLE_LIMIT if options.sample else 32),
        case_seconds=options.timeout,
        jobs=options.jobs,
    )
    began = time.monotonic()
    results: list[report.Result] = []
    # Small runs are split as well, so that every process has something to do.
    size = min(CHUNK_SIZE, max(1, -(-len(cases) // settings.jobs)))
    with report.Live(console, len(cases), settings.jobs) as live:

        def keep(result: report.Result) -> None:
            results.append(result)
            live.result(result)

        Runner(settings, verdicts, live.begin, keep).run(chunks(cases, size))
    if options.json is not None:
        report.write_json(options.json, results, dataclasses.asdict(settings))
    return _conclude(console, results, time.monotonic() - began)


def _conclude(console: report.Console, results: list[report.Result], seconds: float) -> int:
    bad = sorted((result for result in results if result.status in report.BAD), key=lambda result: result.case)
    console.print(report.table(results))
    for result in bad:
        console.print(f"{result.status.upper()} {result.case}: {result.message}", markup=False, soft_wrap=True)
    counts = Counter(result.status for result in results)
    console.print(f"{report.summary(counts)} in {seconds:.1f} s", markup=False)
    return 1 if bad or not results else 0


def _selection(options: argparse.Namespace) -> Selection:
    index, count = (1, SAMPLE_SLICES) if options.sample else options.slice
    return Selection(
        only=options.only,
        variants=options.variant or (),
        dtypes=options.dtype or (),
        slice_index=index,
        slice_count=count,
    )


def _slice(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    return int(index), int(count)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m conformance", description=__doc__)
    parser.add_argument("--device", default="neuron", help="the device under test (default: neuron)")
    parser.add_argument("--candidate", help="module:function that returns the device under test, instead of --device")
    parser.add_argument("--suite", action="append", choices=suites.NAMES, help="only this suite (repeatable)")
    parser.add_argument("--variant", action="append", help="only this variant, e.g. forward or gradient (repeatable)")
    parser.add_argument("--dtype", action="append", help="only this dtype, e.g. float32 (repeatable)")
    parser.add_argument("--only", default="", metavar="REGEX", help="only cases whose name matches; see --list")
    parser.add_argument("--compile", action="store_true", help="op_db under torch.compile, instead of the other suites")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--slice", type=_slice, default=(1, 1), metavar="N/M", help="the N-th of M fixed random parts")
    part.add_argument("--sample", action="store_true", help="a fixed random part with few samples, under a minute")
    parser.add_argument("--max-samples", type=int, metavar="K", help="at most K samples of an entry (default: 32)")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help="seconds after which a case hangs")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="processes at a time")
    parser.add_argument("--verdicts", type=Path, default=FOLDER, metavar="DIR", help="where the verdict files are")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every result to FILE")
    parser.add_argument("--list", action="store_true", help="print the names of the cases and stop")
    return parser
