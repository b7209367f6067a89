"""Command line of the NKI suites: finds them, runs each file in a process of its own, prints a table."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from conformance.nki import instructions, library, samples
from conformance.nki.outcome import (
    CRASHED,
    GOOD,
    PASSED,
    SKIPPED,
    Outcome,
    Verdict,
    judged,
    load,
    unused,
    verdict_of,
)

__all__ = ["main"]

SUITES = ("instructions", "samples", "library")
_HELP = """The suites are not part of this repository. To run them, clone them into one folder and name it:

    mkdir suites && cd suites
    git clone --depth 1 https://github.com/aws-neuron/aws-neuron-sdk
    git clone --depth 1 https://github.com/aws-neuron/nki-samples
    git clone --depth 1 https://github.com/aws-neuron/nki-library
    NKI_SUITES=$PWD python -m conformance.nki
"""


def main(arguments: list[str] | None = None) -> int:
    """Runs the suites. Returns 1 if a case has another result than its verdict says, or a verdict is about nothing."""
    parser = argparse.ArgumentParser("python -m conformance.nki", description=__doc__)
    parser.add_argument("--suite", choices=SUITES, action="append", help="by default instructions and samples")
    parser.add_argument("--root", type=Path, default=os.environ.get("NKI_SUITES"), help="folder of the suites")
    parser.add_argument("--only", default="", help="files and kernels whose name contains this")
    parser.add_argument("--timeout", type=float, default=900, help="seconds for one file")
    parser.add_argument("--json", type=Path, help="where all results are written")
    parser.add_argument("--worker", nargs=2, metavar=("SUITE", "GROUP"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        return _work(Path(options.root), *options.worker)
    root = Path(options.root) if options.root else None
    chosen = options.suite or ["instructions", "samples"]
    groups = {suite: _groups(suite, root) for suite in chosen} if root and root.is_dir() else {}
    if not any(groups.values()):
        where = f"in {root}" if root else "because NKI_SUITES is not set"
        print(f"NKI suites: not present {where}.\n\n{_HELP}")
        return 0
    assert root is not None
    verdicts = load()
    outcomes: list[Outcome] = []
    for suite in chosen:
        names = [name for name in groups[suite] if options.only in name]
        if not groups[suite]:
            print(f"{suite}: not present in {root}")
            continue
        found = [o for name in names for o in _run(root, suite, name, options.timeout, verdicts)]
        _print(suite, found)
        outcomes += found
    stale = [] if options.only else unused(verdicts, outcomes)
    for verdict in stale:
        print(f"verdicts.toml: no case matches {verdict.suite}/{verdict.case}; remove it or mend its name")
    if options.json:
        options.json.write_text(json.dumps([asdict(o) for o in outcomes], indent=1), encoding="utf-8")
    return 1 if stale or any(o.status not in GOOD for o in outcomes) else 0


def _groups(suite: str, root: Path) -> list[str]:
    if suite == "instructions":
        return [path.stem for path in instructions.files(root)]
    return samples.kernels(root) if suite == "samples" else library.files(root)


def _run(root: Path, suite: str, name: str, timeout: float, verdicts: list[Verdict]) -> list[Outcome]:
    """One file or kernel, in a process of its own: what takes it down takes nothing else down."""
    skip = verdict_of(verdicts, suite, name)
    if skip is not None and skip.kind == "skip":
        return [Outcome(suite, name, name, SKIPPED, skip.reason)]
    if suite == "library":
        return [judged(o, verdicts) for o in library.run(root, name, timeout)]
    command = [sys.executable, "-m", "conformance.nki", "--root", str(root), "--worker", suite, name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
        last = done.stdout.strip().splitlines()[-1:] or [""]
        found = [Outcome(**item) for item in json.loads(last[0])]
    except subprocess.TimeoutExpired:
        found = [Outcome(suite, name, name, CRASHED, f"not done after {timeout:.0f} s")]
    except (json.JSONDecodeError, TypeError):
        found = [Outcome(suite, name, name, CRASHED, f"exit {done.returncode}: {done.stderr.strip()[-300:]}")]
    return [judged(o, verdicts) for o in found]


def _work(root: Path, suite: str, name: str) -> int:
    found = instructions.run(root, name) if suite == "instructions" else samples.run(root, name)
    print()
    print(json.dumps([asdict(o) for o in found]))
    return 0


def _print(suite: str, outcomes: list[Outcome]) -> None:
    """A line per file or kernel, then what did not pass."""
    groups = dict.fromkeys(o.group for o in outcomes)
    print(f"\n{suite}: {len(groups)} files or kernels, {len(outcomes)} cases")
    whole = 0
    for group in groups:
        mine = [o for o in outcomes if o.group == group]
        passed = sum(o.status == PASSED for o in mine)
        counts = Counter(o.status for o in mine if o.status != PASSED)
        rest = "".join(f", {n} {status}" for status, n in counts.items())
        whole += not counts
        print(f"  {passed:>3}/{len(mine):<3} {group}{rest}  {sum(o.seconds for o in mine):.1f} s")
    print(f"  {whole} of {len(groups)} pass whole")
    for outcome in outcomes:
        # What a suite skips by itself, as too long for a simulator, is only counted.
        by_itself = outcome.status == SKIPPED and outcome.case != outcome.group
        if outcome.status != PASSED and not by_itself:
            first = outcome.message.splitlines()[:1]
            print(f"  {outcome.status}: {outcome.case}", *(f"      {line}" for line in first), sep="\n")
