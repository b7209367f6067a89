"""Machine code of stages: the whole way from text to address, and the thread that takes it in the background."""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import threading
from collections.abc import Callable, Sequence

from . import llvm
from .cache import ObjectCache
from .codegen import FUNCTION, llvm_ir
from .kernel import Kernel
from .kernel_code import kernel_code
from .kernel_loops import FUNCTION as KERNEL
from .stage import StageError, parse

__all__ = ["Compiler", "compile_kernel", "compile_kernels", "compile_stage"]

_log = logging.getLogger(__name__)

# Held around all use of LLVM, and by whoever forks: the child gets no lock of LLVM or llvmlite that nobody releases.
_lock = threading.RLock()
_addresses: dict[str, int] = {}

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def compile_stage(text: str, cache: ObjectCache | None = None) -> int:
    """The address of machine code for the stage `text` (see :mod:`.stage`).

    The code is a C function `void (void* const* operands, const Scalar* scalars, int64_t rows, int64_t cols)` for this
    machine's CPU and lives as long as the process. Equal texts give equal addresses. With a `cache`, object code is
    taken from there and kept there.

    Raises:
        StageError: `text` is no stage.
        UnavailableError: llvmlite is missing or broken.
        RuntimeError: LLVM cannot compile the stage for this CPU.
    """
    with _lock:
        address = _addresses.get(text)
        if address is None:
            address = _addresses[text] = _build(text, cache)
        return address


def compile_kernel(kernel: Kernel, cache: ObjectCache | None = None) -> int:
    """The address of machine code for `kernel`.

    The code is a C function `void (char* const* operands, const int64_t* ints, char* scratch, int64_t begin, int64_t
    end)`, see :mod:`.kernel_code`. Otherwise as :func:`compile_stage`.

    Raises:
        KernelError: `kernel` is ill-formed.
        UnavailableError: llvmlite is missing or broken.
        RuntimeError: LLVM cannot compile the kernel for this CPU.
    """
    return compile_kernels([kernel], cache)[0]


def compile_kernels(kernels: Sequence[Kernel], cache: ObjectCache | None = None) -> list[int]:
    """As :func:`compile_kernel`, for several.

    One after the other: llvmlite lets one thread into LLVM at a time, and a module of all of them takes as long (70 ms
    a kernel against 72). Between two kernels, stages of adaptive eager get their turn.
    """
    return [_compile_text(kernel_code(kernel).ir, cache) for kernel in kernels]


def _compile_text(ir: str, cache: ObjectCache | None) -> int:
    with _lock:
        address = _addresses.get(ir)
        if address is None:
            address = _addresses[ir] = _load(ir, KERNEL, cache)
        return address


def _build(text: str, cache: ObjectCache | None) -> int:
    return _load(llvm_ir(parse(text)), FUNCTION, cache)


def _load(ir: str, function: str, cache: ObjectCache | None) -> int:
    toolchain = llvm.toolchain()
    if cache is None:
        return toolchain.load(toolchain.object_code(ir), function)
    # The IR stands for the text and for the code generator, whatever version of it made the IR.
    key = hashlib.sha256(f"{toolchain.identity}\n{ir}".encode()).hexdigest()
    code = cache.load(key)
    if code is None:
        code = toolchain.object_code(ir)
        cache.store(key, code)
    return toolchain.load(code, function)


class Compiler:
    """A daemon thread that compiles stages as they are asked for.

    Args:
        next_stage: waits up to the given seconds for a stage; returns its id and text, or None when there is none or
            `wake` was called. Gives up the GIL while it waits.
        install: takes the id and the address of a compiled stage.
        failed: takes the id of a stage that has no machine code and never will.
        wake: makes a waiting `next_stage` return.
        cache: where object code is kept on disk; None for nowhere.
    """

    # How long the thread waits at a time. Only matters where `wake` cannot reach it.
    POLL_SECONDS = 1.0
    # How long the end of the process waits for a compilation under way; the largest stages take a fraction of this.
    EXIT_SECONDS = 5.0

    def __init__(
        self,
        next_stage: Callable[[float], tuple[int, str] | None],
        install: Callable[[int, int], None],
        failed: Callable[[int], None],
        wake: Callable[[], None],
        cache: ObjectCache | None = None,
    ) -> None:
        self._next_stage = next_stage
        self._install = install
        self._failed = failed
        self._wake = wake
        self._cache = cache
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._told: set[str] = set()

    def start(self) -> None:
        """Starts the thread unless it runs. A forked child has none until it starts its own."""
        with self._guard:
            if self._thread is not None and self._thread.is_alive():
                return
            if self._thread is None:
                # A thread that came back from native code after the interpreter's end could only be killed, and with
                # it C++ frames that must not be unwound: it ends before.
                atexit.register(self.stop)
            self._stopping.clear()
            self._thread = threading.Thread(target=self._run, name="neuron-jit", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Ends the thread, after the stage that it is compiling."""
        with self._guard:
            thread = self._thread
            if thread is None or not thread.is_alive():
                return
            self._stopping.set()
            self._wake()
            thread.join(self.EXIT_SECONDS)

    def _run(self) -> None:
        while not self._stopping.is_set():
            work = self._next_stage(self.POLL_SECONDS)
            if work is not None and not self._stopping.is_set():
                self._compile(*work)

    def _compile(self, stage: int, text: str) -> None:
        try:
            address = compile_stage(text, self._cache)
        except (StageError, RuntimeError) as reason:
            # The tile kernels go on with it, so this is slow but right. A broken llvmlite is told once, not per stage.
            if str(reason) not in self._told:
                self._told.add(str(reason))
                _log.warning("a fused region stays without machine code: %s", reason)
            self._failed(stage)
        else:
            self._install(stage, address)
