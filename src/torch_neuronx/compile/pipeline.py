"""One graph of ATen ops to what runs it: passes that every target wants, then the target's own."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torch_neuronx.errors import GraphBuildError
from torch_neuronx.targets import graph as g
from torch_neuronx.targets.emulator import target
from torch_neuronx.targets.emulator.output import CompiledGraph

from . import artifacts, metrics
from .options import CompileOptions
from .passes import replay_random_numbers, update_in_place

__all__ = ["compile_graph"]


def compile_graph(module: GraphModule, inputs: Sequence[Any], *, options: CompileOptions, kind: str) -> CompiledGraph:
    """What runs a graph whose nodes carry fake tensors.

    Args:
        module: the graph, as AOTAutograd made it: functional but for copies into inputs at its end.
        inputs: its example arguments.
        options: what the user asked for.
        kind: `forward`, `backward` or `inference`, for names.

    Raises:
        GraphBuildError: the graph cannot be built, and the options do not say that it may run op by op.
    """
    start = time.perf_counter()
    name = f"{options.model_name}.{kind}"
    try:
        replay_random_numbers(module)
        update_in_place(module)
        module.graph.eliminate_dead_code()
        # The seam: up to here graphs are the same for every target.
        compiled = target.build(module, name, kind)
    except target.REASONS as reason:
        error = _described(reason, module)
        if not options.fallback_execution:
            raise error from reason
        _warn_once(str(error))
        compiled = target.op_by_op(module)
        metrics.add(fallbacks=1)
    metrics.add(graphs=1, build_seconds=time.perf_counter() - start, **compiled.counts())
    artifacts.keep(name, module, compiled.listings())
    return compiled


def _described(reason: BaseException, module: GraphModule) -> GraphBuildError:
    """The error for the user, with the op where the reason names one."""
    node = getattr(reason, "node", None)
    arguments = "unknown"
    if node is not None:
        values = [g.value(a) if isinstance(a, Node) else a for a in node.args]
        arguments = ", ".join(f"{v.dtype}{list(v.shape)}" if isinstance(v, torch.Tensor) else str(v) for v in values)
    return GraphBuildError(
        reason=f"{type(reason).__name__}: {reason}",
        op=node.target if node is not None else "unknown",
        arguments=arguments,
        line=(g.source_line(node) if node is not None else "") or "unknown",
    )


def _warn_once(text: str) -> None:
    if text not in _told:
        _told.add(text)
        warnings.warn(f"{text}\nIt runs op by op.", UserWarning, stacklevel=2)


_told: set[str] = set()
