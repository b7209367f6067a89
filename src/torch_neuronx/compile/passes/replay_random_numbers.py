"""Activation checkpointing: backward draws the random numbers that forward drew.

The partitioner wraps an op that draws in `run_and_save_rng_state` and, where it is computed again, in
`run_with_rng_state`: operators of a higher order whose implementations are a closed list of devices.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.fx import GraphModule

from torch_neuronx.random import get_rng_state, set_rng_state

__all__ = ["replay_random_numbers"]


def replay_random_numbers(module: GraphModule) -> None:
    """Puts functions for any device in the place of those operators."""
    from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state

    ours = {run_and_save_rng_state: save_state_and_run, run_with_rng_state: run_with_state}
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target in ours:
            if node.target is run_with_rng_state and "val" not in node.meta:
                node.meta["val"] = _fake_result(*node.args[1:], **node.kwargs)
            node.target = ours[node.target]


def _fake_result(op: Any, *args: Any, **kwargs: Any) -> Any:
    args, kwargs = torch.fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
    mode = detect_fake_mode((args, kwargs)) or contextlib.nullcontext()
    with mode:
        return op(*args, **kwargs)


def save_state_and_run(op: Any, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, Any]:
    """The state of the generator, and what the op gives."""
    return _state(_device(args, kwargs)), op(*args, **kwargs)


def run_with_state(state: torch.Tensor, op: Any, *args: Any, **kwargs: Any) -> Any:
    """What the op gives with the generator in that state; leaves the generator as it was."""
    device = _device(args, kwargs)
    current = _state(device)
    _set_state(state, device)
    try:
        return op(*args, **kwargs)
    finally:
        _set_state(current, device)


def _device(args: Any, kwargs: dict[str, Any]) -> torch.device:
    """Where an op draws: the device that it names, or that of its first tensor."""
    if kwargs.get("device") is not None:
        return torch.device(kwargs["device"])
    return next((a.device for a in args if isinstance(a, torch.Tensor)), torch.device("cpu"))


def _state(device: torch.device) -> torch.Tensor:
    return get_rng_state(device) if device.type == "neuron" else torch.get_rng_state()


def _set_state(state: torch.Tensor, device: torch.device) -> None:
    if device.type == "neuron":
        set_rng_state(state, device)
    else:
        torch.set_rng_state(state)
