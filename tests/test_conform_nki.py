"""The runner of the public NKI suites: it finds suites, judges results and says how to get what is absent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conformance.nki import instructions, samples
from conformance.nki.outcome import (
    EXPECTED,
    FAILED,
    FILE,
    PASSED,
    UNEXPECTED,
    Outcome,
    Verdict,
    VerdictError,
    judged,
    load,
    unused,
)
from conformance.nki.run import main

_TEST = """
import unittest

import neuronxcc.nki as nki
import neuronxcc.nki.language as nl
import numpy as np


@nki.jit(mode="simulation")
def double(x):
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(y, nl.load(x) * 2.0)
    return y


class TestDouble(unittest.TestCase):
    def test_right(self):
        x = np.ones((4, 4), np.float32)
        self.assertTrue(np.allclose(double(x), 2 * x))

    def test_wrong(self):
        x = np.ones((4, 4), np.float32)
        self.assertTrue(np.allclose(double(x), 3 * x))
"""


def test_absent_suites_are_no_failure(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--root", str(tmp_path)]) == 0
    assert "not present" in (text := capsys.readouterr().out)
    assert "git clone" in text


def test_a_file_of_unit_tests_is_run_and_each_test_counted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / instructions.FOLDER
    folder.mkdir(parents=True)
    (folder / "test_double.py").write_text(_TEST)
    report = tmp_path / "report.json"
    code = main(["--root", str(tmp_path), "--suite", "instructions", "--only", "double", "--json", str(report)])
    assert code == 1
    assert {o["case"]: o["status"] for o in json.loads(report.read_text())} == {
        "test_double::test_right": PASSED,
        "test_double::test_wrong": FAILED,
    }
    assert "1/2   test_double" in capsys.readouterr().out


def test_samples_whose_files_are_absent_are_left_out(tmp_path: Path) -> None:
    assert samples.kernels(tmp_path) == []
    assert len(samples.CASES) == 33


def test_an_expected_failure_that_passes_is_an_error() -> None:
    verdicts = [Verdict("samples", "attn_*", "xfail", "the reason why it fails")]
    failed = Outcome("samples", "attn_v1", "attn_v1", FAILED, "wrong")
    passed = Outcome("samples", "attn_v1", "attn_v1", PASSED)
    assert judged(failed, verdicts).status == EXPECTED
    assert judged(failed, verdicts).message == "the reason why it fails"
    assert judged(passed, verdicts).status == UNEXPECTED
    assert judged(Outcome("samples", "matmul", "matmul", FAILED), verdicts).status == FAILED
    assert unused(verdicts, [failed]) == []
    assert unused(verdicts, [Outcome("samples", "matmul", "matmul", PASSED)]) == verdicts


@pytest.mark.parametrize(
    "entry",
    ['verdict = "xfail"\nreason = "short"', 'verdict = "perhaps"\nreason = "a reason that is long enough"', ""],
)
def test_a_verdict_needs_a_kind_and_a_reason(tmp_path: Path, entry: str) -> None:
    path = tmp_path / "verdicts.toml"
    path.write_text(f'[[verdict]]\nsuite = "samples"\ncase = "matmul"\n{entry}\n')
    with pytest.raises(VerdictError):
        load(path)


def test_the_verdict_file_can_be_read() -> None:
    assert all(v.reason for v in load(FILE))
