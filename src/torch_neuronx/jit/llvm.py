"""LLVM through llvmlite: IR to object code for this machine's CPU, and object code to an address.

llvmlite is optional, and loaded on first use only. It serialises its calls with a lock of its own and gives up the GIL
in them. Nothing here is safe against a fork half-way: callers hold a lock that :mod:`.compiler` takes around forks.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import itertools
from types import ModuleType
from typing import Any

__all__ = ["Toolchain", "UnavailableError", "available", "toolchain"]

_SPEED_LEVEL = 3  # as clang's -O3


class UnavailableError(RuntimeError):
    """llvmlite is missing, or does not work on this machine."""


def available() -> bool:
    """Whether llvmlite is installed. Cheap: does not load it."""
    return importlib.util.find_spec("llvmlite") is not None


@functools.cache
def toolchain() -> Toolchain:
    """The toolchain of this process.

    Raises:
        UnavailableError: llvmlite is missing or broken.
    """
    try:
        import llvmlite.binding
    except (ImportError, OSError) as reason:  # OSError: its shared library does not load
        raise UnavailableError(f"llvmlite cannot be loaded: {reason}") from reason
    return Toolchain(llvmlite.binding)


def _keep_for_good(owner: Any) -> Any:
    # Machine code is gone with the object that owns it, and workers may run it until the very end of the process, when
    # Python destroys its objects: this one never is.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))
    return owner


class Toolchain:
    """Compiles for the CPU that it runs on. Code that it loaded stays for the life of the process."""

    def __init__(self, binding: ModuleType) -> None:
        self._binding: Any = binding
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        try:
            features = binding.get_host_cpu_features().flatten()
        except RuntimeError:  # LLVM does not know them for every architecture; the CPU's name still says the most
            features = ""
        cpu = binding.get_host_cpu_name()
        self._machine: Any = binding.Target.from_default_triple().create_target_machine(
            cpu=cpu, features=features, opt=_SPEED_LEVEL, jit=True
        )
        self._linker: Any = _keep_for_good(binding.create_lljit_compiler())
        self._numbers = itertools.count()
        version = ".".join(map(str, binding.llvm_version_info))
        self.identity = "\n".join([f"LLVM {version}", self._machine.triple, cpu, features, f"O{_SPEED_LEVEL}"])
        """All that object code depends on besides the IR."""

    def optimize(self, ir: str) -> str:
        """`ir` after all passes, as text."""
        with self._module(ir) as module:
            self._run_passes(module)
            return str(module)

    def object_code(self, ir: str) -> bytes:
        """`ir`, optimized, as a relocatable object file.

        Raises:
            RuntimeError: LLVM does not accept it.
        """
        with self._module(ir) as module:
            self._run_passes(module)
            return bytes(self._machine.emit_object(module))

    def load(self, code: bytes, name: str) -> int:
        """The address of function `name` of an object file, which LLVM trusts blindly: it must come from here.

        Raises:
            RuntimeError: it needs a symbol that this process has not, or does not have `name`.
        """
        builder = self._binding.JITLibraryBuilder().add_object_img(code).add_current_process().export_symbol(name)
        library = builder.link(self._linker, f"stage{next(self._numbers)}")
        return int(_keep_for_good(library)[name])

    def _module(self, ir: str) -> Any:
        # A context of its own frees the types with the module, and keeps other users of llvmlite out of it.
        return self._binding.parse_assembly(ir, self._binding.create_context())

    def _run_passes(self, module: Any) -> None:
        options = self._binding.create_pipeline_tuning_options(_SPEED_LEVEL)
        options.loop_vectorization = True
        options.loop_interleaving = True
        options.slp_vectorization = False  # straight-line code of one element has nothing for it
        options.loop_unrolling = False  # interleaving does it where it pays; the remainder loops need none
        passes = self._binding.create_pass_builder(self._machine, options)
        passes.getModulePassManager().run(module, passes)
