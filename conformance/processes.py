"""Runs cases in processes of their own: a crash or a hang is the verdict of one case and not the end of the run."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.cases import ANY_DTYPE, Case
from conformance.report import Result, Status
from conformance.verdicts import SKIP, UNDEFINED_VALUES, XFAIL, Verdicts

# Importing PyTorch with its tables takes seconds, on a busy machine many.
START_SECONDS = 180.0
EXIT_SECONDS = 60.0
CLEAN_EXIT = "exit code 0"
ROOT = Path(__file__).resolve().parent.parent


class WorkerError(RuntimeError):
    """A worker process did not get as far as its first case: nothing can be concluded from the run."""


@dataclass(frozen=True)
class Settings:
    """How cases are run."""

    candidate: str
    max_samples: int
    case_seconds: float
    jobs: int


class Runner:
    """Hands chunks of cases to worker processes and reports each result through ``on_result``."""

    def __init__(
        self,
        settings: Settings,
        verdicts: Verdicts,
        on_begin: Callable[[int, Case], None],
        on_result: Callable[[Result], None],
    ) -> None:
        self._settings = settings
        self._verdicts = verdicts
        self._on_begin = on_begin
        self._on_result = on_result
        self._lock = threading.Lock()
        self._workers: set[Worker] = set()
        self._stopping = False
        self._error: BaseException | None = None

    def run(self, chunks: Sequence[Sequence[Case]]) -> None:
        """Runs all chunks; returns when every case has a result."""
        waiting: queue.SimpleQueue[Sequence[Case]] = queue.SimpleQueue()
        for chunk in chunks:
            waiting.put(chunk)
        threads = [threading.Thread(target=self._serve, args=(slot, waiting)) for slot in range(self._settings.jobs)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException:
            self._stop()
            raise
        if self._error is not None:
            raise self._error

    def _serve(self, slot: int, waiting: queue.SimpleQueue[Sequence[Case]]) -> None:
        try:
            while not self._stopping:
                self._run_chunk(slot, waiting.get_nowait())
        except queue.Empty:
            return
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits in run()
            self._error = self._error or error
            self._stop()

    def _stop(self) -> None:
        with self._lock:
            self._stopping = True
            for worker in self._workers:
                worker.kill()

    def _run_chunk(self, slot: int, chunk: Sequence[Case]) -> None:
        pending: list[Case] = []
        for case in chunk:
            verdict = self._verdicts.of(case)
            if verdict is not None and verdict.kind == SKIP:
                self._report(Result(case, Status.SKIPPED, verdict.reason))
            else:
                pending.append(case)
        while pending and not self._stopping:
            pending = self._run_process(slot, pending)

    def _run_process(self, slot: int, cases: list[Case]) -> list[Case]:
        """Runs cases in one process; returns those that are left if it came to an early end."""
        with Worker(self._job(cases)) as worker:
            with self._lock:
                self._workers.add(worker)
            try:
                return self._follow(slot, cases, worker)
            finally:
                with self._lock:
                    self._workers.discard(worker)

    def _follow(self, slot: int, cases: list[Case], worker: Worker) -> list[Case]:
        current: int | None = None
        done = 0
        seconds = START_SECONDS
        while True:
            try:
                message = worker.receive(seconds)
            except TimeoutError:
                if current is None:
                    raise WorkerError(f"a worker process was silent for {seconds:.0f} s\n{worker.output()}") from None
                self._judge(cases[current], Status.HUNG, f"no answer in {seconds:.0f} s")
                return cases[current + 1 :]
            except EOFError:
                break
            seconds = self._settings.case_seconds
            if "begin" in message:
                current = message["begin"]
                self._on_begin(slot, cases[message["begin"]])
            elif "end" in message:
                self._judge_tally(cases[message["end"]], message["tally"], message["seconds"])
                current, done = None, message["end"] + 1
        ended = worker.wait()
        if self._stopping:
            return []
        if current is not None:
            self._judge(cases[current], Status.CRASHED, f"{ended}: {worker.output()}")
            return cases[current + 1 :]
        if done < len(cases):
            raise WorkerError(f"a worker process ended by {ended} between two cases\n{worker.output()}")
        if ended != CLEAN_EXIT:
            # Every case has its result, but the device did not survive being torn down after the last one.
            at_exit = Case(cases[-1].suite, "(exit of the process)", f"after {cases[-1].entry}", ANY_DTYPE)
            self._judge(at_exit, Status.CRASHED, f"{ended}: {worker.output()}")
        return []

    def _job(self, cases: list[Case]) -> dict[str, Any]:
        return {
            "candidate": self._settings.candidate,
            "options": {"max_samples": self._settings.max_samples},
            "cases": [
                {"index": index, "case": dataclasses.asdict(case), "check_values": self._checks_values(case)}
                for index, case in enumerate(cases)
            ],
        }

    def _checks_values(self, case: Case) -> bool:
        verdict = self._verdicts.of(case)
        return verdict is None or verdict.kind != UNDEFINED_VALUES

    def _judge_tally(self, case: Case, tally: dict[str, Any], seconds: float) -> None:
        samples = {key: tally[key] for key in ("exact", "close", "failed", "not_on_cpu")}
        if tally["failed"]:
            self._judge(case, Status.FAILED, tally["messages"][0], seconds, samples)
        elif tally["exact"] + tally["close"]:
            self._judge(case, Status.PASSED, "", seconds, samples)
        else:
            self._report(Result(case, Status.NOT_APPLICABLE, "no sample passes on the CPU", seconds, samples))

    def _judge(
        self, case: Case, status: Status, message: str, seconds: float = 0.0, samples: dict[str, int] | None = None
    ) -> None:
        """Turns what happened into a verdict: an expected failure is one only if it fails by itself, not by a crash."""
        verdict = self._verdicts.of(case)
        if verdict is not None and verdict.kind == XFAIL:
            if status is Status.FAILED:
                status, message = Status.XFAILED, verdict.reason
            elif status is Status.PASSED:
                status, message = Status.XPASSED, f"passes, but its verdict says: {verdict.reason}"
        self._report(Result(case, status, message, seconds, samples or {}))

    def _report(self, result: Result) -> None:
        with self._lock:
            self._on_result(result)


class Worker:
    """One process, what it says about its cases, and what it prints."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._results, writing = os.pipe()
        self._buffer = b""
        self._lines: collections.deque[bytes] = collections.deque()
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",
            "PYTHONFAULTHANDLER": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "conformance.worker"],
            stdin=subprocess.PIPE,
            stdout=self._printed,
            stderr=self._printed,
            pass_fds=(writing,),
            env=environment,
            start_new_session=True,
        )
        os.close(writing)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(json.dumps({**job, "results": writing}).encode())

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._process.wait()
        self._printed.close()
        os.close(self._results)

    def receive(self, seconds: float) -> dict[str, Any]:
        """The next message; ``TimeoutError`` after ``seconds`` of silence, ``EOFError`` when the process has ended."""
        while not self._lines:
            ready, _, _ = select.select([self._results], [], [], seconds)
            if not ready:
                raise TimeoutError
            received = os.read(self._results, 1 << 16)
            if not received:
                raise EOFError
            *lines, self._buffer = (self._buffer + received).split(b"\n")
            self._lines.extend(lines)
        message: dict[str, Any] = json.loads(self._lines.popleft())
        return message

    def wait(self) -> str:
        """Waits for the end of the process and says how it came."""
        try:
            code = self._process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            return f"a hang of more than {EXIT_SECONDS:.0f} s at exit"
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def kill(self) -> None:
        """Ends the process and whatever it started."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def output(self) -> str:
        """What the process printed last, as one line; of a crash the cause and the innermost frames."""
        self._printed.seek(0, os.SEEK_END)
        self._printed.seek(max(0, self._printed.tell() - 20_000))
        lines = self._printed.read().decode(errors="replace").splitlines()
        # The fault handler ends with the names of a hundred loaded modules, which would hide all else.
        text = " | ".join(line.strip() for line in lines if line.strip() and not line.startswith("Extension modules:"))
        causes = [text.find(words) for words in ("terminate called", "Fatal Python error") if words in text]
        return text[min(causes) :][:1200] if causes else text[-1200:]
