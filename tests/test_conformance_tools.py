"""The conformance harness itself: a fault of the device has to become a verdict, and nothing else may."""

from __future__ import annotations

import itertools
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance import verdicts
from conformance.cases import Case, Selection, chunks
from conformance.compare import COMPILED_RULE, GRADIENT_RULE, Grade, Mismatch, Observation, compare, no_farther
from conformance.placement import Placement
from conformance.report import Result, Status, rate
from conformance.run import main
from conformance.suites.suite import spread

CPU = torch.device("cpu")
CASE = Case("op", "abs", "forward", "float32")


def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, dict[str, tuple[str, str]]]:
    """Runs the harness and returns its exit code and, for each entry, status and message."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))))
    report = tmp_path / "report.json"
    code = main(["--suite", "op", "--jobs", "1", "--json", str(report), *arguments])
    results: list[dict[str, Any]] = json.loads(report.read_text())["results"]
    return code, {result["case"]["entry"]: (result["status"], result["message"]) for result in results}


def verdict_file(tmp_path: Path, text: str) -> Path:
    (tmp_path / "op.toml").write_text(text)
    return tmp_path


@pytest.mark.slow
def test_each_kind_of_fault_is_found_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = "abs|ceil|cos|exp|neg|sin|tan|mm"
    code, found = run(
        tmp_path,
        monkeypatch,
        *("--candidate", "conformance_candidates:faulty", "--timeout", "10"),
        *("--only", f"^op::({entries})::forward::float32$"),
    )
    assert code == 1
    assert found["abs"][0] == "crashed"
    assert "SIGABRT" in found["abs"][1]
    assert found["ceil"] == ("hung", "no answer in 10 s")
    assert found["cos"][0] == "failed"
    assert "failed after its launch" in found["cos"][1]
    assert "values" in found["exp"][1]
    assert "repeated call" in found["sin"][1]
    assert "dtype torch.float64 instead of torch.float32" in found["tan"][1]
    assert "stride" in found["mm"][1]
    assert found["neg"] == ("passed", "")


@pytest.mark.slow
def test_an_unexpected_pass_fails_the_run_and_an_expected_failure_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = verdict_file(
        tmp_path,
        """
        [[verdict]]
        entry = "neg"
        verdict = "xfail"
        reason = "it does not fail; this test wants it noticed"
        [[verdict]]
        entry = "exp"
        verdict = "xfail"
        reason = "the device of this test is wrong by a thousandth"
        [[verdict]]
        entry = "sin"
        verdict = "undefined-values"
        reason = "the device of this test returns other values the second time"
        [[verdict]]
        entry = "abs"
        verdict = "skip"
        reason = "the device of this test crashes on it"
        """,
    )
    arguments = ("--candidate", "conformance_candidates:faulty", "--verdicts", str(folder))
    code, found = run(tmp_path, monkeypatch, *arguments, "--only", "^op::(abs|exp|sin)::forward::float32$")
    assert code == 0
    assert {entry: status for entry, (status, _) in found.items()} == {
        "abs": "skipped",
        "exp": "xfailed",
        "sin": "passed",
    }
    code, found = run(tmp_path, monkeypatch, *arguments, "--only", "^op::neg::forward::float32$")
    assert code == 1
    assert found["neg"][0] == "xpassed"


@pytest.mark.slow
def test_a_crash_at_the_end_of_the_process_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, found = run(
        tmp_path,
        monkeypatch,
        *("--candidate", "conformance_candidates:dying", "--only", "^op::neg::forward::float32$"),
    )
    assert code == 1
    assert found["neg"][0] == "passed"
    assert found["(exit of the process)"][0] == "crashed"


def seen(*results: object, inputs: tuple[torch.Tensor, ...] = ()) -> Observation:
    return Observation(results, inputs, Observation.versions_of(inputs))


def test_equal_results_are_exact_and_rounding_is_close() -> None:
    one = torch.tensor([1.0, float("nan"), float("inf")])
    assert compare(seen(one, 3, "x"), seen(one.clone(), 3, "x"), CPU) is Grade.EXACT
    assert compare(seen(torch.ones(2)), seen(torch.ones(2) * (1 + 1e-6)), CPU) is Grade.CLOSE


@pytest.mark.parametrize(
    ("want", "have", "complaint"),
    [
        (torch.ones(2), torch.ones(2) * 1.001, "values"),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, float("nan")]), "values"),
        (torch.tensor([3]), torch.tensor([4]), "values"),
        (torch.ones(2), torch.ones(2, dtype=torch.float64), "dtype"),
        (torch.ones(2), torch.ones(2, 1), "shape"),
        (torch.ones(2, 3), torch.ones(3, 2).t(), "stride"),
        (torch.ones(2), torch.ones(2, device="meta"), "device"),
        (torch.ones(2), torch.ones(2, requires_grad=True), "requires_grad"),
        (torch.ones(2, dtype=torch.cfloat), torch.ones(2, dtype=torch.cfloat).conj(), "conjugate"),
        (torch.ones(2), 1.0, "type"),
        (1, True, "type"),
        (2.0, 2.5, "2.5 instead of 2.0"),
    ],
)
def test_a_difference_is_named(want: object, have: object, complaint: str) -> None:
    with pytest.raises(Mismatch, match=complaint):
        compare(seen(want), seen(have), CPU)


def test_a_missing_result_a_lost_view_and_an_unwritten_input_are_found() -> None:
    base, other = torch.zeros(4), torch.zeros(4)
    with pytest.raises(Mismatch, match="structure"):
        compare(seen(base, base), seen(base), CPU)
    with pytest.raises(Mismatch, match="aliases"):
        compare(seen(base[1:3], inputs=(base,)), seen(other[1:3].clone(), inputs=(other,)), CPU)
    before = Observation.versions_of([base])
    base.add_(1)
    with pytest.raises(Mismatch, match="mutated input 0"):
        compare(Observation((), [base], before), Observation((), [other]), CPU)


def test_undefined_values_still_compare_metadata() -> None:
    assert compare(seen(torch.ones(2)), seen(torch.zeros(2)), CPU, check_values=False) is Grade.EXACT
    with pytest.raises(Mismatch, match="shape"):
        compare(seen(torch.ones(2)), seen(torch.zeros(3)), CPU, check_values=False)


def test_coarse_results_may_be_as_far_from_the_exact_answer_as_the_cpu_is() -> None:
    exact = seen(torch.tensor([100.0, 0.01], dtype=torch.float64))
    cpu = seen(torch.tensor([100.0, 0.02], dtype=torch.bfloat16))
    assert no_farther(cpu, seen(torch.tensor([100.0, 0.03], dtype=torch.bfloat16)), exact)
    assert not no_farther(cpu, seen(torch.tensor([102.0, 0.02], dtype=torch.bfloat16)), exact)
    assert not no_farther(cpu, seen(torch.tensor([100.0, float("nan")], dtype=torch.bfloat16)), exact)
    assert not no_farther(seen(torch.ones(1)), seen(torch.ones(1) * 1.001), seen(torch.ones(1).double()))


def test_compiled_results_are_held_to_the_exact_answer_and_gradients_to_no_strides() -> None:
    def seen(tensor: torch.Tensor) -> Observation:
        return Observation(tensor)

    cpu, exact = seen(torch.tensor([1.0, 1.0001])), seen(torch.tensor([1.0, 1.0]).double())
    assert no_farther(cpu, seen(torch.tensor([1.0, 0.9999])), exact, COMPILED_RULE)
    assert not no_farther(cpu, seen(torch.tensor([1.0, 1.0003])), exact, COMPILED_RULE)
    matrix = torch.arange(6.0).view(2, 3)
    other = matrix.t().contiguous().t()
    compare(seen(matrix), seen(other), CPU, rule=GRADIENT_RULE)
    with pytest.raises(Mismatch, match="stride"):
        compare(seen(matrix), seen(other), CPU, rule=COMPILED_RULE)


def test_placement_widens_what_it_is_told_to() -> None:
    place = Placement(CPU, widen=(torch.bfloat16,))
    placed = place((torch.ones(2, dtype=torch.bfloat16), torch.ones(2), torch.bfloat16, torch.float16))
    assert [getattr(value, "dtype", value) for value in placed] == [
        torch.float32,
        torch.float32,
        torch.float32,
        torch.float16,
    ]


def test_placement_keeps_strides_sharing_bits_and_leaves() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    gaps = base[:, ::2]
    conjugate = torch.randn(3, dtype=torch.cfloat).conj()
    negative = conjugate.imag
    leaf = torch.nn.Parameter(torch.ones(2))
    place = Placement(CPU)
    placed = place({"base": base, "list": [gaps, gaps], "tuple": (conjugate, negative, leaf), "device": "cpu"})
    assert placed["list"][0] is placed["list"][1]
    assert placed["list"][0].stride() == (4, 2)
    placed["base"].add_(100)
    assert torch.equal(placed["list"][0], gaps + 100)
    assert torch.equal(base, torch.arange(12.0).reshape(3, 4))
    assert placed["tuple"][0].is_conj()
    assert placed["tuple"][1].is_neg()
    assert torch.equal(placed["tuple"][0], conjugate)
    assert torch.equal(placed["tuple"][1], negative)
    assert isinstance(placed["tuple"][2], torch.nn.Parameter)
    assert placed["tuple"][2].is_leaf
    assert torch.equal(placed["tuple"][2], leaf)


def test_spread_takes_the_first_and_some_of_the_rest() -> None:
    assert spread("abc", 5) == [(0, "a"), (1, "b"), (2, "c")]
    positions = [position for position, _ in spread(range(1000), 8)]
    assert positions[:4] == [0, 1, 2, 3]
    assert len(set(positions)) == 8
    assert max(positions) > 700


def test_slices_are_a_partition_and_chunks_keep_entries_together() -> None:
    cases = [Case("op", f"entry{index // 3}", f"variant{index % 3}", "float32") for index in range(300)]
    parts = [[case for case in cases if Selection(slice_index=part, slice_count=7)(case)] for part in range(1, 8)]
    assert sorted(case for part in parts for case in part) == sorted(cases)
    assert all(parts)
    split = chunks(cases, 50)
    assert [case for chunk in split for case in chunk] == cases
    assert len(split) > 1
    for one, following in itertools.pairwise(split):
        assert one[-1].entry != following[0].entry
    with pytest.raises(ValueError, match="between 1 and M"):
        Selection(slice_index=8, slice_count=7)


def test_every_exclusion_has_a_reason() -> None:
    loaded = verdicts.load()
    for verdict in loaded.all:
        assert len(verdict.reason.split()) >= 4, verdict


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[[verdict]]\nentry = "abs"\nverdict = "xfail"', "reason"),
        ('[[verdict]]\nentry = "abs"\nverdict = "xfail"\nreason = "  "', "reason"),
        ('[[verdict]]\nentry = "abs"\nverdict = "ignore"\nreason = "a good and long reason"', "ignore"),
        ('[[verdict]]\nverdict = "skip"\nreason = "a good and long reason"', "entry"),
        ('[[verdict]]\nentry = "abs"\nop = 1\nverdict = "skip"\nreason = "a good and long reason"', "unknown keys"),
        ('[verdicts]\nentry = "abs"', "unknown keys"),
    ],
)
def test_a_wrong_verdict_file_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(verdicts.VerdictError, match=complaint):
        verdicts.load(verdict_file(tmp_path, text))


def test_a_verdict_on_nothing_and_two_on_one_case_are_refused() -> None:
    verdict = verdicts.Verdict("op", "abs", (), ("float32",), verdicts.XFAIL, "a good and long reason")
    verdicts.Verdicts([verdict]).check([CASE])
    with pytest.raises(verdicts.VerdictError, match="no case matches"):
        verdicts.Verdicts([verdict]).check([Case("op", "neg", "forward", "float32")])
    with pytest.raises(verdicts.VerdictError, match=re.escape(str(CASE))):
        verdicts.Verdicts([verdict, verdict]).check([CASE])


def test_an_exclusion_counts_against_the_device_and_what_the_cpu_refuses_does_not() -> None:
    statuses = [Status.PASSED, Status.FAILED, Status.XFAILED, Status.SKIPPED, Status.NOT_APPLICABLE, Status.CRASHED]
    figures = rate(Result(CASE, status) for status in statuses)
    assert (figures["counted"], figures["passed"]) == (5, 1)
