"""The examples, run as a newcomer runs them: as programs, on the device and on the CPU."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
DEVICES = ["cpu", "neuron"]
TINY_GPT = ["--batch=2", "--context=32", "--sample=8"]


def run(module: str, *args: object, code: int = 0) -> str:
    """Run `python -m module args`; return what it printed, after checking its exit code."""
    command = [sys.executable, "-m", module, *map(str, args)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def tensors(value: Any, name: str = "") -> dict[str, torch.Tensor]:
    """Return every tensor in a nested checkpoint by its path; other leaves become tensors, too."""
    if isinstance(value, dict):
        return {key: leaf for k, v in value.items() for key, leaf in tensors(v, f"{name}.{k}").items()}
    if isinstance(value, list | tuple):
        return {key: leaf for k, v in enumerate(value) for key, leaf in tensors(v, f"{name}.{k}").items()}
    if isinstance(value, torch.Tensor):
        return {name: value}
    return {name: torch.tensor(value)} if isinstance(value, bool | int | float) else {}


def assert_same_checkpoint(first: Path, second: Path) -> None:
    a, b = (tensors(torch.load(path, map_location="cpu")) for path in (first, second))
    assert a.keys() == b.keys()
    assert any(".model." in name for name in a)
    assert any(".optimizer." in name for name in a)
    different = [name for name in a if not torch.equal(a[name], b[name])]
    assert not different, f"{len(different)} of {len(a)} entries differ: {different[:5]}"


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_gpt_resumes_to_the_same_checkpoint(device: str, tmp_path: Path) -> None:
    whole, half, resumed = tmp_path / "whole.pt", tmp_path / "half.pt", tmp_path / "resumed.pt"
    common = [f"--device={device}", "--steps=6", *TINY_GPT]
    run("examples.train_gpt", *common, "--save", whole)
    run("examples.train_gpt", *common, "--save", half, "--stop-after=3")
    assert "resumed at step 3" in run("examples.train_gpt", *common, "--resume", half, "--save", resumed)
    assert_same_checkpoint(whole, resumed)


@pytest.mark.slow
def test_gpt_trains_to_the_same_weights_and_text_on_both_devices(tmp_path: Path) -> None:
    said = {}
    for device in DEVICES:
        args = [f"--device={device}", "--steps=5", *TINY_GPT, "--save", tmp_path / f"{device}.pt"]
        said[device] = run("examples.train_gpt", *args).partition("validation loss")[2]
    assert_same_checkpoint(tmp_path / "cpu.pt", tmp_path / "neuron.pt")
    assert "nats per byte\ndef " in said["neuron"]
    assert said["neuron"] == said["cpu"]


@pytest.mark.slow
def test_gpt_learns() -> None:
    output = run("examples.train_gpt", "--device=neuron", "--steps=40", "--batch=4", "--context=64", "--sample=1")
    found = re.search(r"loss (\d\.\d+) -> (\d\.\d+), [\d,]+ tokens/s", output)
    assert found, output
    first, last = map(float, found.groups())
    assert 5.0 < first < 6.0, "an untrained model guesses: ln(256) = 5.55"
    assert last < 3.5


@pytest.mark.slow
def test_digits_reach_97_percent() -> None:
    output = run("examples.train_digits", "--device=neuron")
    found = re.search(r"test accuracy (\d+\.\d+)% on (\w+) in bfloat16", output)
    assert found, output
    assert float(found[1]) >= 97
    assert found[2] == "neuron"


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_digits_run_on_each_device_by_its_name_alone(device: str) -> None:
    output = run("examples.train_digits", f"--device={device}", "--epochs=1", "--batch=256", "--min-accuracy=0")
    assert re.search(rf"test accuracy \d+\.\d+% on {device} in bfloat16", output)


@pytest.mark.slow
def test_digits_below_the_wanted_accuracy_exit_with_1() -> None:
    run("examples.train_digits", "--device=neuron", "--epochs=1", "--min-accuracy=1.01", code=1)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_digits_resume_to_the_same_checkpoint(dtype: str, tmp_path: Path) -> None:
    whole, half, resumed = tmp_path / "whole.pt", tmp_path / "half.pt", tmp_path / "resumed.pt"
    common = ["--device=neuron", f"--dtype={dtype}", "--epochs=2", "--batch=256", "--min-accuracy=0"]
    run("examples.train_digits", *common, "--save", whole)
    run("examples.train_digits", *common, "--save", half, "--stop-after=1")
    output = run("examples.train_digits", *common, "--resume", half, "--save", resumed)
    assert "resumed after epoch 1" in output
    assert_same_checkpoint(whole, resumed)


@pytest.mark.slow
def test_demo_says_that_losses_are_bit_equal() -> None:
    output = run("examples.demo", "--steps=4", "--compare-steps=3", "--skip-chat")
    assert "losses in fp32 on neuron and cpu: bit-equal (3 of 3 steps)" in output
    assert re.search(r"speed neuron / cpu: \d+\.\d\d \(wall, 3 steps", output)


def test_demo_tells_a_difference_of_one_bit(capsys: pytest.CaptureFixture[str]) -> None:
    from examples.demo import compare
    from examples.train_gpt import Run

    ours = Run([5.5, 5.25], seconds=1.0, tokens=2)
    assert compare("neuron", ours, ours)
    next_after = torch.nextafter(torch.tensor(5.25), torch.tensor(6.0)).item()
    assert not compare("neuron", ours, Run([5.5, next_after], seconds=1.0, tokens=2))
    assert "NOT bit-equal (1 of 2 steps)" in capsys.readouterr().out


@pytest.mark.slow
def test_chat_names_the_capital_of_france() -> None:
    pytest.importorskip("transformers")
    output = run("examples.chat", "--device=neuron", "--max-new-tokens=16", "What is the capital of France?")
    assert "Paris" in output
    assert re.search(r"\d+ tokens in .* on neuron:0: .* tokens/s", output)
