"""The benchmark harness: turns, ratios, verdicts, and that every section runs. No test here asserts a time."""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console

from benchmarks import eager, host_cost, section, training_step
from benchmarks.interleave import Case, Report, Row, interleave, peer_names, run_case
from benchmarks.models import WORKLOADS

ROOT = Path(__file__).parent.parent


def scripted(name: str, values: list[float], calls: list[str]) -> Callable[[], float]:
    """A measurement that gives `values` one after another and notes each call."""
    remaining = iter(values)

    def measure() -> float:
        calls.append(name)
        return next(remaining)

    return measure


def row(ratio: float, bound: float | None) -> Row:
    peers = {"cpu": 2.0, "neuron": 2.0 * ratio}
    return Row("case", "us", 1, peers, peers, 5, reference="cpu", subject="neuron", bound=bound)


def test_peers_take_turns_and_change_the_order() -> None:
    calls: list[str] = []
    peers = {name: scripted(name, [1.0] * 4, calls) for name in ("a", "b")}
    interleave(peers, repetitions=3, warmup=1)
    assert calls == ["a", "b", "b", "a", "a", "b", "b", "a"]


def test_warmup_is_not_counted() -> None:
    samples = interleave({"a": scripted("a", [0.5, 3.0, 2.0], [])}, repetitions=2, warmup=1)
    assert samples == {"a": [3.0, 2.0]}


def test_no_repetitions_is_an_error() -> None:
    with pytest.raises(ValueError, match="repetitions must be at least 1"):
        interleave({"a": lambda: 1.0}, repetitions=0, warmup=0)


def test_ratio_is_subject_over_reference_of_the_best() -> None:
    measure = {"cpu": scripted("cpu", [8.0, 4.0, 6.0], []), "neuron": scripted("neuron", [3.0, 2.0, 7.0], [])}
    result = run_case(Case("case", "us", measure, threads=1, bound=0.5, repetitions=3, warmup=0))
    assert result.best == {"cpu": 4.0, "neuron": 2.0}
    assert result.median == {"cpu": 6.0, "neuron": 3.0}
    assert result.ratio == 0.5
    assert result.verdict == "met"


@pytest.mark.parametrize(("ratio", "bound", "verdict"), [(1.0, 1.0, "met"), (1.25, 1.0, "missed"), (9.0, None, "")])
def test_verdict(ratio: float, bound: float | None, verdict: str) -> None:
    assert row(ratio, bound).verdict == verdict


def test_a_row_survives_json() -> None:
    original = row(0.75, 1.0)
    assert Row.from_json(json.loads(json.dumps(original.to_json()))) == original


def test_report_prints_ratio_bound_and_verdict(tmp_path: Path) -> None:
    report = Report("title")
    report.add("section", [row(1.25, 1.0), row(0.5, 0.75)])
    console = Console(record=True, width=120)
    report.print(console)
    lines = console.export_text().splitlines()
    assert any("1.25" in line and "1.00" in line and "missed" in line for line in lines)
    assert any("0.50" in line and "0.75" in line and "met" in line for line in lines)

    report.write_json(tmp_path / "report.json")
    written = json.loads((tmp_path / "report.json").read_text())
    assert [r["verdict"] for r in written["sections"]["section"]] == ["missed", "met"]
    assert written["conditions"]["torch"] == torch.__version__


def test_a_busy_machine_is_told() -> None:
    console = Console(record=True, width=120)
    Report("title", load_before=(1000.0, 0.0, 0.0)).print(console)
    assert "the ratios are weak" in console.export_text()


def test_a_device_against_itself_gives_two_peers() -> None:
    assert len(set(peer_names("cpu", "cpu"))) == 2


@pytest.mark.parametrize("op", host_cost.OPS, ids=lambda op: op.name)
def test_host_cost_of_each_op_is_measured(op: host_cost.Op, device: torch.device) -> None:
    microseconds = host_cost.host_cost(op, device)()
    assert math.isfinite(microseconds)
    assert microseconds > 0


@pytest.mark.parametrize("key", WORKLOADS)
def test_a_workload_learns_the_same_as_on_the_cpu(key: str, device: torch.device) -> None:
    peers = [training_step.Training(WORKLOADS[key], d, steps=5) for d in (torch.device("cpu"), device)]
    first = peers[1].step().item()
    peers[0].step()
    for peer in peers:
        assert peer.measure() > 0
    assert peers[1].loss.item() < first
    assert training_step.compare_losses(peers)() == ""


def test_different_losses_are_told() -> None:
    peers = [training_step.Training(WORKLOADS["mlp"], torch.device("cpu"), steps) for steps in (1, 2)]
    for peer in peers:
        peer.measure()
    assert training_step.compare_losses(peers)().startswith("losses differ")


def test_a_section_that_fails_is_an_error() -> None:
    settings = section.Settings("cpu", "no-such-device", threads=1, quick=True)
    with pytest.raises(RuntimeError, match=r"benchmarks\.host_cost .* exit status"):
        section.run("benchmarks.host_cost", settings)


@pytest.mark.slow
def test_the_whole_benchmark_runs(device: torch.device, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.eager", "--quick", "--subject", device.type]
    result = subprocess.run(
        [*command, "--json", str(tmp_path / "eager.json")], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stderr
    report = json.loads((tmp_path / "eager.json").read_text())
    assert set(report["sections"]) == {title for title, _, _ in eager.SECTIONS}
    rows = [row for rows in report["sections"].values() for row in rows]
    assert all(math.isfinite(row["ratio"]) and row["ratio"] > 0 for row in rows)
    assert all(row["remark"] == "" for row in rows)
    assert {row["name"] for row in rows} >= {op.name for op in host_cost.OPS}
