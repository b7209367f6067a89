"""Running a Python program in a process of its own, for what can only be seen from outside."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

# What a crash leaves on stderr. "terminate called": an exception left a thread or a destructor.
CRASH_MARKS = ("terminate called", "Segmentation fault", "Aborted", "Fatal Python error", "double free", "corrupted")


def run_python(
    program: str, *, directory: Path, env: dict[str, str] | None = None, timeout: float = 90
) -> subprocess.CompletedProcess[str]:
    """Runs `program` as `directory/program.py`; fails when it does not end in time or dies of a signal."""
    script = directory / "program.py"
    script.write_text(textwrap.dedent(program))
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
        cwd=directory,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"still running after {timeout} s\nstdout: {out}\nstderr: {err}") from None
    for mark in CRASH_MARKS:
        assert mark not in err, f"crashed with code {process.returncode}\n{err}"
    if process.returncode < 0:
        raise AssertionError(f"killed by {signal.Signals(-process.returncode).name}\nstdout: {out}\nstderr: {err}")
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def line_of(program: str, mark: str) -> int:
    """The line, from 1, of the dedented `program` that holds the comment `# mark`."""
    lines = textwrap.dedent(program).splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if line.endswith(f"# {mark}")]
    return number
