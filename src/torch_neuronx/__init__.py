"""The device `neuron` for PyTorch: AWS Trainium, emulated on any machine.

This module is `torch.neuron`: the names of `torch.cuda` for devices, streams, memory and random numbers. PyTorch loads
it by itself at the end of `import torch` (entry point group `torch.backends`); importing it does no device work.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

__version__ = "0.1.0"


def _autoload() -> None:
    """PyTorch calls this at the end of its own import. Never raises: a broken install gives a warning."""
    # Must stand above `import torch`: when torch_neuronx is imported first, torch asks for it while this module waits.
    from . import _install

    _install.warn_if_broken()


import torch  # noqa: E402, F401

from . import _install  # noqa: E402

try:
    _install.check()
    from . import _C, adaptive, amp, errors, graphs, knobs, memory, random, streams
    from ._C import is_in_bad_fork as _is_in_bad_fork  # noqa: F401 - torch.manual_seed asks for it
    from .adaptive import adaptive_eager, adaptive_report, is_adaptive_eager_enabled, reset_adaptive_report
    from .amp import get_amp_supported_dtype
    from .device import (
        DeviceProperties,
        can_device_access_peer,
        current_device,
        device,
        device_count,
        device_of,
        get_device_capability,
        get_device_name,
        get_device_properties,
        init,
        is_available,
        is_bf16_supported,
        is_initialized,
        set_device,
        synchronize,
    )
    from .device import _get_device_index as _get_device_index
    from .device import _lazy_init as _lazy_init
    from .graphs import (
        NeuronGraph,
        graph,
        graph_pool_handle,
        is_current_stream_capturing,
        make_graphed_callables,
    )
    from .memory import (
        OutOfMemoryError,
        empty_cache,
        empty_host_cache,
        max_memory_allocated,
        max_memory_reserved,
        mem_get_info,
        memory_allocated,
        memory_reserved,
        memory_snapshot,
        memory_stats,
        memory_stats_as_nested_dict,
        memory_summary,
        reset_accumulated_memory_stats,
        reset_peak_memory_stats,
    )
    from .random import (
        get_rng_state,
        get_rng_state_all,
        initial_seed,
        manual_seed,
        manual_seed_all,
        seed,
        seed_all,
        set_rng_state,
        set_rng_state_all,
    )
    from .streams import (
        Event,
        Stream,
        StreamContext,
        current_stream,
        default_stream,
        set_stream,
        stream,
    )

    _install.register(sys.modules[__name__])
except Exception as _error:  # noqa: BLE001 - whatever is broken, `import torch` must go on
    _install.fail(_error)


def get_dynamo_metrics() -> dict[str, Any]:
    """What `torch.compile` has done for the device: see :func:`torch_neuronx.compile.metrics.get_dynamo_metrics`."""
    from .compile import metrics  # imports Dynamo, which takes seconds

    return metrics.get_dynamo_metrics()


def reset_dynamo_metrics() -> None:
    """Sets the counts of :func:`get_dynamo_metrics` to zero."""
    from .compile import metrics

    metrics.reset_dynamo_metrics()


# Names that bring NKI with them, which is imported by those who use it.
_KERNEL_NAMES = ("WrappedKernel", "nki_op", "wrap_nki")


@cache
def _libraries() -> dict[str, EntryPoint]:
    """Packages that stand on this one and make themselves known, as nkilib does."""
    return {point.name: point for point in entry_points(group="torch_neuronx.libraries")}


def __getattr__(name: str) -> Any:
    if name in _KERNEL_NAMES:
        from . import kernel_ops

        return getattr(kernel_ops, name)
    # Names that torch.cuda has as variables, and that change here with the state of the device.
    if name == "default_generators":
        return _C.default_generators()
    if name == "_initialized":  # torch.utils.checkpoint asks for it
        return _C.is_initialized()
    if name in _libraries():
        return _libraries()[name].load()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "DeviceProperties",
    "Event",
    "NeuronGraph",
    "OutOfMemoryError",
    "Stream",
    "StreamContext",
    "__version__",
    "adaptive",
    "adaptive_eager",
    "adaptive_report",
    "amp",
    "can_device_access_peer",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "empty_cache",
    "empty_host_cache",
    "errors",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_dynamo_metrics",
    "get_rng_state",
    "get_rng_state_all",
    "graph",
    "graph_pool_handle",
    "graphs",
    "init",
    "initial_seed",
    "is_adaptive_eager_enabled",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_initialized",
    "knobs",
    "make_graphed_callables",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "nki_op",
    "random",
    "reset_accumulated_memory_stats",
    "reset_adaptive_report",
    "reset_dynamo_metrics",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "streams",
    "synchronize",
    "wrap_nki",
]
