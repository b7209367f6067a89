"""Graphs: work is captured once and replayed as one launch. Mirrors torch.cuda.graphs.

Captured launches keep their addresses: a replay reads the tensors that the capture has read and writes those that it
has written, whatever they hold by then. docs/graphs.md tells what can be captured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from . import _C
from .device import synchronize
from .errors import AutocastCacheInGraphError, UngraphableArgumentError, UngraphableModuleError
from .memory import empty_cache, empty_host_cache
from .streams import Stream, StreamContext, current_stream

__all__ = ["NeuronGraph", "graph", "graph_pool_handle", "is_current_stream_capturing", "make_graphed_callables"]

PoolHandle = tuple[int, int]
CaptureErrorMode = Literal["default", "global", "thread_local", "relaxed"]


def is_current_stream_capturing() -> bool:
    """Is the work of the current stream captured right now? Starts nothing."""
    return _C.is_initialized() and current_stream().is_capturing()


def graph_pool_handle() -> PoolHandle:
    """A name for a pool of memory that several graphs may share: see :meth:`NeuronGraph.capture_begin`."""
    return _C.graph_pool_handle()


class NeuronGraph(torch._C._acceleratorGraph):
    """A captured stretch of work. `torch.accelerator.Graph` is the same thing with another constructor.

    Args:
        keep_graph: accepted as torch.cuda does; there is no other form of the graph to keep.
    """

    def __new__(cls, keep_graph: bool = False) -> NeuronGraph:
        return super().__new__(cls, keep_graph)

    def __init__(self, keep_graph: bool = False) -> None:
        super().__init__(keep_graph)

    def capture_begin(self, pool: PoolHandle | None = None, capture_error_mode: CaptureErrorMode = "global") -> None:
        """From here on work on the current stream is captured instead of run. :class:`graph` calls this.

        Args:
            pool: share memory with other graphs: :func:`graph_pool_handle`, or :meth:`pool` of a graph. Such graphs
                must be replayed in the order of their captures, and what one leaves in its results is good until the
                next one is replayed, unless the tensors are still held.
            capture_error_mode: accepted as torch.cuda does. What is forbidden is so for the threads that take part in
                the capture, in all modes; others go on undisturbed.
            check_input_liveness: accepted as torch.cuda does. A replay always makes sure that tensors from outside are
                still there.
        """
        super().capture_begin(pool=pool, capture_error_mode=capture_error_mode)

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Accepted as torch.cuda does: a graph draws from every generator that its launches were given."""


class graph:
    """Context manager: what is done inside is captured into a graph, on a side stream.

    An exception inside ends the capture and leaves the graph empty.

    Args:
        neuron_graph: takes the capture.
        pool: see :meth:`NeuronGraph.capture_begin`.
        stream: capture on this stream instead of one that all such contexts share.
        capture_error_mode: see :meth:`NeuronGraph.capture_begin`.
    """

    default_capture_stream: Stream | None = None

    def __init__(
        self,
        neuron_graph: NeuronGraph,
        pool: PoolHandle | None = None,
        stream: torch.Stream | None = None,
        capture_error_mode: CaptureErrorMode = "global",
    ) -> None:
        if stream is None:
            default = graph.default_capture_stream
            if default is None or default.device != current_stream().device:
                graph.default_capture_stream = default = Stream()
            stream = default
        self.neuron_graph = neuron_graph
        self.pool = pool
        self.capture_stream = stream
        self.capture_error_mode = capture_error_mode
        self._stream_context = StreamContext(stream)

    def __enter__(self) -> None:
        synchronize(self.capture_stream.device)
        empty_cache()
        empty_host_cache()
        self._stream_context.__enter__()
        try:
            self.neuron_graph.capture_begin(self.pool, self.capture_error_mode)
        except BaseException:
            self._stream_context.__exit__()
            raise

    def __exit__(self, exc_type: type[BaseException] | None, *exc_info: object) -> None:
        try:
            if exc_type is None:
                self.neuron_graph.capture_end()
            else:  # Half a graph is of no use, and what happened inside is what the user must hear about.
                self.neuron_graph.reset()
        finally:
            self._stream_context.__exit__()


@dataclass
class _Graphed:
    """One callable of :func:`make_graphed_callables`: its graphs, and the tensors that they read and write."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    inputs: tuple[Tensor, ...]  # flat arguments, then parameters
    arguments_count: int
    forward: NeuronGraph = field(default_factory=NeuronGraph)
    backward: NeuronGraph = field(default_factory=NeuronGraph)
    outputs: tuple[Any, ...] = ()
    outputs_spec: pytree.TreeSpec | None = None
    gradients_in: tuple[Tensor | None, ...] = ()
    gradients_out: tuple[Tensor | None, ...] = ()

    def warm_up(self, allow_unused_input: bool) -> None:
        outputs = [o for o in pytree.tree_leaves(self.function(*self.arguments)) if o.requires_grad]
        if outputs:
            self._gradients(outputs, [torch.empty_like(o) for o in outputs], allow_unused_input)

    def capture_forward(self, pool: PoolHandle) -> None:
        with graph(self.forward, pool=pool):
            results = self.function(*self.arguments)
        flat, self.outputs_spec = pytree.tree_flatten(results)
        self.outputs = tuple(flat)

    def capture_backward(self, pool: PoolHandle, allow_unused_input: bool) -> None:
        self.gradients_in = tuple(torch.empty_like(o) if o.requires_grad else None for o in self.outputs)
        gradients: Sequence[Tensor | None] = ()
        outputs = [o for o in self.outputs if o.requires_grad]
        if outputs:
            with graph(self.backward, pool=pool):
                given = [g for g in self.gradients_in if g is not None]
                gradients = self._gradients(outputs, given, allow_unused_input)
        remaining = iter(gradients)
        self.gradients_out = tuple(next(remaining, None) if i.requires_grad else None for i in self.inputs)

    def _gradients(
        self, outputs: list[Tensor], gradients: list[Tensor], allow_unused_input: bool
    ) -> tuple[Tensor | None, ...]:
        inputs = [i for i in self.inputs if i.requires_grad]
        return torch.autograd.grad(outputs, inputs, gradients, only_inputs=True, allow_unused=allow_unused_input)

    def keep_accumulated(self) -> None:
        """Autograd may have taken a gradient's memory for `.grad`; what is to be added to must not be overwritten."""
        for static, gradient in zip(self.inputs, self.gradients_out, strict=True):
            if gradient is not None and static.grad is not None and static.grad.data_ptr() == gradient.data_ptr():
                static.grad = static.grad.clone()

    def as_function(self) -> Callable[..., Any]:
        """What takes the place of the callable: copies arguments in, replays, and hands out the static outputs."""
        graphed = self

        class Replay(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *inputs: Tensor) -> tuple[Any, ...]:
                for static, given in zip(graphed.inputs[: graphed.arguments_count], inputs, strict=False):
                    _fill(static, given)
                graphed.forward.replay()
                return tuple(o.detach() if isinstance(o, Tensor) else o for o in graphed.outputs)

            @staticmethod
            @torch.autograd.function.once_differentiable
            def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
                for static, given in zip(graphed.gradients_in, gradients, strict=True):
                    if static is not None and given is not None:
                        _fill(static, given)
                graphed.keep_accumulated()
                graphed.backward.replay()
                return tuple(None if g is None else g.detach() for g in graphed.gradients_out)

        parameters = self.inputs[self.arguments_count :]

        def replay(*arguments: Any) -> Any:
            outputs = Replay.apply(*pytree.arg_tree_leaves(*arguments), *parameters)
            assert graphed.outputs_spec is not None
            return pytree.tree_unflatten(outputs, graphed.outputs_spec)

        return replay


def _fill(static: Tensor, given: Tensor) -> None:
    if static.data_ptr() != given.data_ptr():
        static.copy_(given)


def _prepared(function: Callable[..., Any], arguments: tuple[Any, ...]) -> _Graphed:
    parameters: tuple[Tensor, ...] = ()
    if isinstance(function, nn.Module):
        name = type(function).__name__
        if function._backward_hooks or function._forward_hooks or function._forward_pre_hooks:
            raise UngraphableModuleError(module=name, reason="it has hooks")
        if any(buffer.requires_grad for buffer in function.buffers()):
            raise UngraphableModuleError(module=name, reason="a buffer of it requires grad")
        parameters = tuple(function.parameters())
    flat = pytree.arg_tree_leaves(*arguments)
    for argument in flat:
        if not isinstance(argument, Tensor):
            raise UngraphableArgumentError(type=type(argument).__name__)
    return _Graphed(function, arguments, (*flat, *parameters), len(flat))


def make_graphed_callables(
    callables: Any,
    sample_args: Any,
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: PoolHandle | None = None,
) -> Any:
    """Callables that replay graphs of the given ones, forward and backward, as nodes of autograd.

    Args:
        callables: a module or function, or a tuple of them, in the order in which they will run. Modules are changed in
            place and replay while they are in the mode (training or not) that they are in now.
        sample_args: the arguments of one call, a tuple of tensors (nested ones are fine); for a tuple of callables, a
            tuple of those. Sizes, dtypes and `requires_grad` of later calls must be the same.
        num_warmup_iters: calls before the capture.
        allow_unused_input: inputs that no output depends on are no error.
        pool: see :meth:`NeuronGraph.capture_begin`; all graphs share it.

    Results lie in the same memory in each call: clone what must outlast the next one. Gradients of gradients cannot be
    taken.
    """
    if torch.is_autocast_enabled("neuron") and torch.is_autocast_cache_enabled():
        raise AutocastCacheInGraphError()
    single = not isinstance(callables, tuple)
    functions = (callables,) if single else callables
    samples = (sample_args,) if single else sample_args
    graphed = [_prepared(function, args) for function, args in zip(functions, samples, strict=True)]
    pool = graph_pool_handle() if pool is None else pool

    synchronize()
    with StreamContext(Stream()):
        for each in graphed:
            for _ in range(num_warmup_iters):
                each.warm_up(allow_unused_input)
    synchronize()
    # In the order in which they will be replayed, since they share memory.
    for each in graphed:
        each.capture_forward(pool)
    for each in reversed(graphed):
        each.capture_backward(pool, allow_unused_input)

    results = tuple(_installed(each) for each in graphed)
    return results[0] if single else results


def _installed(graphed: _Graphed) -> Callable[..., Any]:
    replay, function = graphed.as_function(), graphed.function
    if not isinstance(function, nn.Module):
        return replay
    original, training = function.forward, function.training

    def forward(*args: Any, **kwargs: Any) -> Any:
        return replay(*args, **kwargs) if function.training == training else original(*args, **kwargs)

    function.forward = forward
    return function
