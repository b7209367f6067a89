"""Runs the C++ tests of the floors that do not know PyTorch: programs that the build makes."""

import os
import subprocess
from pathlib import Path

import pytest

BUILD = Path(__file__).resolve().parent.parent / "build"


@pytest.mark.parametrize("name", ["test_driver", "test_recording", "test_engines"])
def test_program(name):
    if not BUILD.is_dir():
        pytest.skip("not run from a build tree: build/ does not exist")
    programs = [p for p in BUILD.rglob(name) if p.is_file() and os.access(p, os.X_OK)]
    assert programs, f"the build has no {name}; was it configured with TORCHNEURON_BUILD_TESTS=OFF?"
    newest = max(programs, key=lambda p: p.stat().st_mtime)
    result = subprocess.run([newest], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
