"""Results of single cases, and what is known of them: ``verdicts.toml``.

    [[verdict]]
    suite = "instructions"
    case = "test_nki_isa_dma_copy::*"     # may have wildcards
    verdict = "xfail"                     # or "skip", for what cannot be run at all
    reason = "..."

A case with the verdict ``xfail`` is run and has to fail: one that passes is an error, so that it leaves the file.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

FILE = Path(__file__).with_name("verdicts.toml")
PASSED, FAILED, CRASHED, EXPECTED, UNEXPECTED, SKIPPED = (
    "passed", "failed", "crashed", "failed as expected", "passed unexpectedly", "skipped"
)  # fmt: skip
GOOD = frozenset({PASSED, EXPECTED, SKIPPED})
_KEYS = {"suite", "case", "verdict", "reason"}


class VerdictError(ValueError):
    """The verdict file says something that cannot be meant."""


@dataclass(frozen=True)
class Verdict:
    suite: str
    case: str
    kind: str
    reason: str


@dataclass(frozen=True)
class Outcome:
    """What became of one case.

    Attributes:
        group: file or kernel that the table counts it under.
        case: its full name.
        status: one of the statuses above.
        message: of the failure, or the reason of the verdict.
        seconds: that it took.
    """

    suite: str
    group: str
    case: str
    status: str
    message: str = ""
    seconds: float = 0.0


def load(path: Path = FILE) -> list[Verdict]:
    """Reads the verdict file; raises ``VerdictError`` for an entry without a reason or of an unknown kind."""
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    found = []
    for item in content.get("verdict", []):
        where = f"{path.name}: {item.get('suite')}/{item.get('case')}"
        if set(item) != _KEYS:
            raise VerdictError(f"{where}: keys are {sorted(item)}, expected {sorted(_KEYS)}")
        if item["verdict"] not in ("xfail", "skip"):
            raise VerdictError(f"{where}: verdict {item['verdict']!r}; expected xfail or skip")
        if len(item["reason"].strip()) < 15:
            raise VerdictError(f"{where}: an exclusion needs a reason that tells a reader why")
        found.append(Verdict(item["suite"], item["case"], item["verdict"], item["reason"]))
    return found


def verdict_of(verdicts: list[Verdict], suite: str, case: str) -> Verdict | None:
    """The verdict about a case, if there is one."""
    return next((v for v in verdicts if v.suite == suite and fnmatchcase(case, v.case)), None)


def judged(outcome: Outcome, verdicts: list[Verdict]) -> Outcome:
    """The outcome with its verdict taken into account."""
    verdict = verdict_of(verdicts, outcome.suite, outcome.case)
    if verdict is None or verdict.kind != "xfail":
        return outcome
    status = UNEXPECTED if outcome.status == PASSED else EXPECTED
    return Outcome(outcome.suite, outcome.group, outcome.case, status, verdict.reason, outcome.seconds)


def unused(verdicts: list[Verdict], outcomes: list[Outcome]) -> list[Verdict]:
    """Verdicts about suites that were run, but about none of their cases."""
    suites = {o.suite for o in outcomes}
    return [
        v
        for v in verdicts
        if v.suite in suites and not any(o.suite == v.suite and fnmatchcase(o.case, v.case) for o in outcomes)
    ]
