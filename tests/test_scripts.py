"""The shell scripts behind the Makefile: what they say when something is missing or fails."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    return subprocess.run([*map(str, command)], capture_output=True, text=True, env=env, timeout=60)


def fake_python(folder: Path, version: str) -> Path:
    """An interpreter that claims to be `version` and has what 3.11 has."""
    python = folder / "python3"
    old = "1" if version < "3.11" else "0"
    python.write_text(f'#!/bin/sh\ncase "$2" in *version_info*) exit {old};; *) echo {version};; esac\n')
    python.chmod(0o755)
    return python


def test_the_named_interpreter_is_taken(tmp_path: Path) -> None:
    python = fake_python(tmp_path, "3.12.1")
    result = run(ROOT / "scripts" / "find-python", python)
    assert (result.returncode, result.stdout) == (0, f"{python}\n")


@pytest.mark.parametrize("name", ["/nowhere/python3.11", "false"])
def test_an_interpreter_that_is_none_is_refused(name: str) -> None:
    result = run(ROOT / "scripts" / "find-python", name)
    assert result.returncode != 0
    assert result.stdout == ""
    assert f"PYTHON={name} cannot be used (not found or not runnable)" in result.stderr
    assert "3.11 or newer" in result.stderr


def test_an_old_interpreter_is_refused_with_its_version(tmp_path: Path) -> None:
    python = fake_python(tmp_path, "3.10.4")
    result = run(ROOT / "scripts" / "find-python", python)
    assert result.returncode != 0
    assert f"PYTHON={python} cannot be used (3.10.4)" in result.stderr


def test_no_interpreter_at_all_says_what_to_install(tmp_path: Path) -> None:
    fake_python(tmp_path, "3.10.4")
    result = run("/bin/bash", ROOT / "scripts" / "find-python", PATH=str(tmp_path))
    assert result.returncode != 0
    assert "python3.11-venv" in result.stderr
    assert "make PYTHON=" in result.stderr


def test_a_quiet_command_keeps_its_output_to_itself(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "command.log"
    result = run(ROOT / "scripts" / "quietly", "Working", log, "echo", "noise")
    assert result.returncode == 0
    assert "noise" not in result.stdout + result.stderr
    assert log.read_text() == "noise\n"


def test_a_quiet_command_that_fails_shows_why(tmp_path: Path) -> None:
    log = tmp_path / "command.log"
    result = run(ROOT / "scripts" / "quietly", "Working", log, "sh", "-c", "echo the cause >&2; exit 7")
    assert result.returncode == 7
    assert "the cause" in result.stderr
    assert str(log) in result.stderr


@pytest.mark.parametrize("script", [".ci/run", "scripts/find-python", "scripts/quietly"])
def test_scripts_are_executable_and_parse(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)
    assert run("bash", "-n", ROOT / script).returncode == 0


def test_make_lists_its_targets() -> None:
    result = run("make", "--directory", ROOT, "help")
    for target in ("setup", "demo", "test", "check", "lint", "conform", "bench", "docs", "clean"):
        assert f"make {target}" in result.stdout
