"""The Dynamo backend `neuron`."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch._functorch.config as functorch_config
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx import GraphModule

from torch_neuronx._upstream_shims import quick_cache_keys
from torch_neuronx.targets.emulator.elements import kernels_available
from torch_neuronx.targets.emulator.output import CompiledGraph

from .decompositions import decompositions
from .metrics import note_compilation
from .options import parse
from .pipeline import compile_graph

__all__ = ["is_for_device", "neuron"]


def neuron(
    module: GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """`torch.compile(backend="neuron")`.

    Args:
        module: the graph that Dynamo traced.
        inputs: example arguments.
        mode: only the default one; others give a warning once.
        options: see :class:`.options.CompileOptions`.
    """
    chosen = parse(mode, options)
    note_compilation()
    forward = SerializableAOTDispatchCompiler(
        CompiledGraph, functools.partial(compile_graph, options=chosen, kind="forward")
    )
    backward = SerializableAOTDispatchCompiler(
        CompiledGraph, functools.partial(compile_graph, options=chosen, kind="backward")
    )
    inference = SerializableAOTDispatchCompiler(
        CompiledGraph, functools.partial(compile_graph, options=chosen, kind="inference")
    )
    compiler = aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=inference,
        decompositions=decompositions(),
        partition_fn=functools.partial(min_cut_rematerialization_partition, compiler="inductor"),
        keep_inference_input_mutations=True,
    )
    tag = f"{torch.compiler.config.cache_key_tag}neuron {_identity()} {kernels_available()} {chosen}"
    compiler_config: Any = torch.compiler.config
    # A backward graph that is built later, when it first runs, would miss these settings and never reach the cache.
    settings = functorch_config.patch(bundled_autograd_cache=True, force_non_lazy_backward_lowering=True)
    with settings, compiler_config.patch(cache_key_tag=tag), quick_cache_keys():
        return compiler(module, inputs)


def is_for_device(module: GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether a graph has to do with this device: an argument, a parameter or a new tensor is there."""

    def here(value: Any) -> bool:
        device = getattr(value, "device", None)
        return isinstance(device, torch.device) and device.type == "neuron"

    if any(here(value) for value in inputs) or any(map(here, (*module.parameters(), *module.buffers()))):
        return True
    return any(here(node.meta.get("example_value")) for node in module.graph.nodes)


@functools.cache
def _identity() -> str:
    """Stands for the code that makes programs: what another version has cached is not used."""
    digest = hashlib.sha256()
    for folder in ("compile", "targets", "jit"):
        for file in sorted(Path(__file__).parents[1].joinpath(folder).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()
