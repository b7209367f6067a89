"""Joining PyTorch: the steps of importing torch_neuronx, and what is said when one of them fails.

Three ways lead here: `import torch` loads us at its end, `import torch_neuronx` comes first and imports torch, or it
comes after a torch whose autoload is switched off. In the first one nothing may be raised: the failure is kept for
:func:`warn_if_broken`, and told again to whoever imports torch_neuronx by name.
"""

from __future__ import annotations

import atexit
import os
import platform
import re
import sys
import time
import warnings
from pathlib import Path
from types import ModuleType

import torch

from . import errors

__all__ = ["TORCH_VERSION", "check", "fail", "register", "warn_if_broken"]

# What the extension is built for; pyproject.toml has the same pin.
TORCH_VERSION = "2.13.0"

_failure: errors.InstallError | None = None


def check() -> None:
    """What must be right before the extension is loaded: a wrong PyTorch would crash in it."""
    if _failure is not None:
        raise _failure
    found = torch.__version__.split("+")[0]
    if found != TORCH_VERSION:
        raise errors.TorchVersionError(built=TORCH_VERSION, found=found)
    slot = torch._C._get_privateuse1_backend_name()
    if slot not in ("privateuseone", "neuron"):
        raise errors.AnotherBackendError(name=slot)


def register(module: ModuleType) -> None:
    """Makes `module` the module of device `neuron`. No device work: no thread, no memory of the device."""
    from . import _C, _machine, _upstream_shims, flex_attention, knobs

    torch.utils.rename_privateuse1_backend("neuron")
    torch._register_device_module("neuron", module)
    for name in [name for name in sys.modules if name.startswith("torch_neuronx.")]:
        # Else `from torch.neuron.amp import autocast` would load a second copy of the file.
        sys.modules["torch.neuron" + name.removeprefix("torch_neuronx")] = sys.modules[name]
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    _C.register_eager()
    _C.register_graphs()
    knobs.bind(in_use=_C.is_initialized, apply=_machine.configure)
    _machine.configure()
    _upstream_shims.apply()
    flex_attention.register()
    atexit.register(_finish)


def _finish() -> None:
    """At exit: let the launched work end, and do not let an error of it go unsaid."""
    from . import _C

    if _C.is_in_bad_fork():
        return  # The device belongs to the parent.
    text = _C.shutdown()
    _let_autograd_finish()
    if text and sys.stderr is not None:
        print(f"torch_neuronx: an error of an asynchronous launch was never reported: {text}", file=sys.stderr)


def _let_autograd_finish() -> None:
    """PyTorch's autograd thread of a device lets go of tensors after it has told that backward is done, and needs the
    interpreter's lock for those that Python knows. One that asks for it after the interpreter's end brings the process
    down ("terminate called without an active exception"). It cannot be waited for; it can be given time.
    """
    try:
        names = [(Path("/proc/self/task") / task / "comm").read_text() for task in os.listdir("/proc/self/task")]
    except OSError:
        return
    if any(name.startswith("pt_autograd") for name in names):
        for _ in range(_AUTOGRAD_TURNS):
            time.sleep(0.002)


# Turns of two milliseconds: enough for a thread that is ready to run on a busy machine.
_AUTOGRAD_TURNS = 20


def fail(error: Exception) -> None:
    """Raises what `error` means for the user, except inside torch's own import, where it is kept."""
    global _failure
    _failure = _diagnose(error)
    # No public interface tells whether a module is still being imported; the import system itself asks this one.
    if getattr(torch.__spec__, "_initializing", False):
        return
    raise _failure from (None if _failure is error else error)


def warn_if_broken() -> None:
    """Ends the autoload: warns when torch_neuronx could not be loaded, and lets a later import of it try again."""
    if _failure is None:
        return
    for name in [name for name in sys.modules if name.startswith("torch_neuronx")]:
        if name != __name__:  # This module keeps the failure.
            del sys.modules[name]
    text = (
        f"the device 'neuron' is not available: {_failure}\n"
        "PyTorch itself is usable. TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps it from loading torch_neuronx."
    )
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    except RuntimeWarning:  # `python -W error`: still no reason to fail `import torch`.
        print(text, file=sys.stderr)


def _diagnose(error: Exception) -> errors.InstallError:
    """The entry of the catalogue that `error` belongs to."""
    if isinstance(error, errors.InstallError):
        return error
    text = str(error)
    if isinstance(error, ImportError):
        if match := re.match(r"(\S+): cannot open shared object file", text):
            return errors.MissingLibraryError(library=match[1], detail=text)
        if match := re.search(r"undefined symbol: (\S+)|version `(\S+)' not found", text):
            return errors.ForeignExtensionError(found=torch.__version__, symbol=match[1] or match[2], detail=text)
        if "'_C'" in text or "torch_neuronx._C" in text:
            folder = os.path.dirname(__file__)
            return errors.MissingExtensionError(folder=folder, python=platform.python_version())
    return errors.BrokenInstallError(cause=f"{type(error).__name__}: {text}".rstrip(": "))
