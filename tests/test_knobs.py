"""Knobs: parsing, precedence, contradictions, and when a bad one is reported."""

import subprocess
import sys
from pathlib import Path

import pytest
from processes import run_python

import torch_neuronx
from torch_neuronx import _machine, errors, knobs

pytestmark = pytest.mark.neuron_only
ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (knobs.CORES, "0-3", (0, 1, 2, 3)),
        (knobs.CORES, "1,3", (1, 3)),
        (knobs.CORES, " 6-7, 0 ", (6, 7, 0)),
        (knobs.BYTES, "4096", 4096),
        (knobs.BYTES, "3KiB", 3 << 10),
        (knobs.BYTES, "512 mib", 512 << 20),
        (knobs.BYTES, "2GiB", 2 << 30),
        (knobs.COUNT, "2", 2),
        (knobs.SWITCH, "1", True),
        (knobs.SWITCH, "off", False),
    ],
)
def test_parse(kind: knobs.Kind[object], text: str, value: object) -> None:
    assert kind.parse(text) == value


@pytest.mark.parametrize(
    ("knob", "text"),
    [
        *((knobs.RT_VISIBLE_CORES, text) for text in ("all", "3-1", "1,1", "0-2,2", "1,", "-1", "0-99999999999")),
        *((knobs.EMU_HBM_BYTES, text) for text in ("0", "-5", "2GB", "1.5GiB", "lots", "GiB")),
        *((knobs.RT_NUM_CORES, text) for text in ("0", "-1", "two", "1.0")),
        *((knobs.LAUNCH_BLOCKING, text) for text in ("2", "maybe")),
    ],
)
def test_bad_values(knob: knobs.Knob[object], text: str) -> None:
    with pytest.raises(errors.BadKnobValueError) as caught:
        knob.parse(text)
    assert str(caught.value).startswith(f"{knob.name}={text!r} is not valid: ")
    assert knob.kind.expected in str(caught.value)


def test_unknown_names_get_a_suggestion() -> None:
    with pytest.raises(errors.UnknownKnobError, match="did you mean NEURON_LAUNCH_BLOCKING"):
        knobs.get("NEURON_LAUNCH_BLOKING")


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"NEURON_EMU_INSTANCE": "trn2.huge"}, "'trn2.huge' is not valid: there is no such instance type"),
        ({"NEURON_RT_VISIBLE_CORES": (2, 4)}, r"NEURON_RT_VISIBLE_CORES \(core 4\) contradicts NEURON_EMU_INSTANCE"),
        ({"NEURON_RT_NUM_CORES": 5}, "NEURON_RT_NUM_CORES=5 contradicts NEURON_EMU_INSTANCE=trn2.3xlarge"),
        (
            {"NEURON_RT_NUM_CORES": 3, "NEURON_RT_VISIBLE_CORES": (0, 1)},
            "NEURON_RT_NUM_CORES=3 contradicts NEURON_RT_VISIBLE_CORES: it names 2 cores",
        ),
        ({"NEURON_RT_NUM_CORES": 2, "NEURON_RT_VISIBLE_CORES": (1, 3)}, None),
        ({"NEURON_EMU_INSTANCE": "trn2.48xlarge", "NEURON_RT_VISIBLE_CORES": (63,)}, None),
    ],
)
def test_contradictions(settings: dict[str, object], error: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for knob in knobs.all_knobs():
        monkeypatch.setattr(knob, "_value", settings.get(knob.name, knob.default))
        monkeypatch.setattr(knob, "problem", None)
    if error is None:
        assert _machine.problems() == []
    else:
        (problem,) = _machine.problems()
        with pytest.raises(AssertionError, match=error):
            raise AssertionError(problem)


def test_bad_knobs_are_reported_at_first_use_and_not_at_import(tmp_path: Path) -> None:
    program = """
        import warnings
        import torch

        assert torch.ones(2).sum() == 2  # PyTorch goes on
        for use in (
            lambda: torch.ones(1, device="neuron"),
            lambda: torch.neuron.set_device(0),
            lambda: torch.neuron.init(),
            lambda: torch.neuron.get_device_name(),
            lambda: torch.neuron.synchronize(),
            lambda: torch.neuron.manual_seed(1),
            lambda: torch.neuron.memory_allocated(),
            lambda: torch.neuron.Stream(),
        ):
            try:
                use()
            except RuntimeError as error:
                text = str(error)
                assert "NEURON_EMU_HBM_BYTES='much' is not valid" in text, text
                assert "NEURON_EMU_SPEED" in text, text
            else:
                raise AssertionError("no error")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert not torch.neuron.is_available()
            assert torch.neuron.device_count() == 0
        (warning,) = caught
        assert "NEURON_EMU_HBM_BYTES='much'" in str(warning.message)
        torch.manual_seed(1)
    """
    result = run_python(program, directory=tmp_path, env={"NEURON_EMU_HBM_BYTES": "much", "NEURON_EMU_SPEED": "9"})
    assert result.returncode == 0, result.stderr


def test_environment_shapes_the_machine(tmp_path: Path) -> None:
    program = """
        import torch
        assert torch.neuron.device_count() == 2
        properties = torch.neuron.get_device_properties(1)
        assert properties.instance == "trn3.gen2" and properties.chip == "trn3", properties
        assert properties.total_memory == 64 << 20, properties
        assert torch.neuron.mem_get_info(1) == (64 << 20, 64 << 20)
        assert torch.neuron.get_device_capability() == (4, 0)
        assert torch.ones(2, device="neuron:1").sum().item() == 2
        try:
            torch.empty(65 << 20, dtype=torch.uint8, device="neuron")
        except torch.neuron.OutOfMemoryError as error:
            assert "65.00 MiB" in str(error) and "64.00 MiB" in str(error), error
        else:
            raise AssertionError("no error")
    """
    env = {
        "NEURON_EMU_INSTANCE": "trn3.gen2",
        "NEURON_EMU_HBM_BYTES": "64MiB",
        "NEURON_RT_VISIBLE_CORES": "3,5",
        "NEURON_RT_NUM_CORES": "2",
    }
    result = run_python(program, directory=tmp_path, env=env)
    assert result.returncode == 0, result.stderr


def test_python_wins_over_the_environment_until_the_device_is_in_use(tmp_path: Path) -> None:
    program = """
        import torch
        from torch.neuron import errors, knobs

        assert knobs.get("NEURON_RT_NUM_CORES") == 3 and torch.neuron.device_count() == 3
        knobs.set("NEURON_RT_NUM_CORES", 1)
        assert torch.neuron.device_count() == 1
        knobs.set("NEURON_RT_NUM_CORES", None)  # the default, not the environment's
        assert torch.neuron.device_count() == 4
        knobs.set("NEURON_RT_VISIBLE_CORES", [1, 3])
        assert torch.neuron.device_count() == 2
        knobs.set("NEURON_EMU_HBM_BYTES", "1GiB")  # the environment's value is bad
        assert torch.neuron.mem_get_info()[1] == 1 << 30
        try:
            knobs.set("NEURON_RT_VISIBLE_CORES", "x")
        except errors.BadKnobValueError:
            assert knobs.get("NEURON_RT_VISIBLE_CORES") == (1, 3)
        torch.ones(1, device="neuron")
        try:
            knobs.set("NEURON_RT_NUM_CORES", 2)
        except errors.KnobTooLateError as error:
            assert "NEURON_RT_NUM_CORES" in str(error)
        else:
            raise AssertionError("no error")
        knobs.set("NEURON_LAUNCH_BLOCKING", True)  # live: the error comes from the line itself
        try:
            torch.nn.functional.embedding(torch.tensor([9], device="neuron"), torch.ones(4, 2, device="neuron"))
        except IndexError:
            pass
        else:
            raise AssertionError("no error")
    """
    result = run_python(program, directory=tmp_path, env={"NEURON_RT_NUM_CORES": "3", "NEURON_EMU_HBM_BYTES": "none"})
    # With a bad value beside it the good one is still read, but there is no device.
    assert result.returncode == 1
    assert "no neuron device is available: NEURON_EMU_HBM_BYTES='none' is not valid" in result.stderr
    result = run_python(program, directory=tmp_path, env={"NEURON_RT_NUM_CORES": "3"})
    assert result.returncode == 0, result.stderr


def test_documentation_is_up_to_date() -> None:
    command = [sys.executable, "-m", "torch_neuronx.knobs"]
    rendered = subprocess.run(command, capture_output=True, text=True, check=True)
    assert rendered.stderr == ""
    assert rendered.stdout == (ROOT / "docs" / "knobs.md").read_text()


def test_documentation_names_all_instance_types() -> None:
    for instance in torch_neuronx._C.instance_types():
        devices = instance["chips"] * instance["logical_cores_per_chip"]
        assert f"`{instance['name']}`" in knobs.EMU_INSTANCE.meaning
        assert f"{devices} devices" in knobs.EMU_INSTANCE.meaning
        assert f"{instance['hbm_bytes_per_core'] >> 30} GiB" in knobs.EMU_INSTANCE.meaning
