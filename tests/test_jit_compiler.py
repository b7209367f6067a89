"""From the text of a stage to its code: the cache on disk, the thread in the background, and life without llvmlite."""

import logging
import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from jit_stages import run
from processes import run_python

from torch_neuronx.jit import Compiler, ObjectCache, available, default_directory

pytestmark = [pytest.mark.neuron_only, pytest.mark.skipif(not available(), reason="needs llvmlite")]


def doubled(factor: int = 1) -> str:
    """A stage that gives 2 * `factor` * x; each factor is a text of its own."""
    lines = ["operand 0 f32 dense in", "operand 1 f32 dense out", "%0 = load f32 @0"]
    lines += [f"%{k + 1} = add f32 %{k} %{k}" for k in range(factor)]
    return "\n".join([*lines, f"store @1 %{factor}"])


# -- The cache --------------------------------------------------------------------------------------------------------

TEXT = doubled()

COMPILE = f"""
import ctypes, pathlib, sys
import torch
from torch_neuronx.jit import ObjectCache, compile_stage, llvm

compiled = []
object_code = llvm.Toolchain.object_code
llvm.Toolchain.object_code = lambda self, ir: compiled.append(ir) or object_code(self, ir)
address = compile_stage({TEXT!r}, ObjectCache(pathlib.Path(DIRECTORY)))
stage = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(address)
x, y = torch.arange(100.0), torch.empty(100)
stage((ctypes.c_void_p * 2)(x.data_ptr(), y.data_ptr()), None, 1, 100)
assert torch.equal(y, x * 2)
print("compiled", len(compiled))
"""


def compile_in_a_process(tmp_path: Path, directory: Path, env: dict[str, str] | None = None) -> bool:
    """Whether a new process had to compile."""
    program = COMPILE.replace("DIRECTORY", repr(str(directory)))
    result = run_python(program, directory=tmp_path, env=env)
    assert result.returncode == 0, result.stderr
    assert result.stdout in ("compiled 0\n", "compiled 1\n")
    return result.stdout == "compiled 1\n"


def only_file(directory: Path) -> Path:
    (file,) = [path for path in directory.rglob("*") if path.is_file()]
    return file


def test_second_process_finds_the_code(tmp_path: Path):
    cache = tmp_path / "cache"
    assert compile_in_a_process(tmp_path, cache)
    assert only_file(cache).stat().st_mode & 0o077 == 0
    assert not compile_in_a_process(tmp_path, cache)


def test_damaged_file_is_replaced(tmp_path: Path):
    cache = tmp_path / "cache"
    compile_in_a_process(tmp_path, cache)
    file = only_file(cache)
    good = file.read_bytes()
    file.write_bytes(good[:-1])
    assert compile_in_a_process(tmp_path, cache)
    assert only_file(cache).read_bytes() == good


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "garbage", "longer"])
def test_damaged_file_counts_as_absent(tmp_path: Path, damage: str):
    cache = ObjectCache(tmp_path)
    cache.store("key", b"code" * 100)
    file = only_file(tmp_path)
    good = file.read_bytes()
    flipped = bytearray(good)
    flipped[-1] ^= 1
    damaged = {"empty": b"", "cut": good[:-1], "flipped": bytes(flipped), "garbage": bytes(5000), "longer": good + b"."}
    file.write_bytes(damaged[damage])
    assert cache.load("key") is None
    cache.store("key", b"code")
    assert cache.load("key") == b"code"


def test_directory_that_cannot_be_made_is_no_error(tmp_path: Path):
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    assert compile_in_a_process(tmp_path, in_the_way / "cache")


def test_cache_keeps_what_it_is_given(tmp_path: Path):
    cache = ObjectCache(tmp_path)
    assert cache.load("key") is None
    cache.store("key", b"code")
    cache.store("other", b"")
    assert cache.load("key") == b"code"
    assert cache.load("other") == b""
    cache.store("key", b"newer")
    assert cache.load("key") == b"newer"
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 2  # no temporary file is left


def test_file_that_others_can_write_is_not_trusted(tmp_path: Path):
    cache = ObjectCache(tmp_path)
    cache.store("key", b"code")
    only_file(tmp_path).chmod(0o622)
    assert cache.load("key") is None


def test_default_directory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert default_directory() == Path("/caches/torchneuron")
    for ignored in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert default_directory() == Path("/home/somebody/.cache/torchneuron")


# -- Without llvmlite -------------------------------------------------------------------------------------------------


def test_without_llvmlite(tmp_path: Path):
    result = run_python(
        f"""
        import sys
        sys.modules["llvmlite"] = None  # importing it fails
        from torch_neuronx import jit

        assert not jit.available()
        try:
            jit.compile_stage({TEXT!r})
        except jit.UnavailableError as error:
            print(error)
        """,
        directory=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("llvmlite cannot be loaded")


def test_importing_the_package_does_not_load_llvmlite(tmp_path: Path):
    result = run_python(
        """
        import sys
        from torch_neuronx import jit

        assert jit.available()
        print([name for name in sys.modules if name.startswith("llvmlite")])
        """,
        directory=tmp_path,
    )
    assert result.stdout == "[]\n", result.stderr


# -- The thread -------------------------------------------------------------------------------------------------------


class Work:
    """Stands for the source of stages in the extension."""

    def __init__(self) -> None:
        self.stages: queue.Queue[tuple[int, str] | None] = queue.Queue()
        self.results: queue.Queue[tuple[int, int | None]] = queue.Queue()
        self.compiler = Compiler(
            self.next_stage,
            install=lambda stage, address: self.results.put((stage, address)),
            failed=lambda stage: self.results.put((stage, None)),
            wake=lambda: self.stages.put(None),
        )

    def next_stage(self, seconds: float) -> tuple[int, str] | None:
        try:
            return self.stages.get(timeout=seconds)
        except queue.Empty:
            return None

    def result(self) -> tuple[int, int | None]:
        return self.results.get(timeout=60)


@pytest.fixture
def work() -> Iterator[Work]:
    work = Work()
    yield work
    work.compiler.stop()


def jit_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "neuron-jit"]


def test_thread_installs_what_it_compiled(work: Work):
    for stage in range(3):
        work.stages.put((stage, doubled(1 + stage)))
    work.compiler.start()
    addresses = {}
    for _ in range(3):
        stage, address = work.result()
        addresses[stage] = address
    assert sorted(addresses) == [0, 1, 2]
    assert None not in addresses.values()
    assert len({*addresses.values()}) == 3
    x, y = torch.arange(50.0), torch.empty(50)
    run(doubled(3), [x, y])  # finds the code that the thread made
    assert torch.equal(y, x * 8)


def test_stage_that_does_not_compile_fails_alone(work: Work, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING, logger="torch_neuronx.jit"):
        work.stages.put((7, "not a stage"))
        work.stages.put((8, "not a stage"))
        work.stages.put((9, doubled()))
        work.compiler.start()
        assert work.result() == (7, None)
        assert work.result() == (8, None)
        stage, address = work.result()
    assert stage == 9
    assert address is not None
    (record,) = caplog.records  # the same reason is told once
    assert "not a stage" in record.getMessage()


def test_thread_starts_once_and_again_after_stop(work: Work):
    before = len(jit_threads())
    work.compiler.start()
    work.compiler.start()
    assert len(jit_threads()) == before + 1
    work.compiler.stop()
    assert len(jit_threads()) == before
    work.compiler.stop()
    work.stages.put((1, doubled()))
    work.compiler.start()
    assert work.result()[1] is not None


THREAD = """
import os, queue, sys, time
import torch
from torch_neuronx.jit import Compiler, compile_stage

stages, done = queue.Queue(), queue.Queue()
def next_stage(seconds):
    try:
        return stages.get(timeout=seconds)
    except queue.Empty:
        return None
compiler = Compiler(next_stage, lambda *a: done.put(a), lambda *a: done.put(a), lambda: stages.put(None))
def text(n):
    lines = ["operand 0 f32 dense in", "operand 1 f32 dense out", "%0 = load f32 @0"]
    lines += [f"%{k + 1} = add f32 %{k} %{k}" for k in range(n)]
    return "\\n".join([*lines, f"store @1 %{n}"])
"""


@pytest.mark.parametrize("busy", [False, True])
def test_process_ends_while_the_thread_lives(tmp_path: Path, busy: bool):
    program = THREAD + "compiler.start()\n"
    if busy:
        program += "for n in range(1, 200): stages.put((n, text(n)))\ndone.get(timeout=60)\n"
    result = run_python(program + "print('end')\n", directory=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "end\n"
    assert result.stderr == ""


def test_fork_while_the_thread_compiles(tmp_path: Path):
    # The child compiles at once: with a lock of LLVM left behind by the parent's thread it would hang.
    program = (
        THREAD
        + """
for n in range(1, 60):
    stages.put((n, text(n)))
compiler.start()
for n in range(5):
    done.get(timeout=60)
    pid = os.fork()
    if pid == 0:
        stages, done = queue.Queue(), queue.Queue()  # the parent's thread may hold the locks of the old ones
        compile_stage(text(100 + n))
        compiler.start()
        stages.put((1000, text(200 + n)))
        result = done.get(timeout=60)
        os._exit(0 if len(result) == 2 and result[0] == 1000 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
print("end")
"""
    )
    result = run_python(program, directory=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "end\n"
