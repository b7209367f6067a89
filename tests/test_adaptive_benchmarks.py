"""The benchmarks of the fusion window: several ratios per row, checks before measuring, and that each part runs."""

import json
import math

import pytest
import torch
from rich.console import Console

from benchmarks import adaptive, adaptive_first_call, adaptive_pointwise, adaptive_training, section, window
from benchmarks.interleave import Case, Report, Row, geometric_mean, run_case
from benchmarks.pointwise_workloads import CHAIN, COMPOSED, Pointwise


def settings(subject: str) -> section.Settings:
    return section.Settings("cpu", subject, threads=2, quick=True)


def row(cpu: float, off: float, on: float, bound: float | None = None, limit: float | None = 1.03) -> Row:
    times = {"cpu": cpu, "window off": off, "window on": on}
    return Row("case", "ms", 2, times, times, 5, "cpu", "window on", bound, against={"window off": limit})


# --- several ratios per row


def test_ratio_and_verdict_against_another_peer() -> None:
    assert row(8.0, 4.0, 2.0).ratio_to("window off") == 0.5
    assert row(8.0, 4.0, 2.0).verdict_against("window off") == "met"
    assert row(8.0, 4.0, 5.0).verdict_against("window off") == "missed"
    assert row(8.0, 4.0, 5.0, limit=None).verdict_against("window off") == ""


def test_case_hands_its_comparisons_on() -> None:
    measure = {name: lambda value=value: value for name, value in {"a": 4.0, "b": 2.0, "c": 1.0}.items()}
    result = run_case(Case("case", "ms", measure, threads=1, repetitions=1, warmup=0, against={"b": 0.4}))
    assert (result.ratio, result.ratio_to("b"), result.verdict_against("b")) == (0.25, 0.5, "missed")


def test_a_row_with_comparisons_survives_json() -> None:
    original = row(8.0, 4.0, 2.0, bound=0.3)
    written = json.loads(json.dumps(original.to_json()))
    assert written["ratios"] == {"window off": {"ratio": 0.5, "verdict": "met"}}
    assert Row.from_json(written) == original


@pytest.mark.parametrize(
    ("times", "bound", "verdict"), [((8, 4, 2), 0.3, "met"), ((8, 4, 2), 0.2, "missed"), ((8, 1, 2), 0.3, "missed")]
)
def test_table_shows_the_other_ratio_and_one_verdict(
    times: tuple[float, float, float], bound: float, verdict: str
) -> None:
    report = Report("title")
    report.add("section", [row(*times, bound=bound)])
    console = Console(record=True, width=140)
    report.print(console)
    lines = console.export_text().splitlines()
    assert any("/ window off" in line for line in lines)
    (line,) = [line for line in lines if line.strip().startswith("case ") and " ms " in line]
    assert f"{times[2] / times[1]:.2f}" in line
    assert line.split()[-1] == verdict


def test_geometric_mean_of_ratios() -> None:
    mean = geometric_mean([row(8.0, 4.0, 4.0), row(2.0, 3.0, 0.25)], bound=0.25)
    assert mean.ratio == pytest.approx(math.sqrt(0.5 * 0.125))
    assert mean.ratio_to("window off") == pytest.approx(math.sqrt(1 / 12))
    assert mean.verdict == "met"
    assert mean.verdict_against("window off") == ""  # single rows are held against that bound


# --- peers


def test_peers_of_a_device_with_a_window() -> None:
    with_inductor = section.Settings("cpu", "neuron", threads=1, quick=True, inductor=True)
    assert [(p.name, p.device.type, p.window, p.compiled) for p in window.peers(with_inductor, inductor=True)] == [
        ("cpu", "cpu", None, False),
        ("Inductor", "cpu", None, True),
        ("window off", "neuron", False, False),
        ("window on", "neuron", True, False),
    ]
    assert window.against(window.peers(with_inductor, inductor=True)) == {"Inductor": None, "window off": 1.03}
    assert [p.name for p in window.peers(with_inductor)] == ["cpu", "window off", "window on"]
    assert len(window.peers(settings("neuron"), inductor=True)) == 3


@pytest.mark.neuron_only
def test_a_peer_sets_the_window_and_sets_it_back() -> None:
    before = torch.neuron.is_adaptive_eager_enabled()
    for peer in window.peers(settings("neuron"))[1:]:
        seen: list[bool] = []
        peer.milliseconds(lambda seen=seen: seen.append(torch.neuron.is_adaptive_eager_enabled()), calls=3)
        assert seen == [peer.window] * 3
        assert torch.neuron.is_adaptive_eager_enabled() == before


def test_same_bits() -> None:
    x = torch.tensor([1.0, 0.0])
    assert window.same_bits((x, x.sum()), (x.clone(), x.sum()))
    assert not window.same_bits((x,), (torch.tensor([1.0, -0.0]),))
    assert not window.same_bits((x,), (x.double(),))
    assert not window.same_bits((x,), (x[:1],))
    assert not window.same_bits((x,), (x, x))


def test_settings_reach_the_process_of_a_section() -> None:
    assert "--inductor" not in settings("neuron").arguments()
    chosen = section.Settings("cpu", "neuron", threads=2, quick=False, inductor=True)
    assert chosen.arguments()[-1] == "--inductor"


# --- workloads


@pytest.mark.parametrize("workload", [CHAIN, *COMPOSED], ids=lambda workload: workload.name)
def test_workloads_compute_something_on_16_mib(workload: Pointwise) -> None:
    arguments = workload.arguments()
    results = workload.function(*arguments)
    assert max(argument.numel() for argument in arguments) == 1 << 22
    for result in results:
        assert result.isfinite().all()
        assert result.std() > 1e-4


def test_different_results_end_the_benchmark(device: torch.device) -> None:
    calls = []

    def unsteady(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        calls.append(1)
        return (x + len(calls),)

    workload = Pointwise("unsteady", unsteady, lambda: (torch.ones(4),), bound=1.0)
    with pytest.raises(AssertionError, match="unsteady: window off does not give the bits of cpu"):
        adaptive_pointwise.measure_workload(workload, settings(device.type))


def test_different_losses_end_the_benchmark(device: torch.device) -> None:
    drawn = iter(range(100))

    def make(peer: window.Peer) -> object:
        return lambda: torch.ones((), device=peer.device) * next(drawn)

    training = adaptive_training.Training("unsteady", make, bound=None)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="unsteady: window off has losses"):
        adaptive_training.measure_training(training, settings(device.type), inductor=False)


def check(rows: list[Row]) -> None:
    for result in rows:
        assert list(result.best) == ["cpu", "window off", "window on"]
        assert all(math.isfinite(value) and value > 0 for value in result.best.values())
        assert result.remark == ""


@pytest.mark.slow
def test_pointwise_part_runs(device: torch.device) -> None:
    rows = list(adaptive_pointwise.measure(settings(device.type)))
    check(rows)
    assert [r.name for r in rows] == [CHAIN.name, *(w.name for w in COMPOSED), "geometric mean"]
    assert rows[-1].ratio == pytest.approx(math.prod(r.ratio for r in rows[1:-1]) ** (1 / len(COMPOSED)))


@pytest.mark.slow
def test_first_call_part_runs(device: torch.device) -> None:
    check(list(adaptive_first_call.measure(settings(device.type))))


def test_first_calls_never_meet_a_size_again(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(torch, "ones", lambda size: sizes.append(size) or torch.zeros(1))
    taking_part = window.peers(settings(device.type))
    measures = [adaptive_first_call.first_calls(p, len(taking_part), i) for i, p in enumerate(taking_part)]
    for _ in range(4):
        for measure in measures:
            measure()
    assert len({*sizes}) == len(sizes) == 12


@pytest.mark.slow
def test_small_training_part_runs(device: torch.device) -> None:
    for training in adaptive_training.PARTS["small"]:
        check([adaptive_training.measure_training(training, settings(device.type), inductor=False)])


@pytest.mark.slow
def test_language_model_of_one_block_runs(device: torch.device) -> None:
    # The sizes that are measured take minutes in bfloat16.
    for fused in (False, True):
        make = adaptive_training.language_model_step(1, batch=1, fused_attention=fused, dtype=torch.float32)
        training = adaptive_training.Training("GPT", make, bound=None)
        check([adaptive_training.measure_training(training, settings(device.type), inductor=False)])


def test_sections_name_modules_that_know_their_options() -> None:
    assert {module for _, module, _ in adaptive.SECTIONS} == {
        adaptive_pointwise.__name__,
        adaptive_first_call.__name__,
        adaptive_training.__name__,
    }
    parts = [options[1] for _, _, options in adaptive.SECTIONS if options]
    assert sorted(parts) == sorted(adaptive_training.PARTS)
