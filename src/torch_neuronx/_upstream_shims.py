"""Monkey patches of PyTorch: all of ours, each with its reason and the version with which it can go.

Only this file may change objects of other packages.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .errors import NotCapturableOptimizerError, SharedDeviceTensorError

__all__ = ["apply", "quick_cache_keys"]


def apply() -> None:
    """Applies all shims. Called once, when torch_neuronx is imported."""
    _refuse_to_share_device_memory()
    _name_the_dlpack_device()
    _finish_before_the_default_dtype_changes()
    _compile_for_the_device_by_default()
    _trace_convolutions_with_their_layout()
    _trace_around_generators_and_streams()
    _capture_only_capturable_optimizers()
    _admit_flex_attention()


def _compile_for_the_device_by_default() -> None:
    """`torch.compile(f)` names no backend and means Inductor, which has no code generator for this device. Graphs with
    tensors on it go to backend `neuron`; all others to Inductor, as ever.

    Until: the default backend is asked for by device (torch.compiler.set_default_backend is for all of them in 2.13).
    """
    wrapper: Any = torch._TorchCompileInductorWrapper
    original = wrapper.__call__
    original_init = wrapper.__init__

    def __init__(self: Any, mode: Any, options: Any, *args: Any, **kwargs: Any) -> None:
        self._neuron_arguments = (mode, options)
        try:
            original_init(self, mode, options, *args, **kwargs)
        except RuntimeError:
            # Options of ours that Inductor does not know: an error only where Inductor is to compile.
            from torch_neuronx.compile.options import CompileOptions

            if not options or set(options) - set(CompileOptions.__dataclass_fields__):
                raise
            original_init(self, mode, None, *args, **kwargs)

    def __call__(self: Any, module: Any, inputs: Any, **kwargs: Any) -> Any:
        from torch_neuronx.compile.backend import is_for_device, neuron

        if not is_for_device(module, inputs):
            return original(self, module, inputs, **kwargs)
        mode, options = self._neuron_arguments
        return neuron(module, inputs, mode=mode, options=options)

    wrapper.__init__, wrapper.__call__ = __init__, __call__


def _trace_convolutions_with_their_layout() -> None:
    """Fake convolutions ask ATen for the memory format of their backend, and ATen says "contiguous" for all it does
    not know; ours gives channels_last for channels_last, as oneDNN does.

    Until: at::native::_determine_backend_memory_format asks an overrideable backend (not in 2.13).
    """
    core: Any = torch._C
    original = core._conv_determine_backend_memory_format

    def _conv_determine_backend_memory_format(x: torch.Tensor, weight: torch.Tensor, backend: Any) -> Any:
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        last = formats.get(x.ndim)
        if x.device.type != "neuron" or last is None or not x.dtype.is_floating_point or x.dtype == torch.float64:
            return original(x, weight, backend)
        is_last = any(
            t.is_contiguous(memory_format=last) and not t.is_contiguous() and t.shape[1] > 1 for t in (x, weight)
        )
        return last if is_last else torch.contiguous_format

    core._conv_determine_backend_memory_format = _conv_determine_backend_memory_format


def _trace_around_generators_and_streams() -> None:
    """Dynamo knows torch.cuda's functions on generators and streams by name and ends the graph at them. Ours it would
    trace into, as user code: it warns of their C++ functions, and fails where a generator's state is set. NKI kernels,
    which are traced and launched by code of their own, end a graph as well unless they are ops.

    Until: torch._dynamo.trace_rules asks the device's module (not in 2.13).
    """

    def skip(module: Any) -> None:
        for name in ("random", "streams", "device", "nki_launch"):
            module.add(f"torch_neuronx.{name}")
        module.add("nki")

    _when_imported("torch._dynamo.trace_rules", skip)


def _admit_flex_attention() -> None:
    """`flex_attention` looks its device up in a list of names, which has no backend from outside. What it says of other
    devices stays.

    Until: torch.nn.attention.flex_attention asks the backend (not in 2.13).
    """

    def admit(module: Any) -> None:
        original = module._validate_device

        def _validate_device(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
            if query.device.type != "neuron":
                original(query, key, value)

        module._validate_device = _validate_device

    _when_imported("torch.nn.attention.flex_attention", admit)


def _when_imported(name: str, action: Callable[[Any], None]) -> None:
    """Calls `action` with a module, now or when it is first imported: some cost every program too much to import."""
    if name in sys.modules:
        action(sys.modules[name])
        return

    class Finder(importlib.abc.MetaPathFinder):
        def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
            if fullname != name:
                return None
            sys.meta_path.remove(self)
            spec: Any = importlib.util.find_spec(fullname)
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                action(module)

            spec.loader.exec_module = exec_module
            return spec

    sys.meta_path.insert(0, Finder())


@contextlib.contextmanager
def quick_cache_keys() -> Iterator[None]:
    """To make the key of a cache entry, AOTAutograd's cache has Inductor load its code generators for all devices and
    read all source files of PyTorch: more than a second. A graph for this device needs no such generator, and the
    build of PyTorch, of which we take exactly one, says what its source files are. Inside, both are left out.

    Until: FxGraphHashDetails asks only for the backends of the devices in the graph (not in 2.13).
    """
    import torch._inductor.codecache as codecache

    module: Any = codecache
    backends, key = module.init_backend_registration, module.torch_key
    build = f"{torch.__version__} {torch.version.git_version}".encode()
    module.init_backend_registration, module.torch_key = lambda: None, lambda: build
    try:
        yield
    finally:
        module.init_backend_registration, module.torch_key = backends, key


def _refuse_to_share_device_memory() -> None:
    """`torch.multiprocessing` takes a storage that is neither CUDA's nor meta's for a CPU storage, and fails on ours
    with "_share_fd_: only available on CPU". Our error names the device and what to do instead.

    Until: torch.multiprocessing.reductions asks the backend (not in 2.13).
    """
    storage_class: Any = torch.UntypedStorage

    def guarded(name: str) -> None:
        original = getattr(storage_class, name)

        def share(self: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
            if self.device.type == "neuron":
                raise SharedDeviceTensorError(what="storage", device=self.device)
            return original(self, *args, **kwargs)

        share.__name__, share.__doc__ = name, original.__doc__
        setattr(storage_class, name, share)

    for name in ("_share_fd_cpu_", "_share_filename_cpu_"):
        guarded(name)


def _name_the_dlpack_device() -> None:
    """`Tensor.__dlpack_device__` compares the type with the literal "privateuse1", which no backend has after it
    was renamed, and calls ours unknown. DLPack's type for such devices is kDLExtDev.

    Until: torch/_tensor.py asks `torch._C._get_privateuse1_backend_name()` (not in 2.13).
    """
    original = torch.Tensor.__dlpack_device__

    def __dlpack_device__(self: torch.Tensor) -> tuple[Any, int]:
        if self.device.type != "neuron":
            return original(self)
        from torch.utils.dlpack import DLDeviceType

        return DLDeviceType.kDLExtDev, self.device.index

    __dlpack_device__.__doc__ = original.__doc__
    torch.Tensor.__dlpack_device__ = __dlpack_device__  # type: ignore[method-assign]


def _finish_before_the_default_dtype_changes() -> None:
    """Kernels read the default dtype when they run, for instance to divide integers. Launches still in a queue must
    run with the one that was in force when they were made, so changing it is a point of synchronisation.

    Until: c10's default dtype can be set per thread (it is global in 2.13).
    """
    from . import _C

    core: Any = torch._C
    original = core._set_default_dtype

    def _set_default_dtype(dtype: torch.dtype) -> None:
        if _C.is_initialized() and dtype != torch.get_default_dtype():
            for device in range(_C.device_count()):
                _C.synchronize(device)
        original(dtype)

    core._set_default_dtype = _set_default_dtype


def _capture_only_capturable_optimizers() -> None:
    """Adam and its like count steps on the host unless they are `capturable`; a graph would repeat the first one. torch
    refuses to capture such a step on CUDA and XPU only.

    Until: Optimizer._accelerator_graph_capture_health_check asks any accelerator (two of them by name in 2.13).
    """
    optimizer_class: Any = torch.optim.Optimizer
    original = optimizer_class._accelerator_graph_capture_health_check

    def _accelerator_graph_capture_health_check(self: Any) -> None:
        original(self)
        if torch.compiler.is_compiling():
            return
        from .graphs import is_current_stream_capturing

        if is_current_stream_capturing() and not all(group.get("capturable") for group in self.param_groups):
            raise NotCapturableOptimizerError(optimizer=type(self).__name__)

    optimizer_class._accelerator_graph_capture_health_check = _accelerator_graph_capture_health_check
