"""FlexAttention in eager mode: the operators behind `torch.nn.attention.flex_attention` run the same step of a program
that they become in compiled graphs, and PyTorch's dense functions where that is not possible.

A program is made for a score_mod, a mask_mod and the shapes that come with them, and kept.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
from torch._higher_order_ops.flex_attention import flex_attention, flex_attention_backward
from torch.fx import GraphModule
from torch.utils._pytree import tree_flatten, tree_unflatten

__all__ = ["register"]

# The least recently used program is forgotten when there are more.
_MAX_PROGRAMS = 64
# Arguments of the backward operator.
_JOINT_GRAPH, _CAPTURED = 8, -2

_Run = Callable[..., Any]
_keys: Any = torch._C.DispatchKey
_programs: dict[Hashable, tuple[list[Any], _Run]] = {}


def register() -> None:
    """Tells PyTorch's dispatcher. Called once, when torch_neuronx is imported."""
    flex_attention.py_impl(_keys.PrivateUse1)(functools.partial(_attend, backward=False))
    flex_attention_backward.py_impl(_keys.PrivateUse1)(functools.partial(_attend, backward=True))
    # PyTorch registers these for its own devices by name.
    flex_attention.py_impl(_keys.AutocastPrivateUse1)(_attend_in_autocast)
    flex_attention_backward.fallthrough(_keys.AutocastPrivateUse1)


def _attend_in_autocast(query: Any, key: Any, value: Any, *args: Any) -> Any:
    dtype = torch.get_autocast_dtype("neuron")
    query, key, value = (t.to(dtype) if t.is_floating_point() else t for t in (query, key, value))
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_keys.AutocastPrivateUse1)):
        return flex_attention(query, key, value, *args)


def _attend(*args: Any, backward: bool) -> Any:
    leaves, _ = tree_flatten(args)
    key = (backward, tuple(_described(args, leaves, backward)))
    functions = [leaf for leaf in leaves if callable(leaf) and not (backward and leaf is args[_JOINT_GRAPH])]
    known = _programs.pop(key, None)
    # An id may have been given again to another function.
    if known is None or any(ref() is not f for ref, f in zip(known[0], functions, strict=True)):
        known = ([weakref.ref(f) for f in functions], _program(args, backward) or _dense(backward))
        if len(_programs) >= _MAX_PROGRAMS:
            del _programs[next(iter(_programs))]
    _programs[key] = known
    return known[1](*args)


def _described(args: Any, leaves: Sequence[Any], backward: bool) -> Iterator[Hashable]:
    """All that a program depends on."""
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            yield leaf.dtype, leaf.device, leaf.shape, leaf.stride()
        elif backward and leaf is args[_JOINT_GRAPH]:  # made anew for each call, from the function before it
            yield tuple(_pulled(args))
        else:
            yield id(leaf) if callable(leaf) else leaf


def _pulled(args: Any) -> list[bool]:
    """Which captured tensors get a gradient."""
    captured, joint = args[_CAPTURED], args[_JOINT_GRAPH]
    if not captured or not isinstance(joint, GraphModule):
        return []
    (output,) = joint.graph.find_nodes(op="output")
    return [gradient is not None for gradient in output.args[0][-len(captured) :]]


def _dense(backward: bool) -> _Run:
    from .targets.emulator.attend_densely import dense_attention, dense_attention_backward

    return dense_attention_backward if backward else dense_attention


def _program(args: Any, backward: bool) -> _Run | None:
    """What runs these arguments as one program; None where they have to be computed the dense way."""
    from torch.fx.experimental.proxy_tensor import make_fx

    from .compile.decompositions import decompositions
    from .compile.options import CompileOptions
    from .compile.pipeline import compile_graph
    from .errors import GraphBuildError

    if backward and any(_pulled(args)):
        return None
    leaves, spec = tree_flatten(args)
    places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def call(*tensors: torch.Tensor) -> Any:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        if backward:
            return flex_attention_backward(*tree_unflatten(filled, spec))[:3]
        return flex_attention(*tree_unflatten(filled, spec))

    tensors = [leaves[place] for place in places]
    try:
        with torch.no_grad():
            module = make_fx(call, decompositions(), tracing_mode="fake")(*tensors)
            compiled = compile_graph(module, tensors, options=CompileOptions(), kind="inference")
    except GraphBuildError:
        return None
    nothing = (None,) * len(args[_CAPTURED])

    def run(*args: Any) -> Any:
        results = compiled([leaf for leaf in tree_flatten(args)[0] if isinstance(leaf, torch.Tensor)])
        return (*results, nothing) if backward else tuple(results)

    return run
