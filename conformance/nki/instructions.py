"""The tests of single instructions that came with the documentation of NKI Beta 1: unittest classes, one file each."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
import unittest
import warnings
from pathlib import Path

import numpy as np

from conformance.nki.outcome import FAILED, PASSED, Outcome

__all__ = ["NAME", "files", "run"]

NAME = "instructions"
FOLDER = "aws-neuron-sdk/nki/test"


def files(root: Path) -> list[Path]:
    """The test files, in order."""
    return sorted((root / FOLDER).glob("test_*.py"))


class _Result(unittest.TestResult):
    """Notes every test with the last line of its error."""

    def __init__(self, group: str) -> None:
        super().__init__()
        self.group = group
        self.outcomes: list[Outcome] = []
        self.started = 0.0

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        # Most tests do not seed; with one of them, whether it passes would depend on the draw.
        np.random.seed(0)
        self.started = time.monotonic()

    def _note(self, test: unittest.TestCase, status: str, message: str = "") -> None:
        case = f"{self.group}::{test.id().rpartition('.')[2]}"
        self.outcomes.append(Outcome(NAME, self.group, case, status, message, time.monotonic() - self.started))

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._note(test, PASSED)

    def addError(self, test, error) -> None:  # type: ignore[no-untyped-def]
        self._note(test, FAILED, f"{error[0].__name__}: {error[1]}")

    addFailure = addError


def run(root: Path, group: str) -> list[Outcome]:
    """Runs one file in this process. Some run a test while they are imported; that counts as a case of its own."""
    # As the simulator of that dialect did: types of few bits are computed with as fp32, and tolerances are fp32's.
    os.environ["NKI_PRECISE_FP"] = "0"
    path = root / FOLDER / f"{group}.py"
    spec = importlib.util.spec_from_file_location(group, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[group] = module
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            spec.loader.exec_module(module)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this file's result
            return [Outcome(NAME, group, f"{group}::import", FAILED, f"{type(error).__name__}: {error}")]
        result = _Result(group)
        unittest.defaultTestLoader.loadTestsFromModule(module).run(result)
    if not result.outcomes:
        return [Outcome(NAME, group, f"{group}::import", PASSED)]
    return result.outcomes
