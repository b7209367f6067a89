"""The tests of nki-library, run by its own pytest set-up with this simulator in the place of the one that it expects.

The library's harness imports a package `nki_cpu_simulator`, a private one, `neuron_dtypes`, and what it needs to reach
other hosts; `stand_ins/` has these. From PyPI it needs attrs, allpairspy, filelock, psutil, pytest-html and scipy. Of
each test it runs the parameters that the library marks as fast.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from conformance.nki.outcome import CRASHED, FAILED, PASSED, SKIPPED, Outcome

__all__ = ["NAME", "files", "run"]

NAME = "library"
FOLDER = "nki-library"
# Folders of tests below test/integration/nkilib. The fast tests of the others take from many minutes to hours on a
# simulator: whole attention, MLP and MoE layers, norms and losses over long sequences.
FOLDERS = (
    "core/cumsum", "core/embeddings", "core/max", "core/topk", "core/subkernels", "experimental/dynamic_shapes"
)  # fmt: skip


def files(root: Path) -> list[str]:
    """Test files that are run, relative to the folder of the integration tests."""
    base = root / FOLDER / "test/integration/nkilib"
    found: list[str] = []
    for name in FOLDERS:
        found += [str(p.relative_to(base)) for p in sorted((base / name).glob("test_*.py"))]
    return found


def run(root: Path, name: str, timeout: float) -> list[Outcome]:
    """Runs one file of tests in a process of its own."""
    home = root / FOLDER
    stand_ins = Path(__file__).with_name("stand_ins")
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(
            (str(stand_ins), str(home), str(home / "src"), environment.get("PYTHONPATH", ""))
        )
        command = [
            sys.executable, "-m", "pytest", f"test/integration/nkilib/{name}", "--test-mode", "simulation",
            f"--junitxml={report}", "-q", "-m", "fast", "-p", "no:cacheprovider", "-p", "library_host"
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, cwd=home, env=environment, capture_output=True, text=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired:
            return [Outcome(NAME, name, f"{name}::run", CRASHED, f"not done after {timeout:.0f} s")]
        if not report.exists():
            lines = (done.stdout + done.stderr).strip().splitlines()
            return [Outcome(NAME, name, f"{name}::run", CRASHED, " | ".join(lines[-4:]))]
        return _parsed(name, report)


def _parsed(name: str, report: Path) -> list[Outcome]:
    found = []
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        status, message = PASSED, ""
        for child in case:
            if child.tag in ("failure", "error"):
                status, message = FAILED, child.get("message", "")
            elif child.tag == "skipped":
                status, message = SKIPPED, child.get("message", "")
        found.append(Outcome(NAME, name, f"{name}::{case.get('name')}", status, message, float(case.get("time", 0))))
    return found
