"""The catalogue of mistakes that Python finds: one class per mistake, its text as class attribute.

Errors found in C++ (out of memory, no such device in a tensor call, a launch that failed, ...) stand in
csrc/runtime/errors.h. docs/errors.md is the glossary of both; a test keeps it complete.

Imports nothing, so that any floor and any tool may import it.
"""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = [
    "AnotherBackendError",
    "AutocastCacheInGraphError",
    "BadCompileOptionError",
    "BadKnobValueError",
    "BrokenInstallError",
    "CompileError",
    "ConflictingKnobsError",
    "DeviceError",
    "ForeignExtensionError",
    "GraphBuildError",
    "GraphError",
    "InstallError",
    "InterprocessEventError",
    "KernelError",
    "KernelTensorsError",
    "KnobError",
    "KnobTooLateError",
    "MissingDeviceIndexError",
    "MissingExtensionError",
    "MissingLibraryError",
    "NeuronError",
    "NoKernelGradientError",
    "NoSuchDeviceError",
    "NotANeuronDeviceError",
    "NotANeuronStreamError",
    "NotCapturableOptimizerError",
    "SharedDeviceTensorError",
    "TorchVersionError",
    "UngraphableArgumentError",
    "UngraphableModuleError",
    "UnknownCompileOptionError",
    "UnknownKnobError",
]


class NeuronError(Exception):
    """Base of all errors that torch_neuronx raises from Python.

    Each class also derives from the builtin exception that torch.cuda raises for the same mistake, so that programs
    written for torch.cuda catch it.
    """

    message: ClassVar[str] = ""

    def __init__(self, **facts: Any) -> None:
        super().__init__(self.message.format(**facts))
        self.facts = facts

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions pickle as cls(*args); ours take keywords. Needed where errors travel between processes.
        return _rebuild, (type(self), self.facts)


def _rebuild(cls: type[NeuronError], facts: dict[str, Any]) -> NeuronError:
    return cls(**facts)


# -- The installation -------------------------------------------------------------------------------------------------


class InstallError(NeuronError, ImportError):
    """torch_neuronx cannot be loaded. The first line of the text names the cause."""


class TorchVersionError(InstallError):
    """The installed PyTorch is not the one that the extension was built for."""

    message = (
        "torch_neuronx was built for torch {built}, but torch {found} is installed.\n"
        "PyTorch's C++ interface changes between releases. Run `pip install torch=={built}`, or install a torchneuron "
        "that was built for torch {found}."
    )


class AnotherBackendError(InstallError):
    """PyTorch has room for one out-of-tree device, and it is taken."""

    message = (
        "PyTorch's slot for an out-of-tree device is taken by '{name}'.\n"
        "A process can use one such device. Uninstall the other backend, or set TORCH_DEVICE_BACKEND_AUTOLOAD=0 and "
        "import the one you want."
    )


class MissingLibraryError(InstallError):
    """A shared library that the extension needs is not there."""

    message = (
        "the shared library {library} is missing; torch_neuronx's extension needs it.\n"
        "Install the package that holds it, or add its folder to LD_LIBRARY_PATH. libtorch_cpu.so and libc10.so come "
        "with torch: if one of those is missing, reinstall torch. The loader said: {detail}"
    )


class MissingExtensionError(InstallError):
    """The package is there, its extension module is not."""

    message = (
        "torch_neuronx's extension module _C is not in {folder}.\n"
        "The package was not built, or it was built for another Python than {python}. Run `pip install .` (or "
        "`make setup`) in the source tree."
    )


class ForeignExtensionError(InstallError):
    """The extension asks for a symbol that the installed PyTorch does not have."""

    message = (
        "torch_neuronx's extension does not fit the installed torch {found}: symbol {symbol} is not there.\n"
        "It was built against another build of PyTorch. Reinstall torchneuron, or build it again with "
        "`pip install --no-build-isolation .`. The loader said: {detail}"
    )


class BrokenInstallError(InstallError):
    """Loading failed for a reason that is none of the above."""

    message = (
        "torch_neuronx cannot be loaded: {cause}\n"
        "Reinstall torchneuron. If that does not help, report the traceback of `python -c 'import torch_neuronx'`."
    )


# -- Knobs ------------------------------------------------------------------------------------------------------------


class KnobError(NeuronError, ValueError):
    """A knob (environment variable or `torch.neuron.knobs.set`) is wrong."""


class BadKnobValueError(KnobError):
    """The value does not parse, or is out of range."""

    message = "{name}={value!r} is not valid: {reason}. It takes {expected}."


class UnknownKnobError(KnobError):
    """There is no knob of that name."""

    message = "There is no knob named {name}{hint}. docs/knobs.md lists all of them."


class ConflictingKnobsError(KnobError):
    """Two knobs, or a knob and the machine, contradict each other."""

    message = "{first} contradicts {second}: {reason}. {remedy}."


class KnobTooLateError(KnobError, RuntimeError):
    """The knob describes the machine, and the machine is in use already."""

    message = (
        "{name} cannot be changed: the device is in use already. Set it in the environment, or call "
        "torch.neuron.knobs.set before the first tensor is made on the device."
    )


# -- Devices, streams, events -----------------------------------------------------------------------------------------


class DeviceError(NeuronError):
    """A device argument is wrong."""


class NotANeuronDeviceError(DeviceError, ValueError):
    """A device of another type was given where a neuron device is expected."""

    message = (
        "Expected a neuron device, but got: {device}. Pass an index, 'neuron', 'neuron:<index>' or a torch.device."
    )


class MissingDeviceIndexError(DeviceError, ValueError):
    """The call needs to know which device, and `neuron` alone does not say."""

    message = "Expected a torch.device with a specified index or an integer, but got: {device}. Pass 'neuron:<index>'."


class NoSuchDeviceError(DeviceError, RuntimeError):
    """The index is beyond the visible devices."""

    message = (
        "There is no device neuron:{index}: {count} are visible (neuron:0 to neuron:{last}). NEURON_EMU_INSTANCE, "
        "NEURON_RT_VISIBLE_CORES and NEURON_RT_NUM_CORES say how many there are."
    )


class NotANeuronStreamError(DeviceError, TypeError):
    """Something else was given where a stream of a neuron device is expected."""

    message = "Expected a stream of a neuron device, but got: {stream}. Make one with torch.neuron.Stream()."


class InterprocessEventError(DeviceError, NotImplementedError):
    """Events cannot be shared between processes."""

    message = (
        "Event(interprocess=True) is not supported: an event lives in one process. Synchronise processes through "
        "torch.distributed."
    )


class SharedDeviceTensorError(DeviceError, NotImplementedError):
    """A tensor or storage of the device was sent to another process."""

    message = (
        "A {what} on {device} cannot be sent to another process: device memory belongs to one process. Send "
        "`tensor.cpu()` and move it to the device on the other side."
    )


# -- Compilation ------------------------------------------------------------------------------------------------------


class CompileError(NeuronError):
    """`torch.compile` for the device failed."""


class UnknownCompileOptionError(CompileError, ValueError):
    """`options` holds a key that the backend does not know."""

    message = "torch.compile(backend='neuron') has no option {name!r}. It has: {known}."


class BadCompileOptionError(CompileError, TypeError):
    """An option has a value of the wrong type."""

    message = "torch.compile(backend='neuron') was given a bad value for {name!r}: {value!r}. Pass a {expected}."


class GraphBuildError(CompileError, RuntimeError):
    """A graph could not be made into a program."""

    message = (
        "a graph could not be built for the device 'neuron': {reason}\n"
        "  op: {op}\n  arguments: {arguments}\n  line: {line}\n"
        "With options=dict(fallback_execution=True) torch.compile runs such graphs op by op instead."
    )


# -- Kernels of NKI ---------------------------------------------------------------------------------------------------


class KernelError(NeuronError):
    """A mistake in calling an NKI kernel on tensors of the device. Mistakes in kernels stand in nki.errors."""


class KernelTensorsError(KernelError, RuntimeError):
    """The tensors of one call are not on one device."""

    message = "{kernel} was given tensors on {devices}: a kernel runs on one device. Move them with .to()."


class NoKernelGradientError(KernelError, RuntimeError):
    """backward() came to a kernel that nobody gave a gradient."""

    message = (
        "{kernel} has no gradient: a kernel is not differentiated by itself. Make it an op with torch_neuronx.nki_op "
        "and give it one with register_autograd, call it in a torch.autograd.Function, or under torch.no_grad()."
    )


# -- Graphs -----------------------------------------------------------------------------------------------------------


class GraphError(NeuronError):
    """A mistake in capturing a graph that Python finds; others stand in csrc/runtime/errors.h."""


class AutocastCacheInGraphError(GraphError, RuntimeError):
    """Autocast would keep a cast weight for all calls, which a graph would read after it is gone."""

    message = (
        "make_graphed_callables cannot be used while autocast keeps casts of weights.\n"
        "Use torch.autocast('neuron', cache_enabled=False)."
    )


class NotCapturableOptimizerError(GraphError, RuntimeError):
    """Such an optimizer keeps its step count on the host: every replay would be the first step again."""

    message = (
        "{optimizer}.step() cannot be captured: 'capturable' is False in a parameter group.\n"
        "Make the optimizer with capturable=True, or call step() outside the capture."
    )


class UngraphableArgumentError(GraphError, TypeError):
    """A graph reads its arguments from the memory of tensors; a number would stay what it was."""

    message = (
        "make_graphed_callables takes tensors as sample arguments, but got: {type}.\n"
        "Bind other arguments beforehand (functools.partial, a closure)."
    )


class UngraphableModuleError(GraphError, ValueError):
    """A module that graphs would change the meaning of."""

    message = (
        "{module} cannot be graphed: {reason}.\n"
        "Register hooks after make_graphed_callables; only parameters may require grad."
    )
