"""When the fusion window is on, and what it reports."""

import inspect
import threading
from pathlib import Path

import pytest
import torch
from comparison import assert_same
from fused import bytes_not_written, hold_up, ops, run_fused, runs
from fused import report as windows_so_far
from processes import run_python

from torch_neuronx import knobs
from torch_neuronx.adaptive import AdaptiveReport

pytestmark = pytest.mark.neuron_only

SIZE = 70_001


def chain(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y = y + 1
    y = y.tanh()
    return y * 3


def run_chain(device: torch.device) -> AdaptiveReport:
    """Runs the chain behind other work, as the switches stand; returns the report of it."""
    x = torch.randn(SIZE)
    moved = x.to(device)
    for _ in range(2):
        chain(moved)
    torch.accelerator.synchronize()
    torch.neuron.reset_adaptive_report()
    hold_up(device)
    y = chain(moved)
    torch.accelerator.synchronize()
    assert_same(y, chain(x))
    return windows_so_far()


# --- switches


def test_it_is_on_by_default(device):
    assert torch.neuron.is_adaptive_eager_enabled()
    assert runs(run_chain(device)) > 0


def test_context_manager_nests_and_restores(device):
    enabled = torch.neuron.is_adaptive_eager_enabled
    with torch.neuron.adaptive_eager(False):
        assert not enabled()
        with torch.neuron.adaptive_eager(True):
            assert enabled()
            with torch.neuron.adaptive_eager(True):
                assert enabled()
            assert enabled()
            assert runs(run_chain(device)) > 0
        assert not enabled()
        with pytest.raises(KeyError), torch.neuron.adaptive_eager(True):
            raise KeyError
        assert not enabled()
        assert runs(run_chain(device)) == 0
    assert enabled()


def test_a_context_can_be_used_again(device):
    off = torch.neuron.adaptive_eager(False)
    for _ in range(2):
        with off:
            assert not torch.neuron.is_adaptive_eager_enabled()
        assert torch.neuron.is_adaptive_eager_enabled()


def test_decorator(device):
    @torch.neuron.adaptive_eager(False)
    def function(x: int) -> tuple[int, bool]:
        """Says something."""
        return x, torch.neuron.is_adaptive_eager_enabled()

    assert function(3) == function(x=3) == (3, False)
    assert function.__doc__ == "Says something."
    assert torch.neuron.is_adaptive_eager_enabled()


def test_it_may_be_switched_while_launches_wait(device):
    x = torch.randn(SIZE)
    moved = x.to(device)
    with torch.neuron.adaptive_eager(False):
        chain(moved)
        torch.accelerator.synchronize()
        torch.neuron.reset_adaptive_report()
        hold_up(device)
        a = moved * 2 + 1
    with torch.neuron.adaptive_eager(True):
        b = a * 3 + 1
    torch.accelerator.synchronize()
    assert_same([a, b], [x * 2 + 1, (x * 2 + 1) * 3 + 1])


def test_deterministic_algorithms_switch_it_off(device):
    torch.use_deterministic_algorithms(True)
    try:
        assert runs(run_chain(device)) == 0
    finally:
        torch.use_deterministic_algorithms(False)
    assert runs(run_chain(device)) > 0


def test_blocking_launches_switch_it_off(device):
    knobs.set("NEURON_LAUNCH_BLOCKING", True)
    try:
        assert runs(run_chain(device)) == 0
    finally:
        knobs.set("NEURON_LAUNCH_BLOCKING", None)
    assert runs(run_chain(device)) > 0


PROGRAM = """
import torch

x = torch.randn(70001)
y = x.to("neuron")
for _ in range(30):
    w = torch.ones(300, 300, device="neuron")
    w @ w
    z = ((y * 2 + 1).abs() - y) * 0.5
    torch.accelerator.synchronize()
print(torch.neuron.is_adaptive_eager_enabled())
print(sum(region.runs for region in torch.neuron.adaptive_report(show=False).regions))
print(torch.equal(z.cpu(), ((x * 2 + 1).abs() - x) * 0.5))
"""


@pytest.mark.parametrize(
    ("env", "enabled"),
    [
        ({"TORCH_NEURONX_ADAPTIVE_EAGER": "0"}, False),
        ({"TORCH_NEURONX_ADAPTIVE_EAGER": "1"}, True),
        ({"TORCH_NEURONX_JIT": "0"}, True),
        ({"TORCH_NEURONX_JIT": "1"}, True),
    ],
    ids=lambda value: str(value),
)
def test_environment(tmp_path, env, enabled):
    result = run_python(PROGRAM, directory=tmp_path, env=env)
    assert result.returncode == 0, result.stderr
    is_enabled, region_runs, equal = result.stdout.split()
    assert is_enabled == str(enabled)
    assert (int(region_runs) > 0) == enabled
    assert equal == "True"


def test_a_process_that_ends_with_a_full_window(tmp_path):
    result = run_python(
        """
        import torch

        x = torch.ones(500, 500, device="neuron")
        for _ in range(30):
            y = ((x @ x) * 2 + 1).tanh() - x
        late = y.sum().to("cpu", non_blocking=True)
        """,
        directory=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""


def test_another_knob_does_not_end_the_context_manager(device):
    with torch.neuron.adaptive_eager(False):
        knobs.set("TORCH_NEURONX_LAUNCH_LINES", True)
        try:
            assert not torch.neuron.is_adaptive_eager_enabled()
        finally:
            knobs.set("TORCH_NEURONX_LAUNCH_LINES", None)
        assert not torch.neuron.is_adaptive_eager_enabled()
    assert torch.neuron.is_adaptive_eager_enabled()


# --- the report


def test_a_region_of_function_calls_alone_is_not_called_machine_code(device):
    _, report = run_fused(lambda x: x.exp().exp(), torch.randn(SIZE), device=device)
    assert [region.compiled for region in report.regions] == [False]


def test_report_names_ops_and_counts(device):
    _, report = run_fused(chain, torch.randn(SIZE), device=device)
    assert report.regions
    region = max(report.regions, key=lambda region: region.launches)
    assert len(region.ops) >= 2
    assert all(any(word in str(op) for word in ("mul", "add", "tanh")) for op in region.ops), region.ops
    assert {word for word in ("mul", "add") if any(word in op for op in ops(report))} == {"mul", "add"}
    assert region.runs >= 1
    assert region.launches >= 2
    assert report.windows >= 1
    assert report.hits + report.misses >= 1


def test_report_counts_bytes_that_were_not_written(device):
    _, dead = run_fused(chain, torch.randn(SIZE), device=device)
    assert bytes_not_written(dead) >= 4 * SIZE

    def live(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = x * 2
        b = a + 1
        return a, b

    _, report = run_fused(live, torch.randn(SIZE), device=device)
    assert runs(report) > 0
    assert bytes_not_written(report) == 0


def test_report_prints_what_it_has(device, capsys):
    _, report = run_fused(chain, torch.randn(SIZE), device=device)
    text = str(report)
    assert "mul" in text
    assert "add" in text
    assert len(text.splitlines()) > len(report.regions)
    capsys.readouterr()
    torch.neuron.adaptive_report()
    assert capsys.readouterr().out == text + "\n"
    torch.neuron.adaptive_report(show=False)
    assert capsys.readouterr().out == ""


def test_the_same_window_again_is_a_hit(device):
    with torch.neuron.adaptive_eager(True):
        first = run_chain(device)
        second = run_chain(device)
    assert first.hits + first.misses > 0
    assert second.misses == 0
    assert second.hits > 0


def test_another_window_is_a_miss(device):
    def unlike_others(x: torch.Tensor) -> torch.Tensor:
        return ((x.abs() * 1.5).sqrt() + 2.5) / 3.5

    _, report = run_fused(unlike_others, torch.randn(13, 17), device=device)
    assert report.misses > 0


def test_reset_empties_the_report(device):
    assert runs(run_chain(device)) > 0
    torch.neuron.reset_adaptive_report()
    report = windows_so_far()
    assert (runs(report), report.windows, report.hits, report.misses) == (0, 0, 0, 0)
    assert bytes_not_written(report) == 0
    assert str(report)


def test_a_report_does_not_change_afterwards(device):
    report = run_chain(device)
    before = (report.windows, runs(report), bytes_not_written(report))
    run_chain(device)
    run_chain(device)
    assert (report.windows, runs(report), bytes_not_written(report)) == before


@pytest.mark.parametrize("lines_on", [False, True])
def test_lines_of_the_program_are_in_the_report(device, lines_on):
    # Without launch lines they are those of the first call with these shapes, which is in this test too.
    x = torch.randn(11, 13 + lines_on)
    knobs.set("TORCH_NEURONX_LAUNCH_LINES", lines_on)
    try:
        _, report = run_fused(chain, x, device=device)
    finally:
        knobs.set("TORCH_NEURONX_LAUNCH_LINES", None)
    source, first = inspect.getsourcelines(chain)
    expected = {
        f"{Path(__file__).name}:{first + i}" for i, line in enumerate(source) if " = y" in line or "x * 2" in line
    }
    region = max(report.regions, key=lambda region: region.launches)
    found = {Path(line).name for line in region.lines}
    assert len(found & expected) >= 2, found
    assert Path(__file__).name in str(report)


def test_launch_lines_are_those_of_the_launch_and_not_of_the_first_call(device):
    def first(x: torch.Tensor) -> torch.Tensor:
        return (x * 2 + 1).abs() * 3

    def second(x: torch.Tensor) -> torch.Tensor:
        return (x * 2 + 1).abs() * 3

    run_fused(first, torch.randn(11, 17), device=device)
    knobs.set("TORCH_NEURONX_LAUNCH_LINES", True)
    try:
        _, report = run_fused(second, torch.randn(11, 17), device=device)
    finally:
        knobs.set("TORCH_NEURONX_LAUNCH_LINES", None)
    expected = f"{Path(__file__).name}:{inspect.getsourcelines(second)[1] + 1}"
    region = max(report.regions, key=lambda region: region.launches)
    assert {Path(line).name for line in region.lines} == {expected}


def test_report_while_threads_launch(device):
    stop = threading.Event()
    errors: list[BaseException] = []

    def launch() -> None:
        try:
            x = torch.ones(100, device=device)
            while not stop.is_set():
                chain(x)
            torch.accelerator.synchronize()
        except BaseException as error:  # noqa: BLE001 - handed to the main thread
            errors.append(error)

    thread = threading.Thread(target=launch)
    thread.start()
    try:
        for _ in range(50):
            assert str(windows_so_far())
            torch.neuron.reset_adaptive_report()
    finally:
        stop.set()
        thread.join()
    assert not errors
